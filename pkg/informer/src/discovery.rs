//! Discovery that follows the cluster: what is served, kept up to date.
//!
//! The one document that has everything is asked for at the start, whenever a CustomResourceDefinition or an API service is heard to
//! change, and twice a minute anyway; as long as nothing changed, the answer is a tag. The pure part is [`ServedResources`].
//!
//! Architecture Invariant: what is known outlives failures. An attempt that fails changes nothing, an empty answer is a failure, and a
//! group version that cannot be discovered keeps what it had.

mod change_watches;
mod document;
mod requests;
mod served;

pub use served::{ServedResources, Verb};

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kube::Client;
use portreeve_api::{CRDS, Resource};
use portreeve_client::ApiErrorKind;
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
    change_watches::{ApiServiceNames, Definitions, Services},
    requests::{DiscoveryClient, Error},
};
use crate::{InformerConfig, ReflectorConfig, Sink, StatusReporter, Watch, WatchFailure, backoff::Backoff, reflect};

const SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices");

/// How often to ask when nothing is heard. Watches may be forbidden, and aggregated apiservers change what they serve without a word.
const PERIOD: Duration = Duration::from_secs(30);
/// A change comes as several events; what comes within this time is answered together.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// The waits between the attempts after a change was heard, in milliseconds: discovery shows it later than the watch,
/// by some hundredths of a second, and on a busy apiserver by half a second.
const HURRY: [u64; 13] = [30, 50, 100, 100, 100, 100, 100, 200, 200, 200, 500, 500, 1_000];
/// The rest after an attempt in a hurry, in multiples of its own time, so that a stream of changes does not keep the apiserver busy.
const REST: u32 = 4;
/// An apiserver that takes long to answer is busy with others.
const LONGEST_REST: Duration = Duration::from_millis(200);
/// How long news wait after a failure, unless the apiserver asks for longer.
const CALM: Duration = Duration::from_secs(1);
/// When the names of API services count no longer, if the apiserver refuses to tell more of them.
const OUTDATED: Duration = Duration::from_mins(2);

/// Follows what is served. Ends when it is dropped.
pub struct Discovery {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    ends: DropGuard,
}

/// What the handle and its task share.
#[derive(Default)]
struct Shared {
    /// Something changed, or somebody asked.
    changed: Arc<Notify>,
    reporter: StatusReporter,
    failures: AtomicU64,
}

impl Discovery {
    /// Follows what is served at `client`'s apiserver. The receiver has `None` until the first complete answer, and is told of nothing but
    /// changes. Has to be called within a runtime.
    pub fn start(
        client: Client,
        informer_config: &InformerConfig,
    ) -> (Self, watch::Receiver<Option<Arc<ServedResources>>>) {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let shared = Arc::<Shared>::default();
        let (tx, rx) = watch::channel(None);
        let (names, wake) = (ApiServiceNames::default(), Arc::<Notify>::default());
        let names_reporter = StatusReporter::default();
        let reflector_config = |resource, reporter| ReflectorConfig {
            client: client.clone(),
            watch: Watch::all(resource),
            page_size: informer_config.page_size,
            idle_timeout: informer_config.idle_timeout,
            reporter,
            wake: Arc::clone(&wake),
            definition_deleted: Arc::default(),
            // Nobody takes over these: they never begin a term.
            terms: watch::channel(0).1,
            // Not every apiserver serves both.
            is_optional: true,
        };
        let definitions = Definitions {
            changed: Arc::clone(&shared.changed),
        };
        let services = Services {
            changed: Arc::clone(&shared.changed),
            names: Arc::clone(&names),
            listed: BTreeSet::new(),
        };
        spawn_watch(
            &tasks,
            &stop,
            reflector_config(CRDS, StatusReporter::default()),
            definitions,
        );
        spawn_watch(
            &tasks,
            &stop,
            reflector_config(SERVICES, names_reporter.clone()),
            services,
        );
        let follower = Follower {
            client: DiscoveryClient::new(client),
            shared: Arc::clone(&shared),
            names,
            names_reporter,
            wake,
            tx,
            backoff: Backoff::new(),
            reported: BTreeSet::new(),
        };
        let run = follower.run().instrument(tracing::info_span!("discovery"));
        tasks.spawn(stop.clone().run_until_cancelled_owned(run));
        let ends = stop.drop_guard();
        (Self { shared, tasks, ends }, rx)
    }

    /// Asks again soon, as when a change was heard: for those who notice by other means that what is known may be out of date.
    pub fn refresh(&self) {
        self.shared.changed.notify_one();
    }

    /// How many attempts failed since the start, each as a whole.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// Why it does not make progress now, if it does not. What is known may be out of date then.
    pub fn failure(&self) -> Option<WatchFailure> {
        self.shared.reporter.status().failure
    }

