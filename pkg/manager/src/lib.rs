//! Starts controllers, watches over them, and stops them in the reverse order.
//!
//! Start: wait for the apiserver, build every controller, so that caches fill and queues hold what there is to do; then, by each
//! [`ControllerGroup`] for itself once it leads, install definitions (when asked to) and run. Stop: no item is taken any more, what runs ends, events
//! are flushed, Leases are released, watches end. The listener for health and metrics belongs to the caller, who opens it first and closes
//! it last.
//!
//! Architecture Invariant: every task that is started here is joined here. A Lease is released only when nothing that it stands for runs.

mod debug_pages;
mod definitions;
mod health;
mod lease_annotations;
mod metrics;
mod running_group;
pub mod selection;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use kube::Client;
use parking_lot::RwLock;
use portreeve_client::{ApiErrorKind, Connection, error_chain};
use portreeve_informer::{Factory, InformerConfig};
use portreeve_leader::Election;
use portreeve_reconcile::{
    BuildError, Clock, ControllerContext, ControllerFailure, Descriptor, EventWriter, Events, Shutdown,
};
use portreeve_serving::HealthCheckers;
use prometheus::Registry;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

pub use crate::{
    debug_pages::{DEBUG_PAGES_PATH, DebugPages},
    definitions::Error as CrdInstallError,
};
use crate::{
    health::{Limits, ManagerState},
    metrics::Metrics,
    running_group::{GroupExit, RunningGroup},
};

/// How long queued events may take to be written at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between two looks for an apiserver that is away at the start.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often it is noted that tasks are run.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

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
    pub controller_stuck_timeout: Duration,
    /// How long what is due in a queue may wait while nothing moves in it before `/livez` fails; zero: as long as it takes.
    pub queue_stuck_timeout: Duration,
    /// The times that informers go by.
    pub informer_config: InformerConfig,
}

/// Controllers that run in the same process at the same time, or not at all.
#[derive(Clone)]
pub struct ControllerGroup {
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
    Install(#[source] CrdInstallError),
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
    ControllerFailure(ControllerFailure),
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
    shared: ControllerContext,
    client: Client,
    groups: Vec<ControllerGroup>,
    writer: EventWriter,
    metrics: Metrics,
    state: Arc<RwLock<ManagerState>>,
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
        groups: Vec<ControllerGroup>,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let client = |component| running_group::client(&connection, component);
        let informers = Factory::new(client("shared-informers")?, settings.informer_config.clone());
        let (events, writer) =
            Events::channel(client("events")?, settings.instance.clone(), registry).map_err(Error::Metrics)?;
        let shared = ControllerContext {
            events,
            clock,
            registry: registry.clone(),
            queues: portreeve_workqueue::Metrics::register(registry).map_err(Error::Metrics)?,
            metrics: portreeve_reconcile::Metrics::register(registry).map_err(Error::Metrics)?,
            dry_run: settings.dry_run,
            informers: informers.clone(),
        };
        let state = ManagerState {
            elections: groups.iter().filter_map(|group| group.election.clone()).collect(),
            ..ManagerState::default()
        };
        Ok(Self {
            client: client("manager")?,
            metrics: Metrics::register(registry, informers).map_err(Error::Metrics)?,
            state: Arc::new(RwLock::new(state)),
            connection,
            settings,
            shared,
            groups,
            writer,
        })
    }

    /// What the health endpoints ask; stays true while the manager runs.
    pub fn health(&self) -> HealthCheckers {
        let limits = Limits {
            item: self.settings.controller_stuck_timeout,
            queue: self.settings.queue_stuck_timeout,
        };
        health::providers(&self.state, &self.shared.informers, limits)
    }

    /// What controllers show of themselves; stays true while the manager runs.
    pub fn pages(&self) -> DebugPages {
        DebugPages::of(&self.state)
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
        let manager = ManagerContext {
            connection: self.connection,
            settings: self.settings,
            shared: self.shared,
            client: self.client,
            metrics: self.metrics,
            state: self.state,
        };
        let mut heartbeats = JoinSet::new();
        heartbeats.spawn(heartbeat(Arc::clone(&manager.state)));
        let (result, drained) = manager.run(self.groups, flags, &stop).await;
        heartbeats.shutdown().await;
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
async fn heartbeat(state: Arc<RwLock<ManagerState>>) {
    loop {
        state.write().last_heartbeat = Some(Instant::now());
        tokio::time::sleep(HEARTBEAT_INTERVAL).await;
    }
}

struct ManagerContext {
    connection: Connection,
    settings: Settings,
    shared: ControllerContext,
    client: Client,
    metrics: Metrics,
    state: Arc<RwLock<ManagerState>>,
}

impl ManagerContext {
    /// Returns how it ended, and the Leases that nothing stands behind any more.
    async fn run(
        &self,
        groups: Vec<ControllerGroup>,
        flags: &clap::ArgMatches,
        stop: &Shutdown,
    ) -> (Result<(), Error>, Vec<Election>) {
        let elections = || groups.iter().filter_map(|group| group.election.clone()).collect();
        tokio::select! {
            () = self.wait_for_apiserver() => {}
            () = stop.requested() => return (Ok(()), elections()),
        }
        self.state.write().reached = true;
        let built: Result<Vec<_>, _> = groups
            .iter()
            .map(|group| RunningGroup::build(self, group, flags))
            .collect();
        let running_groups = match built {
            Ok(running_groups) => running_groups,
            Err(error) => return (Err(error), elections()),
        };
        self.state.write().started = true;
        let mut running = JoinSet::new();
        for running_group in running_groups {
            running.spawn(running_group.run(stop.clone()));
        }
        let first = tokio::select! {
            () = stop.requested() => None,
            // No controller is enabled: serve health and metrics until told to stop.
            Some(first) = running.join_next() => Some(first),
        };
        tracing::info!("stopping: no item is taken any more, running ones end");
        self.state.write().stopping = true;
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
            let error = match definitions::apiserver_ready(&self.client).await {
                Ok(()) => return,
                Err(error) if ApiErrorKind::of(&error) != ApiErrorKind::Transient => return,
                Err(error) => error,
            };
            let reason = error_chain(&error);
            tracing::warn!(apiserver = %self.connection.url(), reason, "waiting for the apiserver");
            self.state.write().waiting_for = reason;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// The error of most weight: what did not drain may still be writing, what was lost is another's now, and the rest is a crash.
fn conclude(ends: Vec<Result<GroupExit, tokio::task::JoinError>>) -> (Result<(), Error>, Vec<Election>) {
    let mut worst: Option<Error> = None;
    let mut drained = Vec::new();
    for end in ends {
        let ended = end.unwrap_or_else(|error| GroupExit {
            result: Err(Error::ControllerFailure(ControllerFailure {
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
