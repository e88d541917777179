//! `--tls-secret`: serves the certificate in a Secret. Every replica watches the Secret, whether it
//! leads or not. serving-certificate-controller maintains it, or somebody else.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use portreeve_client::error_chain;
use portreeve_reconcile::Clock;
use portreeve_serving::{CertificateSink, Check, HealthChecker, Metrics};
use tokio::time::{Instant, sleep, timeout};

/// The name of the check in `/readyz`.
const CHECK: &str = "servingCertificate";
/// The maximum duration of one watch, in seconds. A dead connection can go unnoticed for that long.
const MAX_WATCH_SECONDS: u32 = 60;
/// The pause after a failed watch. A watch that ends sooner counts as failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The certificate in the Secret of `--tls-secret`.
pub(crate) struct SecretCertificate {
    /// Namespace and name, as in the flag.
    secret: String,
    sink: CertificateSink,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// What is known about the certificate.
struct State {
    /// The content of the Secret that was used or rejected last.
    last: Option<(Option<ByteString>, Option<ByteString>)>,
    /// When the certificate that is served expires; `None` before the first one.
    expires_at: Option<Timestamp>,
    /// Why the last content of the Secret is not served.
    problem: Option<String>,
}

impl SecretCertificate {
    /// Returns a certificate that is not loaded yet. `secret` is `namespace/name`.
    pub(crate) fn new(secret: &str, sink: CertificateSink, metrics: Metrics, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            secret: secret.to_owned(),
            sink,
            metrics,
            clock,
            state: Mutex::new(State {
                last: None,
                expires_at: None,
                problem: Some("it has not been read yet".to_owned()),
            }),
        })
    }

    /// Follows the Secret. Never returns.
    pub(crate) async fn follow(&self, client: Client) -> Infallible {
        let (namespace, name) = self.secret.split_once('/').unwrap_or(("default", &self.secret));
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let parameters = WatchParams::default()
            .fields(&format!("metadata.name={name}"))
            .timeout(MAX_WATCH_SECONDS);
        let limit = Duration::from_secs(MAX_WATCH_SECONDS.into()) + PAUSE;
        let mut last_failure = None;
        loop {
            let started = Instant::now();
            let watched = timeout(limit, self.watch_once(&secrets, &parameters)).await;
            let failure = match watched {
                Ok(Err(error)) => Some(error_chain(&error)),
                Ok(Ok(())) | Err(_) => None,
            };
            if failure.is_some() && failure != last_failure {
                tracing::warn!(
                    secret = self.secret,
                    err = failure,
                    "failed to watch the serving certificate"
                );
            }
            last_failure = failure;
            if started.elapsed() < PAUSE {
                sleep(PAUSE).await;
            }
        }
    }

    /// Runs one watch, from any version that the apiserver has cached. It begins with the Secret.
    async fn watch_once(&self, secrets: &Api<Secret>, parameters: &WatchParams) -> kube::Result<()> {
        let watch = secrets.watch(parameters, "0").await;
        let mut events = std::pin::pin!(watch.inspect_err(|error| self.report_failure(error))?);
        // The watch begins with the Secret. If it has not come after a pause, it does not exist.
        let mut is_known = false;
        let mut pause = std::pin::pin!(sleep(PAUSE));
        loop {
            let event = tokio::select! {
                event = events.try_next() => event?,
                () = &mut pause, if !is_known => {
                    is_known = true;
                    self.report_missing();
                    continue;
                }
            };
            match event {
                Some(WatchEvent::Added(secret) | WatchEvent::Modified(secret)) => {
                    is_known = true;
                    self.load(secret.data.unwrap_or_default());
                }
                Some(WatchEvent::Deleted(_)) => {
                    is_known = true;
                    self.report_missing();
                }
                Some(WatchEvent::Bookmark(_)) => {}
                Some(WatchEvent::Error(status)) => return Err(kube::Error::Api(status)),
                None => return Ok(()),
            }
        }
    }

    fn report_failure(&self, error: &kube::Error) {
        let mut state = self.state.lock();
        if state.expires_at.is_none() {
            state.problem = Some(error_chain(error));
        }
    }

    /// Records that the Secret does not exist. The certificate that was loaded remains in use.
    fn report_missing(&self) {
        let mut state = self.state.lock();
        let problem = "the Secret does not exist; with --tls-issue-names, the leader creates it";
        if state.problem.as_deref() != Some(problem) {
            tracing::warn!(
                secret = self.secret,
                "waiting for the secret of the serving certificate, which does not exist"
            );
        }
        (state.last, state.problem) = (None, Some(problem.to_owned()));
        self.metrics.count_unusable_certificate();
    }

    /// Serves the certificate in the Secret. If it cannot be used, the previous one remains.
    fn load(&self, mut data: BTreeMap<String, ByteString>) {
        let content = (data.remove("tls.crt"), data.remove("tls.key"));
        let mut state = self.state.lock();
        // Content that cannot be used is tried again at each watch: a certificate may become valid.
        if state.last.as_ref() == Some(&content) && state.problem.is_none() {
            return;
        }
        let loaded = match &content {
            (Some(certificate), Some(key)) => {
                let now = self.clock.now();
                let replaced = self.sink.replace(&self.secret, &certificate.0, &key.0, now);
                replaced.map_err(|error| error_chain(&error))
            }
            _ => Err("the Secret has no tls.crt and tls.key yet".to_owned()),
        };
        state.last = Some(content);
        match loaded {
            Ok(expires_at) => {
                tracing::info!(secret = self.secret, %expires_at, "loaded the serving certificate");
                (state.expires_at, state.problem) = (Some(expires_at), None);
            }
            Err(problem) => {
                self.metrics.count_unusable_certificate();
                let is_empty = state.last == Some((None, None));
                if is_empty && state.expires_at.is_none() {
                    tracing::debug!(secret = self.secret, "waiting for the serving certificate");
                } else if state.problem.as_ref() != Some(&problem) {
                    tracing::warn!(
                        secret = self.secret,
                        err = problem,
                        "keeping previous serving certificate, because the secret has no usable one"
                    );
                }
                state.problem = Some(problem);
            }
        }
    }

    /// Returns whether a certificate of the Secret has been loaded. It may have expired since.
    pub(crate) fn is_loaded(&self) -> bool {
        self.state.lock().expires_at.is_some()
    }

    /// Returns whether the Secret has a certificate that cannot be used. The listener then serves
    /// another one.
    pub(crate) fn is_refused(&self) -> bool {
        let state = self.state.lock();
        let has_certificate = matches!(&state.last, Some((Some(_), Some(_))));
        has_certificate && state.problem.is_some()
    }

    /// Returns `checker` with a check of the certificate.
    pub(crate) fn add_check(self: &Arc<Self>, checker: HealthChecker) -> HealthChecker {
        let certificate = Arc::clone(self);
        Arc::new(move || {
            let mut checks = checker();
            checks.push(certificate.check(certificate.clock.now()));
            checks
        })
    }

    /// Never fails: probes do not verify the certificate, and a replica of a new version must
    /// become ready before it can lead and issue the first certificate.
    fn check(&self, now: Timestamp) -> Check {
        let state = self.state.lock();
        let problem = match (&state.problem, state.expires_at) {
            (Some(problem), _) => problem.clone(),
            (None, Some(expired)) if expired <= now => format!("the certificate expired at {expired}"),
            (None, _) => return Check::ok(CHECK),
        };
        Check::note(CHECK, format!("cannot use --tls-secret={}: {problem}", self.secret))
    }
}
