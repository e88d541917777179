//! Discovery that keeps the set of served resources up to date.
//!
//! The task requests the aggregated discovery document at the start, whenever a
//! CustomResourceDefinition or an API service changes, and every 30 s. While nothing has changed,
//! the apiserver answers with an ETag and no body. The pure part is [`ServedResources`].
//!
//! Architecture Invariant: failures never remove known resources. A failed attempt changes nothing,
//! an empty response counts as a failure, and a group version that cannot be discovered keeps its
//! last known resources.

mod change_watches;
mod document;
mod requests;
mod served;

pub use served::{ServedResources, Verb};

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kube::Client;
use portreeve_api::{CRDS, Resource};
use portreeve_client::{ApiErrorKind, Outage};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Instrument;

use self::{
    change_watches::{Names, NamesSink},
    requests::{DiscoveryClient, Error},
};
use crate::{
    StatusReporter, Watch, WatchFailure,
    backoff::{Backoff, with_jitter},
    factory::SharedWatches,
    shared_watch::Attachment,
};

const SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices");

/// The interval between requests without a watch event. The watches may be forbidden, and
/// aggregated apiservers change their resources without an event.
const PERIOD: Duration = Duration::from_secs(30);
/// How long to collect watch events before a request. One change usually causes several events.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The delays between the requests that follow a watch event, in milliseconds. Discovery shows a
/// change later than the watch does: usually by tens of milliseconds, and by 500 ms on a busy
/// apiserver.
const EVENT_POLL_DELAYS: [u64; 13] = [30, 50, 100, 100, 100, 100, 100, 200, 200, 200, 500, 500, 1_000];
/// The minimum pause after a request, as a multiple of its duration, so that a stream of changes
/// does not keep the apiserver busy.
const PAUSE_FACTOR: u32 = 4;
/// The upper limit of that pause. If the apiserver is slow because of other clients, a longer pause
/// would not help it.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// How long watch events trigger no request after a failure. The time is shorter if the backoff is
/// shorter, and longer if the apiserver asks for a longer wait.
const FAILURE_HOLDOFF: Duration = Duration::from_secs(1);
/// How long the names of API services stay valid after the last contact while the apiserver rejects
/// the watch on them.
const NAMES_EXPIRY: Duration = Duration::from_mins(2);

/// Keeps the set of served resources up to date until it is dropped.
pub struct Discovery {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    stop_guard: DropGuard,
}

/// The end of an attempt: its number, counted from 1 on, and its failure.
type LastAttempt = (u64, Option<WatchFailure>);

/// The state that the handle shares with its task.
#[derive(Default)]
struct Shared {
    /// Notified by a watch event or by [`Discovery::refresh`].
    changed: Arc<Notify>,
    /// Notified by [`Discovery::read_now`].
    wanted: Notify,
    /// The number of attempts that have begun.
    begun: AtomicU64,
    ended: watch::Sender<LastAttempt>,
    reporter: StatusReporter,
    failures: AtomicU64,
    /// The names of the existing API services.
    services: Names,
}

impl Discovery {
    /// Starts discovery with `client`. The watches of CRDs and APIServices in `watches` trigger it.
    ///
    /// The receiver holds `None` until the first complete response and is notified only of changes.
    /// Must be called within a Tokio runtime.
    pub fn start(client: Client, watches: &SharedWatches) -> (Self, watch::Receiver<Option<Arc<ServedResources>>>) {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let shared = Arc::<Shared>::default();
        let (tx, rx) = watch::channel(None);
        let sink = |names: &Names| NamesSink {
            changed: Arc::clone(&shared.changed),
            names: Arc::clone(names),
            listed: BTreeMap::new(),
        };
        // Only the changes of the definitions matter, not their names.
        let (crds, services) = (sink(&Names::default()), sink(&shared.services));
        let discovery_loop = DiscoveryLoop {
            client: DiscoveryClient::new(client),
            shared: Arc::clone(&shared),
            crds: watches.attach(Watch::all(CRDS), crds),
            services: watches.attach(Watch::all(SERVICES), services),
            tx,
            outage: watches.outage().clone(),
            backoff: Backoff::new(),
            reported: BTreeSet::new(),
        };
        let run = discovery_loop.run().instrument(tracing::info_span!("discovery"));
        tasks.spawn(stop.clone().run_until_cancelled_owned(run));
        let stop_guard = stop.drop_guard();
        (
            Self {
                shared,
                tasks,
                stop_guard,
            },
            rx,
        )
    }

