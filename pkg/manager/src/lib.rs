//! Starts controllers, watches over them, and stops them in the reverse order.
//!
//! Start: wait for the apiserver, build every controller, so that caches fill and queues hold what there is to do; then, by each
//! [`Group`] for itself once it leads, install definitions (when asked to) and run. Stop: no item is taken any more, what runs ends, events
//! are flushed, Leases are released, watches end. The listener for health and metrics belongs to the caller, who opens it first and closes
//! it last.
//!
//! Architecture Invariant: every task that is started here is joined here. A Lease is released only when nothing that it stands for runs.

mod crew;
mod definitions;
mod health;
mod metrics;
mod notebook;
mod pages;
pub mod selection;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use kube::Client;
use parking_lot::RwLock;
use portreeve_client::{Answer, Connection, chain};
use portreeve_informer::{Factory, Tuning};
use portreeve_leader::Election;
use portreeve_reconcile::{BuildError, Clock, Crash, Descriptor, EventWriter, Events, Shared, Shutdown};
use portreeve_serving::Health;
use prometheus::Registry;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    crew::{Crew, Ended},
    health::{Limits, Progress},
    metrics::Metrics,
};
pub use crate::{
    definitions::Error as DefinitionError,
    pages::{PAGES, Pages},
};

/// How long queued events may take to be written at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between two looks for an apiserver that is away at the start.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often it is noted that tasks are run.
const BEAT: Duration = Duration::from_secs(1);

/// How the manager goes about its work.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program's name: field manager of definitions, label of metrics.
    pub program: &'static str,
    /// Which replica this is, as events report it.
    pub instance: String,
    /// Install the controllers' definitions at the start.
    pub install_crds: bool,
    /// Log plans, write nothing.
    pub dry_run: bool,
    /// The pause between two controllers' starts, at random between once and twice this.
    pub start_interval: Duration,
    /// How long running reconciles may take to end; zero: as long as they need.
    pub shutdown_timeout: Duration,
    /// How long an item may be in work without a step before `/livez` fails; zero: as long as it takes. One call to the apiserver is one
    /// step, so this has to be longer than the longest.
    pub stuck_timeout: Duration,
    /// How long what is due in a queue may wait while nothing moves in it before `/livez` fails; zero: as long as it takes.
    pub queue_timeout: Duration,
    /// The times that informers go by.
    pub tuning: Tuning,
}

/// Controllers that run in the same process at the same time, or not at all.
#[derive(Clone)]
pub struct Group {
    /// Which ones.
    pub controllers: Vec<Descriptor>,
    /// Says when they may; `None`: always.
    pub election: Option<Election>,
}

/// Why the manager ended, other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A client could not be made.
    #[error("failed to make a client for {component}")]
    Client {
        /// Whose.
        component: &'static str,
        /// What is wrong.
        #[source]
        source: portreeve_client::Error,
    },
    /// Two metrics have one name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// A definition could not be installed.
    #[error("failed to install CustomResourceDefinitions")]
    Install(#[source] DefinitionError),
    /// A controller could not be built.
    #[error("failed to build {controller}")]
    Build {
        /// Which one.
        controller: &'static str,
        /// What is wrong.
        #[source]
        source: BuildError,
    },
    /// A controller ended by itself.
    #[error(transparent)]
    Crash(Crash),
    /// Another replica leads, or may lead by now.
    #[error("leaderelection lost: {lease}: {reason}")]
    Lost {
        /// The Lease.
        lease: String,
        /// What happened.
        reason: String,
    },
    /// Reconciles were still running when their time was up.
    #[error("controller shutdown timeout reached: still running after {limit:?}: {controllers}")]
    DrainTimeout {
        /// `--controller-shutdown-timeout`.
        limit: Duration,
        /// Who did not end.
        controllers: String,
    },
}

/// Everything that controllers share, before they run.
pub struct Manager {
    connection: Connection,
    settings: Settings,
    shared: Shared,
    client: Client,
    groups: Vec<Group>,
    writer: EventWriter,
    metrics: Metrics,
    progress: Arc<RwLock<Progress>>,
}

impl Manager {
    /// Sets up what controllers share. Watches nothing but CustomResourceDefinitions yet.
    ///
    /// # Errors
    ///
    /// Fails when a client cannot be made, or when `registry` already holds metrics of these names.
    pub fn new(
        connection: Connection,
        settings: Settings,
        groups: Vec<Group>,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let client = |component| crew::client(&connection, component);
        let informers = Factory::new(client("shared-informers")?, settings.tuning.clone());
        let (events, writer) =
            Events::channel(client("events")?, settings.instance.clone(), registry).map_err(Error::Metrics)?;
        let shared = Shared {
            events,
            clock,
            registry: registry.clone(),
            queues: portreeve_workqueue::Metrics::register(registry).map_err(Error::Metrics)?,
            metrics: portreeve_reconcile::Metrics::register(registry).map_err(Error::Metrics)?,
            dry_run: settings.dry_run,
            informers: informers.clone(),
        };
        let progress = Progress {
            elections: groups.iter().filter_map(|group| group.election.clone()).collect(),
            ..Progress::default()
        };
        Ok(Self {
            client: client("manager")?,
            metrics: Metrics::register(registry, informers).map_err(Error::Metrics)?,
            progress: Arc::new(RwLock::new(progress)),
            connection,
            settings,
            shared,
            groups,
            writer,
        })
    }