    /// Ends it, and waits until it has.
    pub async fn stop(self) {
        let Self { shared: _, tasks, ends } = self;
        drop(ends);
        tasks.close();
        tasks.wait().await;
    }
}

/// Starts a watch that is good for news.
fn spawn_watch<S: Sink>(tasks: &TaskTracker, stop: &CancellationToken, reflector_config: ReflectorConfig, sink: S) {
    let span = tracing::info_span!("discovery", resource = %reflector_config.watch);
    let reflecting = reflect(reflector_config, sink).instrument(span);
    tasks.spawn(stop.clone().run_until_cancelled_owned(reflecting));
}

/// The task that asks.
struct Follower {
    client: DiscoveryClient,
    shared: Arc<Shared>,
    names: ApiServiceNames,
    names_reporter: StatusReporter,
    /// Wakes the watches on what was not served.
    wake: Arc<Notify>,
    tx: watch::Sender<Option<Arc<ServedResources>>>,
    backoff: Backoff,
    /// The failed group versions that the log knows of.
    reported: BTreeSet<Box<str>>,
}

impl Follower {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut hurry = [].iter();
        loop {
            let asked = Instant::now();
            let answer = self.client.fetch().await;
            let rest = LONGEST_REST.min(asked.elapsed() * REST);
            let (calm, wait) = match answer {
                Ok(()) => {
                    self.publish();
                    let next = hurry.next().map(|wait| rest.max(Duration::from_millis(*wait)));
                    let wait = next.unwrap_or_else(|| self.settle());
                    (Duration::ZERO, wait)
                }
                Err(error) => {
                    let wait = self.fail(&error);
                    (wait.min(CALM).max(error.retry_after()), wait)
                }
            };
            sleep(calm).await;
            tokio::select! {
                () = sleep(wait.saturating_sub(calm)) => {}
                () = shared.changed.notified() => {
                    hurry = HURRY.iter();
                    sleep(rest.max(DEBOUNCE)).await;
                }
            }
        }
    }

    /// Publishes what is known now, if that is news.
    fn publish(&mut self) {
        if self.shared.reporter.record_contact(Instant::now()) {
            tracing::info!("discovery is back");
        }
        self.backoff = Backoff::new();
        let before = self.tx.borrow().clone();
        let known = before.as_deref();
        let nothing = ServedResources::default();
        let served = known
            .unwrap_or(&nothing)
            .updated_by(&self.client.groups(), &self.services());
        if known == Some(&served) {
            return;
        }
        if let Some(known) = known {
            let (added, removed) = (served.names_missing_from(known), known.names_missing_from(&served));
            // Verbs change too, and what could not be discovered is told of when it lasts.
            if !(added.is_empty() && removed.is_empty()) {
                tracing::info!(added, removed, "what is served has changed");
            }
        }
        self.tx.send_replace(Some(Arc::new(served)));
        self.wake.notify_waiters();
    }

    /// The API services that are known to exist. Names that are no longer kept up to date would keep for ever what is gone; but an
    /// apiserver that starts may refuse everything for a moment.
    fn services(&self) -> BTreeSet<Box<str>> {
        let status = self.names_reporter.status();
        let is_refused = status
            .failure
            .is_some_and(|failure| matches!(failure.kind, ApiErrorKind::Forbidden | ApiErrorKind::NotFound));
        let is_recent = status.last_contact.is_some_and(|contact| contact.elapsed() < OUTDATED);
        if is_refused && !is_recent {
            return BTreeSet::new();
        }
        self.names.lock().clone()
    }

    /// Nothing more is expected to change for now: says once of each group version that it cannot be discovered, and once that it can be
    /// again.
    fn settle(&mut self) -> Duration {
        let served = self.tx.borrow().clone().unwrap_or_default();
        let failed: BTreeSet<Box<str>> = served.failed().map(Into::into).collect();
        for version in failed.difference(&self.reported) {
            tracing::warn!(%version, "not discovered, what it served before is kept");
        }
        for version in self.reported.difference(&failed) {
            tracing::info!(%version, "no longer fails to be discovered");
        }
        self.reported = failed;
        PERIOD
    }

    /// Notes the failure, and returns how long to wait.
    fn fail(&mut self, error: &Error) -> Duration {
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        let failure = error.failure();
        let reason = failure.message.clone();
        let delay = self.backoff.wait().max(error.retry_after());
        if self.shared.reporter.record_failure(failure) {
            tracing::warn!(reason, "discovery failed, trying again; what is known is kept");
        } else {
            tracing::debug!(reason, ?delay, "backing off");
        }
        delay
    }
}

#[cfg(test)]
mod tests;
