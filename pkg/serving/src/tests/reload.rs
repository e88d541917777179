//! Certificates that change on disk while the server runs.

use std::path::PathBuf;

use portreeve_testing::eventually;

use super::*;

/// The time limit for a reload after a change on disk.
const RELOAD_LIMIT: Duration = Duration::from_mins(1);

/// The files of a certificate and its key.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn certificate(&self) -> PathBuf {
        self.0.path().join("tls.crt")
    }

    fn key(&self) -> PathBuf {
        self.0.path().join("tls.key")
    }

    /// Writes a new certificate and its key, and returns the certificate.
    fn renew(&self) -> CertificateDer<'static> {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(self.certificate(), generated.cert.pem()).unwrap();
        std::fs::write(self.key(), generated.signing_key.serialize_pem()).unwrap();
        generated.cert.der().clone()
    }
}

impl Running {
    /// Waits until new connections get this certificate.
    async fn wait_for_certificate(&self, certificate: &CertificateDer<'static>) {
        eventually(RELOAD_LIMIT, "the new certificate to be served", || {
            self.connect_trusting(certificate.clone())
        })
        .await
        .unwrap();
    }
}

/// Sends a request on an open connection and waits for the response, without closing it.
async fn keep_alive(stream: &mut TlsStream<TcpStream>) {
    soon(stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        .await
        .unwrap();
    let mut reply = String::new();
    while !reply.ends_with("\r\n\r\nok") {
        let mut part = [0; 1024];
        let length = soon(stream.read(&mut part)).await.unwrap();
        assert_ne!(length, 0, "the connection was closed after {reply:?}");
        reply.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
}

#[tokio::test]
async fn new_connections_get_a_changed_certificate_and_open_ones_continue() {
    let files = Files::new();
    let first = files.renew();
    let args = Args {
        tls_cert_file: Some(files.certificate()),
        tls_private_key_file: Some(files.key()),
        ..allow_paths("/*")
    };
    let server = Running::start(&args, Limits::default(), endpoints());
    let mut open = server.connect().await;
    keep_alive(&mut open).await;

    let second = files.renew();
    server.wait_for_certificate(&second).await;
    assert!(server.connect_trusting(first).await.is_err());
    keep_alive(&mut open).await;

    // A key of another certificate: the state between the two writes of a renewal.
    let certificate = std::fs::read(files.certificate()).unwrap();
    files.renew();
    std::fs::write(files.certificate(), certificate).unwrap();
    eventually(RELOAD_LIMIT, "the failure to be counted", || async {
        let mut scrape = server.connect_trusting(second.clone()).await?;
        scrape
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await?;
        let metrics = Reply::read(scrape).await.body;
        let failures = metrics
            .lines()
            .find_map(|line| line.strip_prefix(r#"portreeve_serving_certificate_reloads_total{status="failure"} "#));
        let failures: f64 = failures.unwrap().parse().unwrap();
        anyhow::ensure!(failures > 0.0, "no failure is counted");
        anyhow::Ok(())
    })
    .await
    .unwrap();

    let third = files.renew();
    server.wait_for_certificate(&third).await;
    keep_alive(&mut open).await;
}
