//! Opens the connection pool that the flags describe, and creates a client for each component.

use std::{path::PathBuf, sync::Arc, time::Duration};

use http::{HeaderValue, Uri};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt, RustlsTlsError},
    config::KubeconfigError,
};
use tokio::net::TcpStream;
use tower::{
    BoxError, ServiceBuilder,
    util::{BoxCloneSyncService, MapResponse},
};

use crate::{
    Fence, Metrics, Outage, ServerClock,
    call::{ApiService, CallContext},
    dial::Dialer,
    error_chain::RedactedAuthError,
    rate::RateLimiter,
};
use authorities::Authorities;
use credentials::{Credentials, CurrentPool, run_blocking};

pub(crate) mod authorities;
mod credentials;
mod load;

/// The time limit of a dial: the name lookup, the TCP connection and the TLS handshake.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// The idle time after which a connection is probed, and the time limit for unacknowledged data.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The flags for the connection to the apiserver. Flatten them into a command line.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Apiserver")]
#[group(skip)]
pub struct Args {
    /// Path to a kubeconfig file with authorization and the apiserver's location. Without it and
    /// without --master, the in-cluster configuration is used.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The address of the apiserver. Overrides the one in the kubeconfig.
    #[arg(long, value_name = "URL", value_parser = master)]
    pub master: Option<Uri>,
    /// The QPS limit for requests to the apiserver. 0, the default, disables the client-side limit:
    /// API Priority and Fairness limits requests, and the client honors Retry-After.
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = parse_qps)]
    pub kube_api_qps: f32,
    /// The number of requests that may exceed --kube-api-qps in a burst. Ignored while
    /// --kube-api-qps is 0.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    pub kube_api_burst: u32,
    /// Kubeconfigs that are merged as kubectl merges those of `$KUBECONFIG`, in this order. They
    /// are used if neither `kubeconfig` nor `master` is set. Not a flag.
    #[arg(skip)]
    pub merged_kubeconfigs: Vec<PathBuf>,
    /// The context to use instead of the current one. Not a flag.
    #[arg(skip)]
    pub context: Option<String>,
}

/// A text that is no limit of requests per second.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected 0 (no limit) or requests per second from 0.001 to 1000000")]
pub struct InvalidQps;

/// Parses the requests per second of a flag such as `--kube-api-qps`. 0 means no limit.
///
/// # Errors
///
/// Returns an error that names the valid values.
pub fn parse_qps(text: &str) -> Result<f32, InvalidQps> {
    match text.parse::<f32>() {
        Ok(rate) if rate == 0.0 || (0.001..=1e6).contains(&rate) => Ok(rate),
        _ => Err(InvalidQps),
    }
}

/// A value of `--master` that is not usable.
#[derive(Debug, thiserror::Error)]
#[error("expected a URL such as https://10.0.0.1:6443")]
struct InvalidMaster;

fn master(text: &str) -> Result<Uri, InvalidMaster> {
    let url = text.parse::<Uri>().ok();
    url.and_then(|url| address(&url)).ok_or(InvalidMaster)
}

/// Returns scheme, host, port and path of an apiserver's URL, or `None` when the URL is not usable.
/// Drops a user name and password, which Kubernetes clients do not send, so that the result is safe
/// in logs, errors and labels.
fn address(url: &Uri) -> Option<Uri> {
    let scheme = url.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"))?;
    let authority = host(url)?;
    let builder = Uri::builder().scheme(scheme).authority(authority);
    builder.path_and_query(url.path()).build().ok()
}

/// Returns `host:port`, or `host` when the URL has no port.
fn host(url: &Uri) -> Option<String> {
    let host = url.host().filter(|host| !host.is_empty())?;
    Some(match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    })
}

/// The settings of a connection that are not flags.
pub struct Settings {
    /// The program's `name/version`, which starts the user agent.
    pub program: String,
    /// The time limit of one call, including its body, from the time at which it has a connection.
    /// The wait for a connection has the same limit. Watches are exempt once they are open.
    pub call_limit: Duration,
    /// The fence that is checked before each mutating request.
    pub fence: Arc<dyn Fence>,
    /// The metrics that count requests.
    pub metrics: Metrics,
    /// Records every request. Share it with the other connections of the process.
    pub outage: Outage,
}

