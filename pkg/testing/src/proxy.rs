//! A proxy before the apiserver that has the faults of a network and of a busy server, when a test wants them.
//!
//! It ends TLS with the apiserver's own certificate, so that it can tell requests apart, and opens one connection to the apiserver for
//! each of its clients'. Without a fault it changes nothing: bodies are streamed, a watch flows event by event. It speaks HTTP/1.1
//! only; there are no upgrades (`exec`, `attach`, `port-forward`), and client certificates get no further than here.

mod body_fault;
mod canned;
mod fault;
mod link;
mod relay;
mod rules;

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

use crate::control_plane::ControlPlane;
use link::LinkMode;
use relay::Relay;
use rules::{RequestCounts, RuleId, Rules};

pub use canned::CannedResponse;
pub use fault::{BodyFault, Fault};
pub use rules::{Matcher, Repeat};

/// Far more than a client opens. Beyond it they are accepted by the kernel alone, and hang as in a black hole until others end.
const CONNECTIONS: usize = 512;

/// A proxy of the test's own before the apiserver of a control plane, which it must not outlive. It ends with this handle, and every
/// connection through it.
///
/// Faults are in force from the moment that their method returns, for connections that are open as for new ones, until
/// [`heal`](Self::heal). [`cut`](Self::cut), [`black_hole`](Self::black_hole) and [`hold_responses`](Self::hold_responses) replace each other;
/// [`slow`](Self::slow) and [`fault`](Self::fault) go with each of them.
///
/// **What was held back goes on when it is healed**, as after an outage of a network: a request that hung in a black hole may reach
/// the apiserver long after its sender gave it up. A `cut` before the `heal` loses it instead.
///
/// Its tasks run on the runtime that it was started on, so a test that blocks its only thread blocks the proxy too.
pub struct FaultProxy {
    relay: Arc<Relay>,
    connections: watch::Sender<usize>,
    accepted: Arc<AtomicU64>,
    url: Uri,
    folder: PathBuf,
    _tasks: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy without a fault.
    ///
    /// # Errors
    /// When no port can be listened on, or the credentials of the control plane cannot be used.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("failed to listen on 127.0.0.1")?;
        let address = listener.local_addr().context("failed to find the proxy's port")?;
        let url = format!("https://{address}").parse().context("failed to make a URL")?;
        let relay = Arc::new(Relay {
            link: watch::Sender::default(),
            rules: watch::Sender::default(),
            acceptor: acceptor(plane.folder()).context("failed to use the apiserver's certificate")?,
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

    /// The configuration of a client that comes through here, from that of one that does not.
    pub fn config(&self, mut config: Config) -> Config {
        config.cluster_url = self.url.clone();
        config
    }

    /// The same as [`FaultProxy::config`] for a process: writes `proxy-<name>.kubeconfig` into the control plane's folder, in which
    /// `from`'s user comes through here. A name that is used again replaces the file.
    ///
    /// # Errors
    /// When `from` cannot be read or the new file not be written.
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

    /// Resets every open connection, and each new one at once. What was under way is lost.
    pub fn cut(&self) {
        self.relay.link.send_modify(|link| {
            link.cuts += 1;
            link.mode = LinkMode::Cut;
        });
    }

    /// Resets every open connection, and lets new ones pass as before. What was under way is lost.
    pub fn reset(&self) {
        self.relay.link.send_modify(|link| link.cuts += 1);
    }

    /// Lets nothing pass either way, and tells nobody: nothing is closed, new connections are accepted and hang.
    pub fn black_hole(&self) {
        self.relay.link.send_modify(|link| link.mode = LinkMode::BlackHole);
    }

    /// Lets requests pass to the apiserver, and holds their answers back. New connections can be opened.
    pub fn hold_responses(&self) {
        self.relay.link.send_modify(|link| link.mode = LinkMode::HoldResponses);
    }

    /// Passes each request on so much later, and each event of a watch. A request whose sender gives up meanwhile is not passed on.
    pub fn slow(&self, delay: Duration) {
        self.relay.link.send_modify(|link| link.delay = delay);
    }

    /// Ends every fault, and every rule that answers: what was held back goes on.
    pub fn heal(&self) {
        self.relay.rules.send_modify(Rules::heal_all);
        self.relay.link.send_modify(|link| {
            link.mode = LinkMode::Open;
            link.delay = Duration::ZERO;
        });
    }

    /// Ends this one: what it held back goes on.
    pub fn heal_one(&self, fault: &RequestCounter) {
        self.relay.rules.send_modify(|rules| rules.heal(fault.rule));
    }

    /// Does this to these requests, so many times. Of several rules that are due the oldest acts.
    pub fn fault(&self, matcher: Matcher, fault: Fault, times: Repeat) -> RequestCounter {
        self.add(matcher, Some(fault), times)
    }

    /// Answers these requests itself, so many times; they never reach the apiserver.
    pub fn respond(&self, matcher: Matcher, answer: CannedResponse, times: Repeat) -> RequestCounter {
        self.fault(matcher, Fault::Respond(answer), times)
    }

    /// Passes these requests on, so many of them, and each part of their answers back so much later: of a watch, its events. An answer
    /// that has begun stays late when it is healed.
    pub fn delay_responses(&self, matcher: Matcher, delay: Duration, times: Repeat) -> RequestCounter {
        self.fault(matcher, Fault::DelayResponse(delay), times)
    }

    /// Counts these requests from now on, and does nothing to them.
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

    /// How many connections are open now. Those that hang count, even when their client has gone: nobody has told the proxy.
    pub fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Waits until so many connections are open.
    ///
    /// # Errors
    /// When there are not within `limit`.
    pub async fn until_connections(&self, count: usize, limit: Duration) -> Result<()> {
        let mut connections = self.connections.subscribe();
        let reached = timeout(limit, connections.wait_for(|open| *open == count)).await;
        match reached {
            Ok(Ok(_)) => Ok(()),
            _ => bail!(
                "timed out after {limit:?} waiting for {count} connections; last seen: {}",
                self.connections()
            ),
        }
    }
}

/// What became of the requests that a rule of a [`FaultProxy`] means, since the rule was made.
#[derive(Clone)]
pub struct RequestCounter {
    rules: watch::Receiver<Rules>,
    rule: RuleId,
}

impl RequestCounter {
    /// How many have come.
    pub fn matched(&self) -> u64 {
        self.counts().matched
    }

    /// How many of them this rule acted on.
    pub fn applied(&self) -> u64 {
        self.counts().applied
    }

    /// Waits until so many have come, and returns at once when they have.
    ///
    /// # Errors
    /// When they have not within `limit`, or the proxy is gone.
    pub async fn wait_for_matched(&self, count: u64, limit: Duration) -> Result<()> {
        self.until(limit, &format!("{count} requests to be seen"), |counts| {
            counts.matched >= count
        })
        .await
    }

    /// Waits until this rule has acted on so many, and returns at once when it has.
    ///
    /// # Errors
    /// When it has not within `limit`, or the proxy is gone.
    pub async fn wait_for_applied(&self, count: u64, limit: Duration) -> Result<()> {
        let what = format!("{count} requests to be met by the fault");
        self.until(limit, &what, |counts| counts.applied >= count).await
    }

    async fn until(&self, limit: Duration, what: &str, reached: impl Fn(RequestCounts) -> bool) -> Result<()> {
        let mut rules = self.rules.clone();
        let waited = timeout(limit, rules.wait_for(|rules| reached(rules.counts(self.rule)))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!(
                "the proxy ended while {what} was waited for; last seen: {:?}",
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

/// Accepts clients for as long as it runs. The connections end with it.
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
            // The client was gone before we looked.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                tracing::error!(%error, "the fault proxy failed to accept a connection and ends");
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
                tracing::debug!("a connection through the fault proxy ended: {error:#}");
            }
        });
    }
}

/// Shows what the apiserver shows.
fn acceptor(folder: &Path) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(folder.join("apiserver.crt"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(folder.join("apiserver.key"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Trusts what the administrator trusts.
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
    let authority = uri.authority().with_context(|| format!("{url} names no server"))?;
    let address = authority.as_str().parse();
    address.with_context(|| format!("{url} names no address and port"))
}
