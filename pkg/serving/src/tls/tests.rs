//! Tests of certificates in files and of their errors.

use expect_test::{Expect, expect};

use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;

use super::*;
use crate::Args;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns the error as the operator sees it, without the name of the folder.
    fn error(&self, certificate: Option<&Path>, key: Option<&Path>) -> String {
        let args = Args {
            tls_cert_file: certificate.map(Path::to_owned),
            tls_private_key_file: key.map(Path::to_owned),
            ..Args::default()
        };
        let error = Identity::new(&args.tls_settings()).unwrap_err();
        let source = std::error::Error::source(&error)
            .map(|source| format!(": {source}"))
            .unwrap_or_default();
        format!("{error}{source}").replace(&self.0.path().display().to_string(), "")
    }
}

fn pair() -> (String, String) {
    let generated = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    (generated.cert.pem(), generated.signing_key.serialize_pem())
}

fn check(files: &Files, certificate: &Path, key: &Path, expected: &Expect) {
    expected.assert_eq(&files.error(Some(certificate), Some(key)));
}

#[test]
fn one_flag_of_the_pair_is_rejected() {
    let files = Files::new();
    expect!["--tls-cert-file is set but --tls-private-key-file is not: set both to serve your own certificate, or neither for a self-signed one"].assert_eq(&files.error(Some(Path::new("/c")), None));
    expect!["--tls-private-key-file is set but --tls-cert-file is not: set both to serve your own certificate, or neither for a self-signed one"].assert_eq(&files.error(None, Some(Path::new("/k"))));
}

#[test]
fn files_besides_a_secret_are_rejected() {
    let mut args = Args::default();
    args.secret.tls_secret = Some("system/serving".to_owned());
    assert!(Identity::new(&args.tls_settings()).is_ok());
    args.cert_dir = Some("/nonexistent".into());
    let error = Identity::new(&args.tls_settings()).unwrap_err();
    expect!["--tls-secret and --cert-dir are both set: set only one of them"].assert_eq(&error.to_string());
}

#[test]
fn pair_is_loaded_and_its_leaf_is_served() {
    let files = Files::new();
    let (certificate, key) = pair();
    let (other, _) = pair();
    let chain = files.write("chain", &format!("some text\n{certificate}{other}"));
    let args = Args {
        tls_cert_file: Some(chain),
        tls_private_key_file: Some(files.write("key", &key)),
        ..Args::default()
    };
    let identity = Identity::new(&args.tls_settings()).unwrap();
    assert_eq!(
        identity.certificate,
        CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
    );
}

#[test]
fn errors_name_the_bad_file() {
    let files = Files::new();
    let (certificate_text, key_text) = pair();
    let certificate = files.write("certificate", &certificate_text);
    let key = files.write("key", &key_text);
    check(
        &files,
        &files.0.path().join("absent"),
        &key,
        &expect![
            "failed to read --tls-cert-file=/absent: use a PEM file that this process can read: No such file or directory (os error 2)"
        ],
    );
    check(
        &files,
        &certificate,
        &files.0.path().join("absent"),
        &expect![
            "failed to read --tls-private-key-file=/absent: use a PEM file that this process can read: No such file or directory (os error 2)"
        ],
    );
    check(
        &files,
        &key,
        &certificate,
        &expect!["--tls-cert-file=/key contains no certificate: it needs a PEM block BEGIN CERTIFICATE"],
    );
    check(
        &files,
        &files.write("empty", ""),
        &key,
        &expect!["--tls-cert-file=/empty contains no certificate: it needs a PEM block BEGIN CERTIFICATE"],
    );
    check(
        &files,
        &files.write("cut", &certificate_text[..200]),
        &key,
        &expect![
            "failed to parse the PEM blocks of --tls-cert-file=/cut: one of them is truncated or broken; use the file as it was issued"
        ],
    );
}

#[test]
fn errors_name_the_unusable_pair() {
    let files = Files::new();
    let (certificate, key) = pair();
    let certificate = files.write("certificate", &certificate);
    let key = files.write("key", &key);
    let garbage = "-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n";
    check(
        &files,
        &files.write("garbage", garbage),
        &key,
        &expect![
            "the first certificate in --tls-cert-file=/garbage cannot be used: invalid peer certificate: BadEncoding"
        ],
    );
    let garbage = "-----BEGIN PRIVATE KEY-----\nMTIz\n-----END PRIVATE KEY-----\n";
    check(
        &files,
        &certificate,
        &files.write("garbage-key", garbage),
        &expect![
            "the key in --tls-private-key-file=/garbage-key cannot be used: use an ECDSA P-256 or P-384, an Ed25519 or an RSA key of at least 2048 bits"
        ],
    );
    check(
        &files,
        &certificate,
        &files.write("other", &pair().1),
        &expect![
            "the key in --tls-private-key-file=/other is not the key of the first certificate in --tls-cert-file=/certificate: use a pair that was issued together, with the server's certificate first"
        ],
    );
}

#[test]
fn errors_do_not_quote_a_key_on_one_line() {
    let files = Files::new();
    let (certificate, key) = pair();
    let certificate = files.write("certificate", &certificate);
    let key = files.write("key", &key.replace('\n', ""));
    check(
        &files,
        &key,
        &certificate,
        &expect![
            "failed to parse the PEM blocks of --tls-cert-file=/key: one of them is truncated or broken; use the file as it was issued"
        ],
    );
    check(
        &files,
        &certificate,
        &key,
        &expect![
            "--tls-private-key-file=/key contains no readable private key: it needs a PEM block BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY, unencrypted and with BEGIN and END on separate lines"
        ],
    );
}
