//! Starts controllers, monitors them, and stops them in reverse order.
//!
//! On start, the manager waits for the apiserver and builds every controller, so that caches sync.
//! Each [`ControllerGroup`] runs once it leads; with `--install-crds`, each of its controllers
//! starts once its CRDs are installed. On stop, workers take no new items, running reconciles
//! finish, events are flushed, Leases are released, and watches end. The listener for health and
//! metrics belongs to the caller, who opens it first and closes it last.
//!
//! Architecture Invariant: every task that the manager starts is joined here. A Lease is released
//! only after everything that it protects has stopped.

mod context;
mod debug_pages;
mod definitions;
mod error;
mod health;
mod informer_metrics;
mod metrics;
mod running_group;
pub mod selection;
mod settings;
mod settling;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use kube::Client;
use parking_lot::RwLock;
use portreeve_client::{ApiErrorKind, Connection, error_chain, readyz};
use portreeve_informer::{Factory, InformerConfig};
use portreeve_leader::Election;
use portreeve_metrics::Registry;
use portreeve_reconcile::{Clock, ControllerFailure, EventWriter, Events, SharedContext, Shutdown};
use portreeve_serving::HealthCheckers;
use portreeve_workqueue::RetryBudget;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    context::ManagerContext,
    health::{Limits, ManagerState},
    metrics::Metrics,
    running_group::{GroupExit, RunningGroup},
};
pub use crate::{
    debug_pages::{DEBUG_PAGES_PATH, DebugPages},
    error::Error,
    settings::{ControllerGroup, Settings},
    settling::{Outstanding, Settling},
};

/// The time limit for writing queued events at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between two attempts to reach the apiserver at startup.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The components that controllers share, before they run.
pub struct Manager {
    connection: Connection,
    settings: Settings,
    informers: Factory,
    shared: SharedContext,
    client: Client,
    groups: Vec<ControllerGroup>,
    writer: EventWriter,
    metrics: Metrics,
    state: Arc<RwLock<ManagerState>>,
}

impl Manager {
    /// Sets up the shared components. Watches only CustomResourceDefinitions so far.
    ///
    /// # Errors
    ///
    /// Returns an error when a client cannot be created, or when `registry` already contains
    /// metrics with these names.
    pub fn new(
        connection: Connection,
        settings: Settings,
        groups: Vec<ControllerGroup>,
        clock: Arc<dyn Clock>,
        registry: &Registry,
    ) -> Result<Self, Error> {
        let client = |component| running_group::client(&connection, component);
        let informer_config = InformerConfig {
            outage: connection.outage().clone(),
            ..settings.informer_config.clone()
        };
        let informers = Factory::new(client("shared-informers")?, informer_config);
        let (events, writer) =
            Events::channel(client("events")?, settings.instance.clone(), registry).map_err(Error::Metrics)?;
        let shared = SharedContext {
            events,
            clock,
            registry: registry.clone(),
            queues: portreeve_workqueue::Metrics::register(registry).map_err(Error::Metrics)?,
            retry_budget: RetryBudget::new(settings.retry_qps, settings.retry_burst),
            outage: connection.outage().clone(),
            server_clock: connection.server_clock().clone(),
            authorities: connection.authorities().clone(),
            metrics: portreeve_reconcile::Metrics::register(registry).map_err(Error::Metrics)?,
            dry_run: settings.dry_run,
        };
        informer_metrics::register(registry, informers.clone(), settings.program).map_err(Error::Metrics)?;
        let state = ManagerState {
            elections: groups.iter().filter_map(|group| group.election.clone()).collect(),
            ..ManagerState::default()
        };
        Ok(Self {
            client: client("manager")?,
            metrics: Metrics::register(registry, state.installing.clone()).map_err(Error::Metrics)?,
            state: Arc::new(RwLock::new(state)),
            connection,
            settings,
            informers,
            shared,
            groups,
            writer,
        })
    }

    /// Returns the shared informers, for what is not a controller.
    pub fn informers(&self) -> Factory {
        self.informers.clone()
    }

