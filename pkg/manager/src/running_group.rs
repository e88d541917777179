//! One group of controllers: built at once, run while it leads, drained or dropped.

use std::{sync::Arc, time::Duration};

use kube::Client;
use parking_lot::RwLock;
use portreeve_client::Connection;
use portreeve_informer::Cache;
use portreeve_leader::Election;
use portreeve_reconcile::{Applier, Controller, ControllerFailure, ControllerMetrics, Descriptor, Setup, Shutdown};
use prometheus::IntGauge;
use tokio::{
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{ControllerGroup, Error, ManagerContext, definitions, health::ManagerState, lease_annotations};

type ControllerExit = (&'static str, Result<(), ControllerFailure>);

/// A group whose controllers are built: their caches fill, and their queues hold what there is to do.
pub(crate) struct RunningGroup {
    election: Option<Election>,
    controllers: Vec<RunningController>,
    descriptors: Vec<Descriptor>,
    /// Installs definitions, when that is asked for.
    installer: Option<Applier>,
    caches: Vec<Arc<dyn Cache>>,
    state: Arc<RwLock<ManagerState>>,
    start_interval: Duration,
    shutdown_timeout: Duration,
    /// Whether everything that was started has ended by itself.
    is_clean: bool,
}

struct RunningController {
    name: &'static str,
    controller: Box<dyn Controller>,
    running: IntGauge,
}

impl RunningController {
    /// Builds a controller, and has all that it shows of itself shown from now on.
    fn build(manager: &ManagerContext, descriptor: &Descriptor, setup: &mut Setup<'_>) -> Result<Self, Error> {
        let name = descriptor.name;
        let controller = (descriptor.build)(setup).map_err(|source| Error::Build {
            controller: name,
            source,
        })?;
        let mut state = manager.state.write();
        state.controllers.push(name);
        state.queue_health_checkers.append(&mut setup.queue_health_checkers);
        state.pages.append(&mut setup.pages);
        state.readiness_checkers.append(&mut setup.readiness_checkers);
        let running = manager.metrics.running(name, manager.settings.program);
        running.set(0);
        Ok(Self {
            name,
            controller,
            running,
        })
    }
}

/// How a group ended.
pub(crate) struct GroupExit {
    pub(crate) result: Result<(), Error>,
    /// The election, when nothing runs any more that it stands for.
    pub(crate) drained: Option<Election>,
}

impl RunningGroup {
    pub(crate) fn build(
        manager: &ManagerContext,
        group: &ControllerGroup,
        flags: &clap::ArgMatches,
    ) -> Result<Self, Error> {
        let connection = match &group.election {
            Some(election) => manager.connection.with_fence(Arc::new(election.fence())),
            None => manager.connection.clone(),
        };
        let mut shared = manager.shared.clone();
        shared.events = shared.events.with_client(client(&connection, "events")?);
        let (mut controllers, mut caches) = (Vec::new(), Vec::new());
        for descriptor in &group.controllers {
            let client = client(&connection, descriptor.name)?;
            let mut setup = Setup {
                name: descriptor.name,
                lease_annotations: lease_annotations::of(group.election.as_ref(), &client, manager.settings.program),
                client,
                flags,
                shared: shared.clone(),
                queue_health_checkers: Vec::new(),
                caches: Vec::new(),
                pages: Vec::new(),
                readiness_checkers: Vec::new(),
            };
            controllers.push(RunningController::build(manager, descriptor, &mut setup)?);
            caches.append(&mut setup.caches);
        }
        let installer = Applier {
            client: client(&connection, "manager")?,
            events: shared.events.clone(),
            manager: manager.settings.program.to_owned(),
            dry_run: manager.settings.dry_run,
            controller_metrics: ControllerMetrics::default(),
            clock: Arc::clone(&shared.clock),
        };
        let installer = manager.settings.install_crds.then_some(installer);
        if group.election.is_none() {
            manager.state.write().installing += u32::from(installer.is_some());
        }
        Ok(Self {
            election: group.election.clone(),
            controllers,
            descriptors: group.controllers.clone(),
            installer,
            caches,
            state: Arc::clone(&manager.state),
            start_interval: manager.settings.start_interval,
            shutdown_timeout: manager.settings.shutdown_timeout,
            is_clean: true,
        })
    }

    /// Stands by until the group leads, and runs it until `stop` is requested, it crashes, or the Lease is lost.
    pub(crate) async fn run(mut self, stop: Shutdown) -> GroupExit {
        if let Some(election) = &self.election {
            election.start_competing();
            tokio::select! {
                // First: it may have won and lost before anybody looked.
                biased;
                lost = lost(Some(election)) => return GroupExit { result: Err(lost), drained: None },
                () = election.wait_until_leading() => {}
                () = stop.requested() => {
                    // Now, and not after others have drained: it must not come to lead meanwhile.
                    election.release().await;
                    return GroupExit { result: Ok(()), drained: None };
                }
            }
            self.state.write().installing += u32::from(self.installer.is_some());
            self.caches.iter().for_each(|cache| cache.begin_term());
        }
        let mut tasks = JoinSet::new();
        let election = self.election.clone();
        let result = tokio::select! {
            // First: what has lost its Lease stops where it is.
            biased;
            lost = lost(election.as_ref()) => Err(lost),
            result = self.lead(&mut tasks, &stop) => result,
        };
        let is_clean = self.is_clean && !matches!(result, Err(Error::Lost { .. } | Error::DrainTimeout { .. }));
        // Drained, they are all gone; otherwise what still runs is dropped where it waits.
        tasks.shutdown().await;
        GroupExit {
            result,
            drained: election.filter(|_| is_clean),
        }
    }

    async fn lead(&mut self, tasks: &mut JoinSet<ControllerExit>, stop: &Shutdown) -> Result<(), Error> {
        if let Some(installer) = &self.installer {
            let wanted: Vec<_> = self.descriptors.iter().flat_map(|one| (one.crds)()).collect();
            // It looks at the request to stop between two writes: one that is dropped may still arrive when another leads.
            let installed = definitions::install(installer, wanted, stop).await;
            self.state.write().installing -= 1;
            installed.map_err(Error::Install)?;
        }
        let crash = tokio::select! {
            // First: a controller that ends because it was asked to has not crashed.
            biased;
            () = stop.requested() => None,
            crash = self.start_and_watch(tasks, stop) => Some(crash),
        };
        // Whatever ended one ends them all.
        stop.request();
        let names = self.descriptors.iter().map(|one| one.name).collect();
        let drained = drain(names, self.shutdown_timeout, tasks).await;
        // What a panic took down with it was not drained.
        self.is_clean =
            !matches!(crash, Some(ShutdownCause::Panic(_))) && !matches!(drained, Err(ShutdownCause::Panic(_)));
        match (drained, crash) {
            // What did not drain may still be writing: that is worse than what broke.
            (Err(ShutdownCause::Timeout(error)), _) => Err(error),
            (_, Some(cause)) | (Err(cause), None) => Err(cause.into()),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Starts every controller, then waits for one to end, which none should.
    async fn start_and_watch(&mut self, tasks: &mut JoinSet<ControllerExit>, stop: &Shutdown) -> ShutdownCause {
        for running_controller in self.controllers.drain(..) {
            let RunningController {
                name,
                controller,
                running,
            } = running_controller;
            tracing::info!(controller = name, "starting");
            let task = controller.run(stop.child());
            tasks.spawn(async move {
                running.set(1);
                let end = task.await;
                running.set(0);
                (name, end)
            });
            tokio::time::sleep(self.start_interval.mul_f64(1.0 + fastrand::f64())).await;
        }
        match tasks.join_next().await {
            Some(Ok((_, Err(crash)))) => ShutdownCause::ControllerFailure(crash),
            Some(Ok((controller, Ok(())))) => ShutdownCause::ControllerFailure(ControllerFailure {
                controller,
                reason: "nobody had asked it to".to_owned(),
            }),
            Some(Err(error)) => ShutdownCause::panic(&error),
            // No controller is enabled: serve health and metrics until told to stop.
            None => std::future::pending().await,
        }
    }
}

/// Why a group did not end as it was asked to.
enum ShutdownCause {
    /// A controller ended by itself, after it had drained.
    ControllerFailure(ControllerFailure),
    /// A controller panicked, and nobody knows what it had under way.
    Panic(ControllerFailure),
    /// Some were still running.
    Timeout(Error),
}

impl ShutdownCause {
    fn panic(error: &JoinError) -> Self {
        Self::Panic(ControllerFailure {
            controller: "a controller",
            reason: error.to_string(),
        })
    }
}

impl From<ShutdownCause> for Error {
    fn from(cause: ShutdownCause) -> Self {
        match cause {
            ShutdownCause::ControllerFailure(crash) | ShutdownCause::Panic(crash) => Self::ControllerFailure(crash),
            ShutdownCause::Timeout(error) => error,
        }
    }
}

/// Joins every controller. The first one that broke on the way counts as the reason.
async fn drain(mut left: Vec<&str>, limit: Duration, tasks: &mut JoinSet<ControllerExit>) -> Result<(), ShutdownCause> {
    let mut broken = None;
    let joined = async {
        while let Some(end) = tasks.join_next().await {
            match end {
                Ok((name, end)) => {
                    left.retain(|controller| *controller != name);
                    broken = broken.take().or(end.err().map(ShutdownCause::ControllerFailure));
                }
                Err(error) => broken = Some(ShutdownCause::panic(&error)),
            }
        }
    };
    let in_time = if limit.is_zero() {
        joined.await;
        true
    } else {
        timeout(limit, joined).await.is_ok()
    };
    if !in_time {
        let controllers = left.join(", ");
        return Err(ShutdownCause::Timeout(Error::DrainTimeout { limit, controllers }));
    }
    broken.map_or(Ok(()), Err)
}

/// Waits until the Lease is lost; for ever when there is none.
async fn lost(election: Option<&Election>) -> Error {
    let Some(election) = election else {
        return std::future::pending().await;
    };
    Error::Lost {
        reason: election.wait_until_lost().await,
        lease: election.lease().to_owned(),
    }
}

pub(crate) fn client(connection: &Connection, component: &'static str) -> Result<Client, Error> {
    connection
        .client(component)
        .map_err(|source| Error::Client { component, source })
}
