//! Discovery that follows the cluster: what is served, kept up to date.
//!
//! The one document that has everything is asked for at the start, whenever a CustomResourceDefinition or an API service is heard to
//! change, and twice a minute anyway; as long as nothing changed, the answer is a tag. The pure part is [`Served`].
//!
//! Architecture Invariant: what is known outlives failures. An attempt that fails changes nothing, an empty answer is a failure, and a
//! group version that cannot be discovered keeps what it had.

mod ask;
mod document;
mod news;
mod served;

pub use served::{Served, Verb};

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
use portreeve_client::Answer;
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
    ask::{Asker, Error},
    news::{Definitions, Names, Services},
};
use crate::{Loop, Reporting, Sink, Trouble, Tuning, Watch, backoff::Backoff, reflect};

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
    news: Arc<Notify>,
    reporting: Reporting,
    failures: AtomicU64,
}

impl Discovery {
    /// Follows what is served at `client`'s apiserver. The receiver has `None` until the first complete answer, and is told of nothing but
    /// changes. Has to be called within a runtime.
    pub fn follow(client: Client, tuning: &Tuning) -> (Self, watch::Receiver<Option<Arc<Served>>>) {
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let shared = Arc::<Shared>::default();
        let (tx, rx) = watch::channel(None);
        let (names, wake) = (Names::default(), Arc::<Notify>::default());
        let names_reporting = Reporting::default();
        let watch_loop = |resource, reporting| Loop {
            client: client.clone(),
            watch: Watch::all(resource),
            page_size: tuning.page_size,
            idle_limit: tuning.idle_limit,
            reporting,
            wake: Arc::clone(&wake),
            gone: Arc::default(),
            // Nobody takes over these: they never begin a term.
            terms: watch::channel(0).1,
            // Not every apiserver serves both.
            may_vanish: true,
        };
        let definitions = Definitions {
            news: Arc::clone(&shared.news),
        };
        let services = Services {
            news: Arc::clone(&shared.news),
            names: Arc::clone(&names),
            listed: BTreeSet::new(),
        };
        hear(&tasks, &stop, watch_loop(CRDS, Reporting::default()), definitions);
        hear(&tasks, &stop, watch_loop(SERVICES, names_reporting.clone()), services);
        let follower = Follower {
            asker: Asker::new(client),
            shared: Arc::clone(&shared),
            names,
            names_reporting,
            wake,
            tx,
            backoff: Backoff::new(),
            told: BTreeSet::new(),
        };
        let run = follower.run().instrument(tracing::info_span!("discovery"));
        tasks.spawn(stop.clone().run_until_cancelled_owned(run));
        let ends = stop.drop_guard();
        (Self { shared, tasks, ends }, rx)
    }

    /// Asks again soon, as when a change was heard: for those who notice by other means that what is known may be out of date.
    pub fn ask_again(&self) {
        self.shared.news.notify_one();
    }

    /// How many attempts failed since the start, each as a whole.
    pub fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::Relaxed)
    }

    /// Why it does not make progress now, if it does not. What is known may be out of date then.
    pub fn trouble(&self) -> Option<Trouble> {
        self.shared.reporting.noted().trouble
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
fn hear<S: Sink>(tasks: &TaskTracker, stop: &CancellationToken, watch_loop: Loop, sink: S) {
    let span = tracing::info_span!("discovery", resource = %watch_loop.watch);
    let reflecting = reflect(watch_loop, sink).instrument(span);
    tasks.spawn(stop.clone().run_until_cancelled_owned(reflecting));
}

/// The task that asks.
struct Follower {
    asker: Asker,
    shared: Arc<Shared>,
    names: Names,
    names_reporting: Reporting,
    /// Wakes the watches on what was not served.
    wake: Arc<Notify>,
    tx: watch::Sender<Option<Arc<Served>>>,
    backoff: Backoff,
    /// The failed group versions that the log knows of.
    told: BTreeSet<Box<str>>,
}

impl Follower {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut hurry = [].iter();
        loop {
            let asked = Instant::now();
            let answer = self.asker.ask().await;
            let rest = LONGEST_REST.min(asked.elapsed() * REST);
            let (calm, wait) = match answer {
                Ok(()) => {
                    self.take_in();
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
                () = shared.news.notified() => {
                    hurry = HURRY.iter();
                    sleep(rest.max(DEBOUNCE)).await;
                }
            }
        }
    }

    /// Publishes what is known now, if that is news.
    fn take_in(&mut self) {
        if self.shared.reporting.contact(Instant::now()) {
            tracing::info!("discovery is back");
        }
        self.backoff = Backoff::new();
        let before = self.tx.borrow().clone();
        let known = before.as_deref();
        let nothing = Served::default();
        let served = known.unwrap_or(&nothing).after(&self.asker.answers(), &self.services());
        if known == Some(&served) {
            return;
        }
        if let Some(known) = known {
            let (added, removed) = (served.beyond(known), known.beyond(&served));
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
        let noted = self.names_reporting.noted();
        let is_refused = noted
            .trouble
            .is_some_and(|trouble| matches!(trouble.answer, Answer::Forbidden | Answer::NotFound));
        let is_recent = noted.last_contact.is_some_and(|contact| contact.elapsed() < OUTDATED);
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
        for version in failed.difference(&self.told) {
            tracing::warn!(%version, "not discovered, what it served before is kept");
        }
        for version in self.told.difference(&failed) {
            tracing::info!(%version, "no longer fails to be discovered");
        }
        self.told = failed;
        PERIOD
    }

    /// Notes the failure, and returns how long to wait.
    fn fail(&mut self, error: &Error) -> Duration {
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        let trouble = error.trouble();
        let reason = trouble.message.clone();
        let delay = self.backoff.wait().max(error.retry_after());
        if self.shared.reporting.trouble(trouble) {
            tracing::warn!(reason, "discovery failed, trying again; what is known is kept");
        } else {
            tracing::debug!(reason, ?delay, "backing off");
        }
        delay
    }
}

#[cfg(test)]
mod tests;
