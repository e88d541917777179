//! A proxy in front of the apiserver that injects the faults of a network and of a busy server.
//!
//! The proxy terminates TLS with the apiserver's certificate, so that it can distinguish requests,
//! and opens one connection to the apiserver per client connection. Without a fault it changes
//! nothing: it streams bodies, and forwards each watch event at once. It supports only HTTP/1.1,
//! without upgrades (`exec`, `attach`, `port-forward`), and does not forward client certificates.

mod body_fault;
mod canned;
mod fault;
mod link;
mod relay;
mod rules;
mod wire;

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::Uri;
use kube::Config;
use kube::config::Kubeconfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::authority::IssuedCertificate;
use crate::control_plane::ControlPlane;
use link::LinkMode;
use relay::Relay;
use rules::{RequestCounts, RuleId, Rules};

pub use canned::CannedResponse;
pub use fault::{BodyFault, Fault};
pub use rules::{Matcher, Repeat};

/// The maximum number of connections, far more than a client opens. The kernel queues further
/// connections, which hang until others end.
const CONNECTIONS: usize = 512;

/// A fault proxy in front of the apiserver of a control plane. It must not outlive the control
/// plane. Dropping it closes all its connections.
///
/// A fault applies to open and new connections from the moment its method returns until
/// [`heal`](Self::heal). [`cut`](Self::cut), [`black_hole`](Self::black_hole) and
/// [`hold_responses`](Self::hold_responses) replace each other. [`slow`](Self::slow),
/// [`slow_wire`](Self::slow_wire) and [`fault`](Self::fault) combine with each of them.
///
/// **Healing forwards everything that was held back**, like the end of a network outage. A request
/// in a black hole may reach the apiserver long after its sender gave up. A `cut` before the `heal`
/// drops it instead.
///
/// Its tasks run on the runtime on which it was started, so a test that blocks the only thread also
/// blocks the proxy.
pub struct FaultProxy {
    relay: Arc<Relay>,
    connections: watch::Sender<usize>,
    accepted: Arc<AtomicU64>,
    url: Uri,
    folder: PathBuf,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy without faults.
    ///
    /// # Errors
    /// Returns an error if the proxy cannot listen on a port, or cannot use the credentials of the
    /// control plane.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("failed to listen on 127.0.0.1")?;
        let address = listener.local_addr().context("failed to read the proxy's port")?;
        let url = format!("https://{address}")
            .parse()
            .context("failed to parse the proxy's URL")?;
        let relay = Arc::new(Relay {
            link: watch::Sender::default(),
            rules: watch::Sender::default(),
            acceptor: watch::Sender::new(acceptor_of(plane.folder())?),
            connector: connector(&plane.config()?).context("failed to trust the apiserver's certificate")?,
            apiserver: apiserver(plane.url())?,
        });
        let connections = watch::Sender::new(0);
        let mut tasks = JoinSet::new();
        let accepted = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&accepted);
        tasks.spawn(accept(listener, Arc::clone(&relay), connections.clone(), counted));
        Ok(Self {
            relay,
            connections,
            accepted,
            url,
            folder: plane.folder().to_owned(),
            _tasks: tasks,
        })
    }

    /// Returns `config` changed to connect through this proxy.
    pub fn config(&self, mut config: Config) -> Config {
        config.cluster_url = self.url.clone();
        config
    }

    /// Writes `proxy-<name>.kubeconfig` into the control plane's folder and returns its path. It is
    /// the kubeconfig `from`, changed to connect through this proxy. Using a name again replaces
    /// the file.
    ///
    /// # Errors
    /// Returns an error if `from` cannot be read or the new file cannot be written.
    pub fn kubeconfig(&self, from: &Path, name: &str) -> Result<PathBuf> {
        let mut kubeconfig =
            Kubeconfig::read_from(from).with_context(|| format!("failed to read {}", from.display()))?;
        for cluster in kubeconfig
            .clusters
            .iter_mut()
            .filter_map(|named| named.cluster.as_mut())
        {
            cluster.server = Some(self.url.to_string());
        }
        let path = self.folder.join(format!("proxy-{name}.kubeconfig"));
        let text = serde_json::to_string_pretty(&kubeconfig).context("failed to encode a kubeconfig")?;
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    /// Presents another certificate to new clients.
    ///
    /// # Errors
    /// Returns an error if the certificate or its key cannot be used.
    pub fn present(&self, issued: &IssuedCertificate) -> Result<()> {
        self.relay.acceptor.send_replace(acceptor(issued)?);
        Ok(())
    }

    /// Resets all open connections, and each new one immediately. Data in transit is lost.
    pub fn cut(&self) {
        self.relay.link.send_modify(|link| {
            link.cuts += 1;
            link.mode = LinkMode::Cut;
        });
    }

    /// Resets all open connections once. New connections work normally. Data in transit is lost.
    pub fn reset(&self) {
        self.relay.link.send_modify(|link| link.cuts += 1);
    }

    /// Holds back all data in both directions without closing anything. New connections are
    /// accepted and hang.
    pub fn black_hole(&self) {
        self.relay.link.send_modify(|link| link.mode = LinkMode::BlackHole);
    }

    /// Forwards requests to the apiserver and holds back the responses. New connections can be
    /// opened.
    pub fn hold_responses(&self) {
        self.relay.link.send_modify(|link| link.mode = LinkMode::HoldResponses);
    }

    /// Delays each request and each watch event by `delay`. A request whose sender gives up before
    /// that is not forwarded.
    pub fn slow(&self, delay: Duration) {
        self.relay.link.send_modify(|link| link.delay = delay);
    }

    /// Delays all bytes by `delay` in each direction, those of TLS handshakes included. Bytes that
    /// are in flight pass even if the link is cut off afterwards.
    pub fn slow_wire(&self, delay: Duration) {
        self.relay.link.send_modify(|link| link.wire_delay = delay);
    }

    /// Ends all faults and rules. The proxy forwards everything that it held back.
    pub fn heal(&self) {
        self.relay.rules.send_modify(Rules::heal_all);
        self.relay.link.send_modify(|link| {
            link.mode = LinkMode::Open;
            link.delay = Duration::ZERO;
            link.wire_delay = Duration::ZERO;
        });
    }

    /// Ends one fault. The proxy forwards everything that the fault held back.
    pub fn heal_one(&self, fault: &RequestCounter) {
        self.relay.rules.send_modify(|rules| rules.heal(fault.rule));
    }

    /// Applies `fault` to matching requests, as often as `times` determines. If several rules are
    /// due, the oldest one acts.
    pub fn fault(&self, matcher: Matcher, fault: Fault, times: Repeat) -> RequestCounter {
        self.add(matcher, Some(fault), times)
    }

    /// Responds to matching requests without forwarding them.
    pub fn respond(&self, matcher: Matcher, response: CannedResponse, times: Repeat) -> RequestCounter {
        self.fault(matcher, Fault::Respond(response), times)
    }

    /// Delays each part of the responses to matching requests, for example each event of a watch.
    /// Healing does not speed up a response that has already started.
    pub fn delay_responses(&self, matcher: Matcher, delay: Duration, times: Repeat) -> RequestCounter {
        self.fault(matcher, Fault::DelayResponse(delay), times)
    }

    /// Counts matching requests from now on, without a fault.
    pub fn count(&self, matcher: Matcher) -> RequestCounter {
        self.add(matcher, None, Repeat::UntilHealed)
    }

    fn add(&self, matcher: Matcher, fault: Option<Fault>, times: Repeat) -> RequestCounter {
        let mut rule = RuleId::default();
        self.relay
            .rules
            .send_modify(|rules| rule = rules.add(matcher, fault, times));
        let rules = self.relay.rules.subscribe();
        RequestCounter { rules, rule }
    }

    /// Returns the number of open connections. Hanging connections count even if their client is
    /// gone, because the proxy cannot know that.
    pub fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Returns how many connections the proxy has accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }
}