    /// Requests discovery soon, as after a watch event. Call it when another source shows that the
    /// known resources may be out of date.
    pub fn refresh(&self) {
        self.shared.changed.notify_one();
    }

    /// Reads discovery, and returns when an attempt has ended that began after this call.
    /// Concurrent calls share an attempt. The known resources are then up to date, as far as the
    /// apiserver that answered knows them.
    ///
    /// # Errors
    ///
    /// Returns the failure of the attempt. While attempts fail, the next one may have to wait for
    /// the end of a backoff.
    pub async fn read_now(&self) -> Result<(), WatchFailure> {
        let begun = self.shared.begun.load(Ordering::Relaxed);
        let mut ended = self.shared.ended.subscribe();
        self.shared.wanted.notify_one();
        // The sender is a field of `self`, so it is not closed.
        let last = ended.wait_for(|(number, _)| *number > begun).await;
        last.map_or(Ok(()), |last| last.1.clone().map_or(Ok(()), Err))
    }

    /// Returns whether an aggregated apiserver serves the resource. It usually has its own store,
    /// so its resourceVersions are independent of those of other resources.
    pub fn is_aggregated(&self, resource: &Resource) -> bool {
        let service = format!("{}.{}", resource.version, resource.group);
        self.shared.services.lock().get(&*service) == Some(&false)
    }

    /// Returns how many attempts have failed since the start. An attempt counts once, however many
    /// requests it sends.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// Returns the current failure, or `None` while discovery succeeds. During a failure the known
    /// resources may be out of date.
    pub fn failure(&self) -> Option<WatchFailure> {
        self.shared.reporter.status().failure
    }

    /// Stops all tasks and waits until they have ended.
    pub async fn stop(self) {
        let Self {
            shared: _,
            tasks,
            stop_guard,
        } = self;
        drop(stop_guard);
        tasks.close();
        tasks.wait().await;
    }
}

/// The task that requests discovery and publishes the result.
struct DiscoveryLoop {
    client: DiscoveryClient,
    shared: Arc<Shared>,
    /// The readers whose events trigger discovery.
    crds: Attachment,
    services: Attachment,
    tx: watch::Sender<Option<Arc<ServedResources>>>,
    outage: Outage,
    backoff: Backoff,
    /// The failed group versions that are already logged.
    reported: BTreeSet<Box<str>>,
}