/// An error while setting up the connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of `--kubeconfig` cannot be read or used.
    #[error("failed to load --kubeconfig {path}")]
    LoadKubeconfig {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: KubeconfigError,
    },
    /// The file of `--kubeconfig` is not a valid kubeconfig.
    #[error("failed to parse --kubeconfig {path}: {problem}")]
    ParseKubeconfig {
        /// The file.
        path: PathBuf,
        /// The position and kind of the syntax error, without the text at that position: the parser
        /// quotes whole lines, including tokens.
        problem: String,
    },
    /// The certificates of the apiserver's CA are not valid PEM. The error leaves their text out,
    /// because the file may contain a key.
    #[error("failed to parse the CA certificates in {path}: they are not valid PEM; correct the file")]
    Authority {
        /// The file that contains them.
        path: PathBuf,
    },
    /// The kubeconfig does not have the context that was asked for.
    #[error("found no context {context:?} in {}; `kubectl config get-contexts` lists them", .path.display())]
    NoContext {
        /// The name of the context.
        context: String,
        /// The last kubeconfig that was read.
        path: PathBuf,
    },
    /// The process does not run in a pod with a service account.
    #[error("failed to load the in-cluster configuration; outside a cluster, set --kubeconfig or --master")]
    LoadInCluster(#[source] kube::config::InClusterError),
    /// The cluster's address in the configuration is not a usable URL.
    #[error("invalid apiserver address: it is not a URL such as https://10.0.0.1:6443")]
    Address,
    /// The kubeconfig sets `proxy-url`. The error leaves the URL out because it may contain a
    /// password.
    #[error(
        "proxy-url in the kubeconfig is not supported: Portreeve connects directly; remove proxy-url or use a tunnel"
    )]
    Proxy,
    /// TLS or the credentials cannot be set up.
    #[error("failed to set up TLS or credentials for {url}")]
    SetUp {
        /// The apiserver's address.
        url: Uri,
        /// The cause, without the output of a credential plugin.
        #[source]
        source: Box<kube::Error>,
    },
    /// The user agent contains characters that are not allowed in a header.
    #[error("invalid user agent {agent:?}")]
    UserAgent {
        /// The user agent.
        agent: String,
        /// The cause.
        #[source]
        source: http::header::InvalidHeaderValue,
    },
}

type PoolService = BoxCloneSyncService<http::Request<Body>, http::Response<Incoming>, BoxError>;

/// A pool of connections to one apiserver. Cheap to clone.
#[derive(Clone)]
pub struct Connection {
    pool: CurrentPool,
    /// The files of the credentials, or `None` when the connection was not opened from flags.
    credentials: Option<Arc<Credentials>>,
    authorities: Authorities,
    shared: Arc<CallContext>,
    program: String,
    namespace: String,
    url: Uri,
}

impl Connection {
    /// Loads the configuration from the flags and sets up the pool. Sends no request yet.
    ///
    /// Credential plugins run on a thread for blocking work, so the caller can handle signals while
    /// it awaits this function. A plugin that hangs occupies that thread until it exits. Dropping
    /// the runtime waits for the thread; `Runtime::shutdown_background` does not.
    ///
    /// `HTTPS_PROXY` is ignored: Portreeve connects directly.
    ///
    /// # Errors
    ///
    /// Returns an error that names the flag when the configuration cannot be read or used.
    pub async fn open(args: &Args, settings: Settings) -> Result<Self, Error> {
        let args = args.clone();
        run_blocking(move || {
            let limiter = RateLimiter::new(args.kube_api_qps, args.kube_api_burst);
            let (config, credentials) = Credentials::load(args)?;
            let connection = Self::with_config(config, limiter, settings)?;
            Ok(Self {
                credentials: Some(Arc::new(credentials)),
                ..connection
            })
        })
        .await
    }

    /// Sets up the pool from a loaded configuration, without a rate limit. Blocks on a credential
    /// plugin if the configuration has one.
    ///
    /// # Errors
    ///
    /// Returns an error when the address, TLS or the credentials cannot be used, or when the
    /// configuration sets a proxy.
    pub fn from_config(config: Config, settings: Settings) -> Result<Self, Error> {
        Self::with_config(config, None, settings)
    }

