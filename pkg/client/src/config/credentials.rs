//! Reloads the credentials of a connection when their files change, by building another pool.
//!
//! The files are polled. Change notifications are unreliable here: Secret volumes swap symbolic
//! links, and network file systems send none.
//!
//! Architecture Invariant: no certificate, key, token or password reaches an error or a log.

use std::{
    convert::Infallible,
    fs,
    future::pending,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use kube::{Config, client::Body};
use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
};
use tower::{BoxError, Service, ServiceExt};

use super::{
    Args, Connection, Error, PoolService,
    authorities::pem,
    load::{Loaded, load},
    pool, server,
};
use crate::{Metrics, Outage, call::CallContext, error_chain};

/// The interval between two comparisons of the files. A poll and the next renewal fit into the
/// default renew deadline of 10 s. So a leader keeps its Lease when the certificate of the
/// apiserver and the file with its CA change at the same time.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The time limit of the request that tries changed credentials: a dial and a slow response.
/// Elections limit their calls to less than a dial may take.
const TRIAL_LIMIT: Duration = Duration::from_secs(20);

/// The pool that new requests use. The connections of a replaced pool are closed when their
/// requests have ended: calls by their time limit, and watches by their `timeoutSeconds`.
#[derive(Clone)]
pub(super) struct CurrentPool(Arc<watch::Sender<PoolService>>);

impl CurrentPool {
    pub(super) fn new(pool: PoolService) -> Self {
        Self(Arc::new(watch::Sender::new(pool)))
    }
}

impl Service<Request<Body>> for CurrentPool {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    /// Always ready, because the pool is chosen in `call`: the service may wait long for its call.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let pool = self.0.borrow().clone();
        Box::pin(pool.oneshot(request))
    }
}

/// The files that a configuration was loaded from, and a hash of their content.
#[derive(Clone)]
pub(super) struct Credentials {
    args: Args,
    files: Vec<PathBuf>,
    fingerprint: u64,
    /// Why the kubeconfig has no credentials, so that requests are anonymous.
    anonymous: Option<String>,
}

impl Credentials {
    /// Loads the configuration that the flags describe. Reads files, so it blocks.
    pub(super) fn load(args: Args) -> Result<(Config, Self), Error> {
        Self::load_with(args, load)
    }

    fn load_with(args: Args, mut load: impl FnMut(&Args) -> Result<Loaded, Error>) -> Result<(Config, Self), Error> {
        let files = load(&args)?.files;
        // The hash is taken before the files are read for use. If they change in between, or if the
        // second read depends on other files, the next poll notices it.
        let fingerprint = fingerprint(&files);
        let Loaded {
            config,
            files,
            anonymous,
        } = load(&args)?;
        let credentials = Self {
            args,
            files,
            fingerprint,
            anonymous,
        };
        Ok((config, credentials))
    }

    /// Returns whether the files have changed since the configuration was loaded. Reads files, so
    /// it blocks.
    fn have_changed(&self) -> bool {
        fingerprint(&self.files) != self.fingerprint
    }
}

/// Returns a hash of the files' paths and content, or of the kind of error for unreadable files.
fn fingerprint(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.hash(&mut hasher);
        fs::read(file).map_err(|error| error.kind()).hash(&mut hasher);
    }
    hasher.finish()
}

/// Changed credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Load(Error),
    #[error("the configuration now names the apiserver {found} instead of {current}; restart the daemon to use it")]
    OtherServer { current: Uri, found: Uri },
    #[error(
        "--kubeconfig {path} has no credentials any more: {reason}; correct it, or restart the daemon to send anonymous requests"
    )]
    Anonymous { path: PathBuf, reason: String },
    #[error("failed to reach {url} with the changed credentials")]
    Connect {
        url: Uri,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("{url} rejects the changed credentials (401 Unauthorized)")]
    Unauthorized { url: Uri },
    #[error("{url} answers {status}, which does not show whether it accepts the changed credentials")]
    Untested { url: Uri, status: StatusCode },
}