/// The counts of the requests that a rule of a [`FaultProxy`] has matched since it was added.
#[derive(Clone)]
pub struct RequestCounter {
    rules: watch::Receiver<Rules>,
    rule: RuleId,
}

impl RequestCounter {
    /// Returns how many requests have matched.
    pub fn matched(&self) -> u64 {
        self.counts().matched
    }

    /// Returns to how many requests the rule was applied.
    pub fn applied(&self) -> u64 {
        self.counts().applied
    }

    /// Waits until at least `count` requests have matched.
    ///
    /// # Errors
    /// Returns an error if this takes longer than `limit`, or if the proxy ends.
    pub async fn wait_for_matched(&self, count: u64, limit: Duration) -> Result<()> {
        self.until(limit, &format!("{count} matching requests"), |counts| {
            counts.matched >= count
        })
        .await
    }

    /// Waits until the rule was applied to at least `count` requests.
    ///
    /// # Errors
    /// Returns an error if this takes longer than `limit`, or if the proxy ends.
    pub async fn wait_for_applied(&self, count: u64, limit: Duration) -> Result<()> {
        let what = format!("the fault to be applied to {count} requests");
        self.until(limit, &what, |counts| counts.applied >= count).await
    }

    async fn until(&self, limit: Duration, what: &str, reached: impl Fn(RequestCounts) -> bool) -> Result<()> {
        let mut rules = self.rules.clone();
        let waited = timeout(limit, rules.wait_for(|rules| reached(rules.counts(self.rule)))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!(
                "the proxy ended during the wait for {what}; last seen: {:?}",
                self.counts()
            ),
            Err(_) => bail!(
                "timed out after {limit:?} waiting for {what}; last seen: {:?}",
                self.counts()
            ),
        }
    }

