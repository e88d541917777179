//! Reports that the command is ready: a line on standard output, and the ready file.

use std::{
    fs,
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use data_encoding::BASE64;
use portreeve_manager::Settling;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::sleep;

use super::Error;

/// The interval between two checks whether the caches are synced.
const INTERVAL: Duration = Duration::from_millis(2);
/// The length of a line in a PEM file.
const LINE: usize = 64;

/// The file of `--ready-file`, which does not exist yet.
#[derive(Debug)]
pub(crate) struct ReadyFile {
    path: PathBuf,
    /// A file in the same folder, which gets the name at the end.
    file: NamedTempFile,
}

impl ReadyFile {
    /// Creates the file under another name, and removes the file of an earlier run.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let error = |source| Error::ReadyFile {
            path: path.to_owned(),
            source,
        };
        let absolute = std::path::absolute(path).map_err(error)?;
        let file = NamedTempFile::new_in(absolute.parent().unwrap_or(&absolute)).map_err(error)?;
        match fs::remove_file(&absolute) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(error(source)),
            _ => Ok(Self { path: absolute, file }),
        }
    }

    /// Writes the file at once: whoever finds it can read all of it.
    fn write(self, content: &Value) -> Result<(), Error> {
        let Self { path, mut file } = self;
        let written = writeln!(file, "{content:#}").and_then(|()| file.flush());
        let written = written.and_then(|()| file.persist(&path).map_err(|error| error.error));
        written.map(drop).map_err(|source| Error::ReadyFile { path, source })
    }
}

/// What the command reports once it is ready.
pub(crate) struct Announcement {
    pub(super) settling: Settling,
    pub(super) address: SocketAddr,
    /// The certificate of the listener, in DER.
    pub(super) certificate: Vec<u8>,
    pub(super) ready_file: Option<ReadyFile>,
}

impl Announcement {
    /// Waits until the caches are synced, and reports it.
    pub(super) async fn announce(self) -> Result<(), Error> {
        while !self.settling.is_ready() {
            sleep(INTERVAL).await;
        }
        let url = format!("https://{}", self.address);
        if let Some(ready_file) = self.ready_file {
            let content = json!({
                "address": url,
                "certificate": pem(&self.certificate),
                "pid": std::process::id(),
            });
            ready_file.write(&content)?;
        }
        tracing::info!(address = url, "ready");
        let mut stdout = io::stdout();
        let printed = writeln!(stdout, "ready {url}").and_then(|()| stdout.flush());
        printed.map_err(Error::Print)
    }
}

fn pem(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines: Vec<_> = text
        .as_bytes()
        .chunks(LINE)
        .map(|line| String::from_utf8_lossy(line))
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, pem::PemObject};

    use super::*;

    #[test]
    fn the_certificate_is_valid_pem() {
        let der: Vec<u8> = (0..200).collect();
        let read = CertificateDer::from_pem_slice(pem(&der).as_bytes()).unwrap();
        assert_eq!(read.as_ref(), der);
    }

    #[test]
    fn the_file_of_an_earlier_run_is_removed_and_a_missing_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        fs::write(&path, "old").unwrap();
        let file = ReadyFile::create(&path).unwrap();
        assert!(!path.exists());
        file.write(&json!({"address": "a"})).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\n  \"address\": \"a\"\n}\n");
        let missing = folder.path().join("missing/ready.json");
        let error = ReadyFile::create(&missing).unwrap_err().to_string();
        assert!(
            error.contains("--ready-file") && error.contains("missing/ready.json"),
            "{error}"
        );
    }
}
