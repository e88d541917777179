//! Clients that hold connections of an HTTPS listener without using them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, iter};

use anyhow::{Context, Result};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The pause between two bytes of a client that sends its request slowly.
const DRIP_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before a client whose connection the server has closed connects again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
const KINDS: [Kind; 4] = [Kind::Silent, Kind::HalfOpen, Kind::Dripping, Kind::Idle];

/// Returns the response to a request over a new connection: its head and its body. The certificate
/// is not verified. `headers` are whole lines.
///
/// # Errors
///
/// Returns an error if the server does not answer.
pub async fn https_get(port: u16, path: &str, headers: &str) -> Result<String> {
    let mut stream = connect(port).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    let read = stream.read_to_end(&mut response).await;
    // Some servers end without TLS's `close_notify`.
    if response.is_empty() {
        read.context("failed to read a response")?;
    }
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// Clients of a server on 127.0.0.1. A quarter of them never sends anything, a quarter stops in the
/// middle of the handshake, a quarter sends a request byte by byte, and a quarter stays connected
/// after a response. Each connects again a second after the server has closed its connection.
///
/// The clients end when this is dropped.
#[derive(Debug)]
pub struct SlowClients {
    closed: Arc<AtomicU64>,
    _clients: JoinSet<()>,
}

impl SlowClients {
    /// Starts clients on the current runtime.
    pub fn start(port: u16, count: usize) -> Self {
        let closed = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for kind in KINDS.iter().cycle().take(count) {
            let closed = Arc::clone(&closed);
            clients.spawn(async move {
                loop {
                    if kind.hold(port).await.is_ok() {
                        closed.fetch_add(1, Ordering::Relaxed);
                    }
                    sleep(RECONNECT_PAUSE).await;
                }
            });
        }
        Self {
            closed,
            _clients: clients,
        }
    }

    /// Returns how many connections the server has closed.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }
}

/// What a client does with its connection.
#[derive(Clone, Copy)]
enum Kind {
    Silent,
    HalfOpen,
    Dripping,
    Idle,
}

impl Kind {
    /// Holds one connection until the server closes it.
    async fn hold(self, port: u16) -> Result<()> {
        match self {
            Self::Silent => read_to_end(&mut dial(port).await?).await,
            Self::HalfOpen => {
                let mut stream = dial(port).await?;
                let hello = client_hello()?;
                stream.write_all(&hello[..hello.len() / 2]).await?;
                read_to_end(&mut stream).await;
            }
            Self::Dripping => {
                let (mut reader, mut writer) = tokio::io::split(connect(port).await?);
                let drip = async {
                    let mut bytes = b"GET /livez HTTP/1.1\r\nX-Slow: ".iter().chain(iter::repeat(&b'x'));
                    while let Some(byte) = bytes.next()
                        && writer.write_all(&[*byte]).await.is_ok()
                        && writer.flush().await.is_ok()
                    {
                        sleep(DRIP_INTERVAL).await;
                    }
                };
                tokio::select! {
                    () = read_to_end(&mut reader) => {}
                    () = drip => {}
                }
            }
            Self::Idle => {
                let mut stream = connect(port).await?;
                // Without credentials, the path is forbidden, which somebody has to find out.
                let request = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n";
                stream.write_all(request).await?;
                read_to_end(&mut stream).await;
            }
        }
        Ok(())
    }
}

/// Reads until the server closes the connection, however it does that.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 1024];
    while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
}

async fn dial(port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await
}

async fn connect(port: u16) -> Result<TlsStream<TcpStream>> {
    let stream = dial(port).await?;
    let stream = TlsConnector::from(config()?).connect(localhost()?, stream).await;
    stream.context("failed to connect by TLS")
}

/// Returns the first message of a handshake.
fn client_hello() -> Result<Vec<u8>> {
    let mut hello = Vec::new();
    ClientConnection::new(config()?, localhost()?)?.write_tls(&mut hello)?;
    Ok(hello)
}

fn localhost() -> Result<ServerName<'static>> {
    Ok(ServerName::try_from("localhost")?)
}

/// Returns a configuration that accepts every certificate and resumes no session, like the kubelet.
fn config() -> Result<Arc<ClientConfig>> {
    let provider = ring::default_provider();
    let verifier = AnyServer(provider.signature_verification_algorithms);
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Accepts every certificate whose key the server has.
#[derive(Debug)]
struct AnyServer(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