    fn counts(&self) -> RequestCounts {
        self.rules.borrow().counts(self.rule)
    }
}

/// Accepts clients. Dropping this future ends their connections.
async fn accept(listener: TcpListener, relay: Arc<Relay>, connections: watch::Sender<usize>, counted: Arc<AtomicU64>) {
    let mut open = JoinSet::new();
    loop {
        connections.send_replace(open.len());
        let accepted = tokio::select! {
            Some(_) = open.join_next() => continue,
            accepted = listener.accept(), if open.len() < CONNECTIONS => accepted,
        };
        let client = match accepted {
            Ok((client, _)) => client,
            // The client disconnected before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                tracing::error!(%error, "stopping the fault proxy after a failed accept");
                return;
            }
        };
        counted.fetch_add(1, Ordering::Relaxed);
        let link = *relay.link.borrow();
        if link.mode == LinkMode::Cut {
            let _ = client.set_zero_linger();
            continue;
        }
        let relay = Arc::clone(&relay);
        open.spawn(async move {
            if let Err(error) = relay.serve(client, link.cuts).await {
                tracing::debug!("closed a connection through the fault proxy: {error:#}");
            }
        });
    }
}

/// Returns an acceptor that presents the apiserver's certificate.
fn acceptor_of(folder: &Path) -> Result<TlsAcceptor> {
    let read = |name| fs::read_to_string(folder.join(name)).with_context(|| format!("failed to read {name}"));
    acceptor(&IssuedCertificate {
        certificate: read("apiserver.crt")?,
        key: read("apiserver.key")?,
    })
}

/// Returns an acceptor that presents a certificate.
pub(crate) fn acceptor(issued: &IssuedCertificate) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns a connector that trusts the administrator's certificate authority.
fn connector(config: &Config) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for root in config.root_cert.iter().flatten() {
        roots.add(root.clone().into())?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn apiserver(url: &str) -> Result<SocketAddr> {
    let uri: Uri = url.parse().with_context(|| format!("failed to parse the URL {url}"))?;
    let authority = uri.authority().with_context(|| format!("the URL {url} has no host"))?;
    let address = authority.as_str().parse();
    address.with_context(|| format!("the URL {url} has no IP address and port"))
}
