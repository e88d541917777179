//! `--cert-dir`: a self-signed certificate that outlives the process, so that clients can trust it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::pair::{FlagFile, Pair};
use super::{Error, self_signed};

pub(super) const FLAG: &str = "--cert-dir";
const CERTIFICATE: &str = "portreeve.crt";
const KEY: &str = "portreeve.key";

/// Only the owner may read the key.
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;

/// Returns the files in the folder. Generates them unless both exist.
pub(super) fn pair(folder: &Path, bind_address: IpAddr) -> Result<Pair, Error> {
    let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
    // The certificate is written last, so it exists only with its key.
    if !(certificate.exists() && key.exists()) {
        let generated = self_signed(bind_address)?.0;
        let store = |path: &Path, result: io::Result<()>| {
            result.map_err(|source| Error::Store {
                path: path.to_owned(),
                source,
            })
        };
        store(folder, fs::create_dir_all(folder))?;
        store(&key, write(&key, &generated.signing_key.serialize_pem(), KEY_MODE))?;
        store(
            &certificate,
            write(&certificate, &generated.cert.pem(), CERTIFICATE_MODE),
        )?;
    }
    Ok(Pair {
        certificate: FlagFile::new(FLAG, &certificate),
        key: FlagFile::new(FLAG, &key),
    })
}

/// Writes a new file, which replaces an existing one as a whole.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new);
    file?.write_all(text.as_bytes())?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_certificate_is_generated_once() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("certificates");
        let load = || {
            let pair = pair(&folder, Ipv4Addr::LOCALHOST.into()).unwrap();
            pair.load().unwrap().end_entity_cert().unwrap().clone().into_owned()
        };
        let first = load();
        assert_eq!(load(), first);
        let mode = fs::metadata(folder.join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, KEY_MODE);
        fs::remove_file(folder.join(KEY)).unwrap();
        assert_ne!(load(), first, "half of a pair is replaced");
    }

    #[test]
    fn an_unusable_folder_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = pair(&file.path().join("below"), Ipv4Addr::LOCALHOST.into()).unwrap_err();
        assert!(error.to_string().contains("--cert-dir"), "{error}");
    }
}