    /// Returns the checks for the health endpoints. They stay up to date while the manager runs.
    pub fn health(&self) -> HealthCheckers {
        let limits = Limits {
            item: self.settings.controller_stuck_timeout,
            queue: self.settings.queue_stuck_timeout,
        };
        health::providers(&self.state, &self.informers, &self.settings.heartbeat, limits)
    }

    /// Returns the debug pages of the controllers. They stay up to date while the manager runs.
    pub fn pages(&self) -> DebugPages {
        DebugPages::of(&self.state)
    }

    /// Returns the check whether the controllers have anything left to do.
    pub fn settling(&self) -> Settling {
        Settling::new(&self.state, self.informers.clone(), self.client.clone())
    }

    /// Builds every controller without running it, so that the registry contains its metrics.
    ///
    /// # Errors
    ///
    /// Returns an error when a controller cannot be built.
    pub fn build_controllers(self, flags: &clap::ArgMatches) -> Result<(), Error> {
        let (manager, groups, _) = self.into_context();
        for group in &groups {
            RunningGroup::build(&manager, group, flags)?;
        }
        Ok(())
    }

    /// Runs each group while it leads, until `stop` is requested or an error occurs, and then stops
    /// everything in order.
    ///
    /// A group that loses its Lease stops at once. The other groups drain and release their Leases.
    ///
    /// # Errors
    ///
    /// Returns the most severe [`Error`] of all groups.
    pub async fn run(self, flags: &clap::ArgMatches, stop: Shutdown) -> Result<(), Error> {
        let (manager, groups, events) = self.into_context();
        let flushed = Shutdown::new();
        let mut writer = JoinSet::new();
        writer.spawn(events.run(flushed.clone()));
        let heartbeat = manager.settings.heartbeat.clone();
        let mut background = JoinSet::new();
        background.spawn(async move { heartbeat.beat().await });
        let (outage, client) = (manager.connection.outage().clone(), manager.client.clone());
        background.spawn(async move { outage.probe(&client).await });
        let (result, drained) = manager.run(groups, flags, &stop).await;
        flushed.request();
        if timeout(FLUSH_LIMIT, writer.join_next()).await.is_err() {
            tracing::warn!("dropping events that were not written in time");
            writer.shutdown().await;
        }
        join_all(drained.iter().map(Election::release)).await;
        manager.informers.stop().await;
        background.shutdown().await;
        result
    }

    fn into_context(self) -> (ManagerContext, Vec<ControllerGroup>, EventWriter) {
        let context = ManagerContext {
            connection: self.connection,
            settings: self.settings,
            informers: self.informers,
            shared: self.shared,
            client: self.client,
            metrics: self.metrics,
            state: self.state,
        };
        (context, self.groups, self.writer)
    }
}

impl ManagerContext {
    /// Returns the result, and the elections whose Leases can be released.
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
            // The set is empty when no controller is enabled. Then the daemon only serves health
            // and metrics.
            Some(first) = running.join_next() => Some(first),
        };
        tracing::info!("stopping controllers and waiting for running reconciles");
        self.state.write().stopping = true;
        stop.request();
        let mut ends = Vec::from_iter(first);
        while let Some(end) = running.join_next().await {
            ends.push(end);
        }
        conclude(ends)
    }

    /// Waits until the apiserver responds. When a control plane starts everything at once, its
    /// controllers must not crash.
    async fn wait_for_apiserver(&self) {
        let mut pause = Duration::from_millis(100);
        loop {
            let outages = self.connection.outage().count();
            let error = match readyz(&self.client).await {
                Ok(()) => return,
                Err(error) if ApiErrorKind::of(&error) != ApiErrorKind::Transient => return,
                Err(error) => error,
            };
            let reason = error_chain(&error);
            tracing::warn!(apiserver = %self.connection.url(), reason, "waiting for the apiserver");
            self.state.write().waiting_for = reason;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.connection.outage().ended(outages) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Returns the most severe error: first a drain timeout (its controllers may still write), then a
/// lost Lease (which another replica may hold), then any other error. Also returns the elections
/// whose Leases can be released.
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