    fn with_config(mut config: Config, limiter: Option<RateLimiter>, settings: Settings) -> Result<Self, Error> {
        let url = server(&config)?;
        config.cluster_url = url.clone();
        Ok(Self {
            pool: CurrentPool::new(pool(&config)?),
            credentials: None,
            authorities: Authorities::of(&config),
            shared: Arc::new(CallContext {
                fence: settings.fence,
                limiter: limiter.map(Arc::new),
                metrics: settings.metrics,
                outage: settings.outage,
                server_clock: ServerClock::default(),
                limit: settings.call_limit,
                host: host(&url).unwrap_or_default(),
            }),
            program: settings.program,
            namespace: config.default_namespace,
            url,
        })
    }

    /// Returns a client for one component. It shares the connections and the middleware, and has
    /// its own name in the user agent.
    ///
    /// # Errors
    ///
    /// Returns an error when `component` contains characters that are not allowed in a header.
    pub fn client(&self, component: &str) -> Result<Client, Error> {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        let agent = format!("{} ({os}/{arch}) {component}", self.program);
        let user_agent = HeaderValue::from_str(&agent).map_err(|source| Error::UserAgent { agent, source })?;
        let calls = ApiService {
            inner: self.pool.clone(),
            shared: Arc::clone(&self.shared),
            user_agent,
        };
        Ok(Client::new(calls, self.namespace.clone()))
    }

    /// Returns the same connections behind another fence.
    #[must_use]
    pub fn with_fence(&self, fence: Arc<dyn Fence>) -> Self {
        let shared = CallContext {
            fence,
            ..CallContext::clone(&self.shared)
        };
        Self {
            shared: Arc::new(shared),
            ..self.clone()
        }
    }

    /// Returns the same connections with a rate limit of their own, in requests per second and with
    /// bursts.
    #[must_use]
    pub fn with_rate_limit(&self, qps: f32, burst: u32) -> Self {
        let shared = CallContext {
            limiter: RateLimiter::new(qps, burst).map(Arc::new),
            ..CallContext::clone(&self.shared)
        };
        Self {
            shared: Arc::new(shared),
            ..self.clone()
        }
    }

    /// Returns the record of outages.
    pub fn outage(&self) -> &Outage {
        &self.shared.outage
    }

    /// Returns the apiserver's clock.
    pub fn server_clock(&self) -> &ServerClock {
        &self.shared.server_clock
    }

    /// Returns the CA certificates with which this connection verifies the apiserver.
    pub fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Returns the apiserver's address.
    pub fn url(&self) -> &Uri {
        &self.url
    }
}

/// Returns the address of the apiserver in a configuration.
fn server(config: &Config) -> Result<Uri, Error> {
    if config.proxy_url.is_some() {
        return Err(Error::Proxy);
    }
    address(&config.cluster_url).ok_or(Error::Address)
}

/// Builds the pool with the credentials of a configuration. Blocks on a credential plugin if there
/// is one.
fn pool(config: &Config) -> Result<PoolService, Error> {
    build_pool(config).map_err(|source| Error::SetUp {
        url: config.cluster_url.clone(),
        source: Box::new(match source {
            kube::Error::Auth(source) => kube::Error::Service(RedactedAuthError::of(&source)),
            // The text quotes a line, which may be part of the key.
            kube::Error::RustlsTls(RustlsTlsError::InvalidIdentityPem(_)) => {
                kube::Error::Service("the client certificate or its key is not valid PEM".into())
            }
            other => other,
        }),
    })
}

/// Builds the innermost service: base URL, credentials and hyper's pool. Its clones share the
/// connections.
fn build_pool(config: &Config) -> Result<PoolService, kube::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // The addresses of the apiserver's name share this time.
    tcp.set_connect_timeout(Some(DIAL_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE / 3));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(KEEPALIVE));
    // A dropped connection must not deliver data that is still in the kernel's send buffer: the
    // call may have been dropped, or the process may have exited, because it lost its Lease.
    let tcp = MapResponse::new(tcp, |connection: TokioIo<TcpStream>| {
        // Setting the option fails only on a connection that is already closed.
        connection.inner().set_zero_linger().ok();
        connection
    });
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let dialer = Dialer::new(tls, DIAL_TIMEOUT);
    let pool: Pool<_, Body> = Pool::builder(TokioExecutor::new()).build(dialer);
    let service = ServiceBuilder::new()
        .map_err(RedactedAuthError::of_call)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(pool);
    Ok(BoxCloneSyncService::new(service))
}

#[cfg(test)]
mod tests;