impl DiscoveryLoop {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut poll_delays = [].iter();
        loop {
            // This attempt is for every caller of `read_now` so far.
            pin!(shared.wanted.notified()).enable();
            let number = shared.begun.fetch_add(1, Ordering::Relaxed) + 1;
            let started = Instant::now();
            let outages = self.outage.count();
            let result = self.client.fetch().await;
            let pause = MAX_PAUSE.min(started.elapsed() * PAUSE_FACTOR);
            let mut is_unavailable = false;
            let (holdoff, wait) = match result {
                Ok(()) => {
                    self.publish();
                    let next = poll_delays.next().map(|delay| pause.max(Duration::from_millis(*delay)));
                    let wait = next.unwrap_or_else(|| self.log_failed_versions());
                    (Duration::ZERO, wait)
                }
                Err(error) => {
                    let requested = with_jitter(error.retry_after());
                    is_unavailable = error.is_unavailable() && requested.is_zero();
                    let wait = self.fail(&error, requested);
                    (wait.min(FAILURE_HOLDOFF).max(requested), wait)
                }
            };
            let failure = shared.reporter.status().failure;
            shared.ended.send_replace((number, failure));
            let next = async {
                sleep(holdoff).await;
                tokio::select! {
                    () = sleep(wait.saturating_sub(holdoff)) => {}
                    () = shared.changed.notified() => {
                        poll_delays = EVENT_POLL_DELAYS.iter();
                        sleep(pause.max(DEBOUNCE)).await;
                    }
                    () = shared.wanted.notified() => sleep(pause).await,
                }
            };
            tokio::select! {
                () = next => {}
                () = self.outage.ended(outages), if is_unavailable => self.backoff = Backoff::new(),
            }
        }
    }

    /// Publishes the known resources if they have changed.
    fn publish(&mut self) {
        if self.shared.reporter.record_contact(Instant::now()) {
            tracing::info!("resumed discovery");
        }
        self.backoff = Backoff::new();
        let before = self.tx.borrow().clone();
        let known = before.as_deref();
        let none_known = ServedResources::default();
        let served = known
            .unwrap_or(&none_known)
            .updated_by(&self.client.groups(), &self.services());
        if known == Some(&served) {
            return;
        }
        if let Some(known) = known {
            let (added, removed) = (served.names_missing_from(known), known.names_missing_from(&served));
            // This does not log changes of verbs. `log_failed_versions` logs group versions that
            // stay undiscovered.
            if !(added.is_empty() && removed.is_empty()) {
                tracing::info!(added, removed, "updated known resources");
            }
        }
        self.tx.send_replace(Some(Arc::new(served)));
        self.crds.wake();
        self.services.wake();
    }

    /// Returns the names of the API services that are known to exist, and whether the apiserver
    /// itself serves them.
    ///
    /// If the watch no longer updates the names, deleted services would stay known forever, so the
    /// names expire. They do not expire at once, because a starting apiserver may reject every
    /// request for a moment.
    fn services(&self) -> BTreeMap<Box<str>, bool> {
        let status = self.services.status();
        let is_rejected = status
            .failure()
            .is_some_and(|failure| matches!(failure.kind, ApiErrorKind::Forbidden | ApiErrorKind::NotFound));
        let is_recent = status
            .last_contact()
            .is_some_and(|contact| contact.elapsed() < NAMES_EXPIRY);
        if is_rejected && !is_recent {
            return BTreeMap::new();
        }
        let services = self.shared.services.lock();
        services
            .iter()
            .map(|(name, is_local)| (name.clone(), *is_local))
            .collect()
    }

    /// Logs each group version that newly fails or is discovered again, and returns the wait until
    /// the next request. Called once the requests that follow an event are done.
    fn log_failed_versions(&mut self) -> Duration {
        let served = self.tx.borrow().clone().unwrap_or_default();
        let failed: BTreeSet<Box<str>> = served.failed().map(Into::into).collect();
        for version in failed.difference(&self.reported) {
            tracing::warn!(%version, "keeping the last known resources of a group version that cannot be discovered");
        }
        for version in self.reported.difference(&failed) {
            tracing::info!(%version, "resumed discovery of group version");
        }
        self.reported = failed;
        PERIOD
    }

    /// Records the failure and returns how long to wait before the next request: at least as long
    /// as `requested`.
    fn fail(&mut self, error: &Error, requested: Duration) -> Duration {
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        let failure = error.failure();
        let reason = failure.message.clone();
        let mut delay = self.backoff.wait().max(requested);
        if error.is_unavailable() {
            delay = delay.max(self.outage.min_wait());
        }
        if self.shared.reporter.record_failure(failure) {
            tracing::warn!(reason, "retrying failed discovery; keeping the known resources");
        } else {
            tracing::debug!(reason, ?delay, "backing off");
        }
        delay
    }
}

#[cfg(test)]
mod tests;