impl Connection {
    /// Reloads the credentials whenever their files change: the kubeconfig, the CA, the client
    /// certificate and its key. Never returns. `component` names this connection in logs and user
    /// agents.
    ///
    /// New requests use the changed credentials as soon as the apiserver accepts them. Until then,
    /// and when a file is broken or names another apiserver, the previous credentials remain in
    /// use. No request is interrupted.
    pub async fn reload_credentials(&self, component: &str) -> Infallible {
        let Some(mut current) = self.credentials.clone() else {
            return pending().await;
        };
        let reloads = &self.shared.metrics.credential_reloads;
        let mut last_failure = None;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            match self.reload_if_changed(&current, component).await {
                Ok(changed) => {
                    if let Some(changed) = changed {
                        current = Arc::new(changed);
                        reloads.with_label_values(&[Metrics::SUCCESS]).inc();
                        tracing::info!(component, "reloaded credentials");
                    } else if last_failure.is_some() {
                        tracing::info!(component, "found the previous credentials again");
                    }
                    last_failure = None;
                }
                Err(error) => {
                    reloads.with_label_values(&[Metrics::FAILURE]).inc();
                    let failure = Some(error_chain(&error));
                    if failure != last_failure {
                        tracing::warn!(component, err = failure, "keeping previous credentials");
                    }
                    last_failure = failure;
                }
            }
        }
    }

    /// Replaces the pool if the files differ from `current` and the apiserver accepts the changed
    /// credentials. Returns the new state of the files.
    async fn reload_if_changed(
        &self,
        current: &Arc<Credentials>,
        component: &str,
    ) -> Result<Option<Credentials>, ReloadError> {
        let (current, url) = (Arc::clone(current), self.url.clone());
        let changed = run_blocking(move || {
            if !current.have_changed() {
                return Ok(None);
            }
            let (mut config, changed) = Credentials::load(current.args.clone()).map_err(ReloadError::Load)?;
            let found = server(&config).map_err(ReloadError::Load)?;
            if found != url {
                return Err(ReloadError::OtherServer { current: url, found });
            }
            if let (None, Some(reason)) = (&current.anonymous, &changed.anonymous) {
                return Err(ReloadError::Anonymous {
                    path: changed.args.kubeconfig.clone().unwrap_or_default(),
                    reason: reason.clone(),
                });
            }
            config.cluster_url = found;
            Ok(Some((pool(&config).map_err(ReloadError::Load)?, pem(&config), changed)))
        });
        let Some((pool, authorities, changed)) = changed.await? else {
            return Ok(None);
        };
        self.try_out(&pool, component).await?;
        self.pool.0.send_replace(pool);
        self.authorities.replace(authorities);
        Ok(Some(changed))
    }

    /// Sends one request through a new pool. Succeeds if the response shows that the apiserver and
    /// this process trust each other.
    async fn try_out(&self, pool: &PoolService, component: &str) -> Result<(), ReloadError> {
        let url = self.url.clone();
        let shared = CallContext {
            limit: TRIAL_LIMIT,
            // A failure shows nothing about the apiserver.
            outage: Outage::default(),
            ..CallContext::clone(&self.shared)
        };
        let trial = Self {
            pool: CurrentPool::new(pool.clone()),
            shared: Arc::new(shared),
            ..self.clone()
        };
        let client = trial.client(component).map_err(ReloadError::Load)?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = Uri::from_static("/version");
        let response = async {
            let response = client.send(request).await?;
            let status = response.status();
            // The body is read, so that the next request can use the connection.
            response.into_body().collect().await?;
            Ok(status)
        };
        match response.await {
            Ok(StatusCode::UNAUTHORIZED) => Err(ReloadError::Unauthorized { url }),
            Ok(status) if shows_authentication(status) => Ok(()),
            Ok(status) => Err(ReloadError::Untested { url, status }),
            Err(source) => Err(ReloadError::Connect {
                url,
                source: Box::new(source),
            }),
        }
    }
}

/// Returns whether an apiserver sends a response with this status only after it has authenticated
/// the request. It may send a 5xx before that, and so may a load balancer.
fn shows_authentication(status: StatusCode) -> bool {
    status.is_success()
        || matches!(
            status,
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS
        )
}

/// Runs `work` on a thread for blocking work.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The work was cancelled because the runtime shuts down, which also ends the caller's task.
        Err(Err(_)) => pending().await,
    }
}

#[cfg(test)]
mod tests;