    /// What the health endpoints ask; stays true while the manager runs.
    pub fn health(&self) -> Health {
        let limits = Limits {
            item: self.settings.stuck_timeout,
            queue: self.settings.queue_timeout,
        };
        health::providers(&self.progress, &self.shared.informers, limits)
    }

    /// What controllers show of themselves; stays true while the manager runs.
    pub fn pages(&self) -> Pages {
        Pages::of(&self.progress)
    }

    /// Runs each group while it leads, until `stop` is requested or something breaks, and then stops everything in order.
    ///
    /// A group that has lost its Lease stops at once; the others drain and release theirs.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn run(self, flags: &clap::ArgMatches, stop: Shutdown) -> Result<(), Error> {
        let flushed = Shutdown::new();
        let mut writer = JoinSet::new();
        writer.spawn(self.writer.run(flushed.clone()));
        let manager = Running {
            connection: self.connection,
            settings: self.settings,
            shared: self.shared,
            client: self.client,
            metrics: self.metrics,
            progress: self.progress,
        };
        let mut heart = JoinSet::new();
        heart.spawn(beat(Arc::clone(&manager.progress)));
        let (result, drained) = manager.run(self.groups, flags, &stop).await;
        heart.shutdown().await;
        flushed.request();
        if timeout(FLUSH_LIMIT, writer.join_next()).await.is_err() {
            tracing::warn!("some events were not written in time");
            writer.shutdown().await;
        }
        join_all(drained.iter().map(Election::release)).await;
        manager.shared.informers.stop().await;
        result
    }
}

/// Says each second that tasks are run.
async fn beat(progress: Arc<RwLock<Progress>>) {
    loop {
        progress.write().beat = Some(Instant::now());
        tokio::time::sleep(BEAT).await;
    }
}

struct Running {
    connection: Connection,
    settings: Settings,
    shared: Shared,
    client: Client,
    metrics: Metrics,
    progress: Arc<RwLock<Progress>>,
}

impl Running {
    /// Returns how it ended, and the Leases that nothing stands behind any more.
    async fn run(
        &self,
        groups: Vec<Group>,
        flags: &clap::ArgMatches,
        stop: &Shutdown,
    ) -> (Result<(), Error>, Vec<Election>) {
        let elections = || groups.iter().filter_map(|group| group.election.clone()).collect();
        tokio::select! {
            () = self.wait_for_apiserver() => {}
            () = stop.requested() => return (Ok(()), elections()),
        }
        self.progress.write().reached = true;
        let built: Result<Vec<_>, _> = groups.iter().map(|group| Crew::build(self, group, flags)).collect();
        let crews = match built {
            Ok(crews) => crews,
            Err(error) => return (Err(error), elections()),
        };
        self.progress.write().started = true;
        let mut running = JoinSet::new();
        for crew in crews {
            running.spawn(crew.run(stop.clone()));
        }
        let first = tokio::select! {
            () = stop.requested() => None,
            // No controller is enabled: serve health and metrics until told to stop.
            Some(first) = running.join_next() => Some(first),
        };
        tracing::info!("stopping: no item is taken any more, running ones end");
        self.progress.write().stopping = true;
        stop.request();
        let mut ends = Vec::from_iter(first);
        while let Some(end) = running.join_next().await {
            ends.push(end);
        }
        conclude(ends)
    }

    /// An apiserver that is away is waited for: a control plane that starts everything at once must not crash its controllers.
    async fn wait_for_apiserver(&self) {
        let mut pause = Duration::from_millis(100);
        loop {
            let error = match definitions::ready(&self.client).await {
                Ok(()) => return,
                Err(error) if Answer::of(&error) != Answer::Transient => return,
                Err(error) => error,
            };
            let reason = chain(&error);
            tracing::warn!(apiserver = %self.connection.url(), reason, "waiting for the apiserver");
            self.progress.write().waiting_for = reason;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The error of most weight: what did not drain may still be writing, what was lost is another's now, and the rest is a crash.
fn conclude(ends: Vec<Result<Ended, tokio::task::JoinError>>) -> (Result<(), Error>, Vec<Election>) {
    let mut worst: Option<Error> = None;
    let mut drained = Vec::new();
    for end in ends {
        let ended = end.unwrap_or_else(|error| Ended {
            result: Err(Error::Crash(Crash {
                controller: "a controller",
                reason: error.to_string(),
            })),
            drained: None,
        });
        drained.extend(ended.drained);
        if let Err(error) = ended.result
            && worst.as_ref().is_none_or(|worst| weight(&error) > weight(worst))
        {
            worst = Some(error);
        }
    }
    (worst.map_or(Ok(()), Err), drained)
}

fn weight(error: &Error) -> u8 {
    match error {
        Error::DrainTimeout { .. } => 2,
        Error::Lost { .. } => 1,
        _ => 0,
    }
}
