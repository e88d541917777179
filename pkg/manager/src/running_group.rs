//! One group of controllers: it is built once, runs while it leads, and is then drained or dropped.

use std::{sync::Arc, time::Duration};

use kube::Client;
use portreeve_api::ObjectKey;
use portreeve_client::{Connection, error_chain};
use portreeve_leader::Election;
use portreeve_reconcile::{
    Applier, Context, Controller, ControllerFailure, ControllerMetrics, Descriptor, FenceMonitor, GroupInformers,
    GroupLease, Registrations, SharedContext, Shutdown,
};
use prometheus::IntGauge;
use tokio::{
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    ControllerGroup, Error, ManagerContext,
    definitions::{InstallProgress, Installer},
};

type ControllerExit = (&'static str, Result<(), ControllerFailure>);

/// A group whose controllers are built: their caches sync, but no key is queued before it runs.
pub(crate) struct RunningGroup {
    election: Option<Election>,
    controllers: Vec<RunningController>,
    /// Installs CRDs, when `--install-crds` is set.
    installer: Option<Arc<Applier>>,
    installing: InstallProgress,
    informers: GroupInformers,
    start_interval: Duration,
    shutdown_timeout: Duration,
    /// Whether all tasks have ended without a panic.
    is_clean: bool,
}

struct RunningController {
    name: &'static str,
    crds: &'static [&'static str],
    controller: Box<dyn Controller>,
    running: IntGauge,
}

impl RunningController {
    /// Builds a controller, and registers its health checks and debug pages.
    fn build(manager: &ManagerContext, descriptor: &Descriptor, ctx: &Context<'_>) -> Result<Self, Error> {
        let name = descriptor.name;
        let Registrations {
            controller,
            queue_health_checkers,
            activity_checkers,
            debug_pages,
            readiness_checkers,
        } = (descriptor.build)(ctx).map_err(|source| Error::Build {
            controller: name,
            source,
        })?;
        let mut state = manager.state.write();
        state.controllers.push(name);
        state.queue_health_checkers.extend(queue_health_checkers);
        state.activity_checkers.extend(activity_checkers);
        state.debug_pages.extend(debug_pages);
        state.readiness_checkers.extend(readiness_checkers);
        let running = manager.metrics.running(name, manager.settings.program);
        running.set(0);
        Ok(Self {
            name,
            crds: descriptor.crds,
            controller,
            running,
        })
    }

    /// Installs the CRDs of the controller. Waits until those of the others are installed or known
    /// to be blocked, and then for `delay`, and runs the controller.
    async fn run(
        self,
        installer: Option<Installer>,
        installing: InstallProgress,
        delay: Duration,
        stop: Shutdown,
    ) -> ControllerExit {
        let name = self.name;
        if let Some(installer) = installer {
            match installer.install(&stop).await {
                Ok(true) => {}
                Ok(false) => return (name, Ok(())),
                Err(error) => {
                    let reason = format!("invalid CustomResourceDefinitions: {}", error_chain(&error));
                    let controller = name;
                    return (name, Err(ControllerFailure { controller, reason }));
                }
            }
        }
        let start = async {
            installing.settled().await;
            tokio::time::sleep(delay).await;
        };
        tokio::select! {
            () = start => {}
            () = stop.requested() => return (name, Ok(())),
        }
        tracing::info!(controller = name, "starting controller");
        let _running = RunningGauge::set(self.running);
        (name, self.controller.run(stop).await)
    }
}

/// The result of a group.
pub(crate) struct GroupExit {
    pub(crate) result: Result<(), Error>,
    /// The election, when everything that its Lease protects has stopped.
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
        let shared = SharedContext {
            events: manager.shared.events.with_client(client(&connection, "events")?),
            ..manager.shared.clone()
        };
        let informers = GroupInformers::new(manager.informers.clone());
        let mut controllers = Vec::new();
        for descriptor in &group.controllers {
            let client = client(&connection, descriptor.name)?;
            let ctx = Context {
                name: descriptor.name,
                client,
                flags,
                informers: &informers,
                lease: group.election.as_ref().map(group_lease),
                shared: &shared,
            };
            controllers.push(RunningController::build(manager, descriptor, &ctx)?);
        }
        let installer = Applier {
            client: client(&connection, "manager")?,
            events: shared.events.clone(),
            manager: manager.settings.program.to_owned(),
            dry_run: manager.settings.dry_run,
            controller_metrics: ControllerMetrics::default(),
            clock: Arc::clone(&shared.clock),
            // The fence does not cover CustomResourceDefinitions.
            fence_monitor: FenceMonitor::default(),
        };
        let group = Self {
            election: group.election.clone(),
            controllers,
            installer: manager.settings.install_crds.then(|| Arc::new(installer)),
            installing: manager.state.read().installing.clone(),
            informers,
            start_interval: manager.settings.start_interval,
            shutdown_timeout: manager.settings.shutdown_timeout,
            is_clean: true,
        };
        if group.election.is_none() {
            group.expect_installations();
        }
        Ok(group)
    }

    /// Makes the process unready until the CRDs are installed. A standby has nothing to install.
    fn expect_installations(&self) {
        if self.installer.is_some() {
            let with_crds = self.controllers.iter().filter(|controller| !controller.crds.is_empty());
            with_crds.for_each(|controller| self.installing.expect(controller.name));
        }
    }

    /// Waits until the group leads, and runs it until `stop` is requested, a controller fails, or
    /// the Lease is lost.
    pub(crate) async fn run(mut self, stop: Shutdown) -> GroupExit {
        if let Some(election) = &self.election {
            election.start_competing();
            tokio::select! {
                // `lost` comes first: the election may be won and lost before this task is polled.
                biased;
                lost = lost(Some(election)) => return GroupExit { result: Err(lost), drained: None },
                () = election.wait_until_leading() => {}
                () = stop.requested() => {
                    // The Lease is released now and not after the other groups have drained: this
                    // group must not win it in the meantime.
                    election.release().await;
                    return GroupExit { result: Ok(()), drained: None };
                }
            }
            self.expect_installations();
            self.informers.begin_term();
        }
        let mut tasks = JoinSet::new();
        let election = self.election.clone();
        let result = tokio::select! {
            // `lost` comes first: a group that has lost its Lease stops immediately.
            biased;
            lost = lost(election.as_ref()) => Err(lost),
            result = self.lead(&mut tasks, &stop) => result,
        };
        let is_clean = self.is_clean && !matches!(result, Err(Error::Lost { .. } | Error::DrainTimeout { .. }));
        // After a drain no task is left. Otherwise the remaining tasks are dropped at their current
        // await point.
        tasks.shutdown().await;
        GroupExit {
            result,
            drained: election.filter(|_| is_clean),
        }
    }

    async fn lead(&mut self, tasks: &mut JoinSet<ControllerExit>, stop: &Shutdown) -> Result<(), Error> {
        let names = self.controllers.iter().map(|one| one.name).collect();
        let crash = tokio::select! {
            // `stop` comes first: a controller that ends on request has not failed.
            biased;
            () = stop.requested() => None,
            crash = self.start_and_watch(tasks, stop) => Some(crash),
        };
        // When one controller ends, all others in the process stop as well.
        stop.request();
        let drained = drain(names, self.shutdown_timeout, tasks).await;
        // The tasks of a panicked controller were not drained.
        self.is_clean =
            !matches!(crash, Some(ShutdownCause::Panic(_))) && !matches!(drained, Err(ShutdownCause::Panic(_)));
        match (drained, crash) {
            // Controllers that did not drain may still write, which is more severe than the first
            // error.
            (Err(ShutdownCause::Timeout(error)), _) => Err(error),
            (_, Some(cause)) | (Err(cause), None) => Err(cause.into()),
            (Ok(()), None) => Ok(()),
        }
    }

    /// Starts every controller, then waits for one to end, which is always an error.
    async fn start_and_watch(&mut self, tasks: &mut JoinSet<ControllerExit>, stop: &Shutdown) -> ShutdownCause {
        let mut delay = Duration::ZERO;
        for controller in self.controllers.drain(..) {
            let installer = self.installer.as_ref().filter(|_| !controller.crds.is_empty());
            let installer = installer.map(|applier| Installer {
                applier: Arc::clone(applier),
                controller: controller.name,
                crds: controller.crds,
                progress: self.installing.clone(),
            });
            tasks.spawn(controller.run(installer, self.installing.clone(), delay, stop.child()));
            delay += self.start_interval.mul_f64(1.0 + fastrand::f64());
        }
        let lease = self.election.as_ref().map(Election::version_decreases);
        let end = tokio::select! {
            end = tasks.join_next() => end,
            () = self.informers.relist_when_stale(lease) => None,
        };
        match end {
            Some(Ok((_, Err(crash)))) => ShutdownCause::ControllerFailure(crash),
            Some(Ok((controller, Ok(())))) => ShutdownCause::ControllerFailure(ControllerFailure {
                controller,
                reason: "it returned without a stop request".to_owned(),
            }),
            Some(Err(error)) => ShutdownCause::panic(&error),
            // The set is empty when no controller is enabled. Then the daemon only serves health
            // and metrics.
            None => std::future::pending().await,
        }
    }
}

/// Sets the gauge of a running controller, and resets it when dropped: the controller's task may be
/// dropped before it ends.
struct RunningGauge(IntGauge);

impl RunningGauge {
    fn set(gauge: IntGauge) -> Self {
        gauge.set(1);
        Self(gauge)
    }
}

impl Drop for RunningGauge {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// The reason why a group did not end as requested.
enum ShutdownCause {
    /// A controller ended by itself, after it had drained.
    ControllerFailure(ControllerFailure),
    /// A controller panicked, so its requests in flight are unknown.
    Panic(ControllerFailure),
    /// Some controllers were still running at the end of the shutdown timeout.
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

/// Joins every controller. The first controller that failed during the drain determines the error.
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

fn group_lease(election: &Election) -> GroupLease {
    let (namespace, name) = election.key();
    let writer = election.clone();
    GroupLease {
        key: ObjectKey::namespaced(namespace, name),
        snapshots: election.lease_snapshots(),
        version_decreases: election.version_decreases(),
        record_write: Arc::new(move |lease| writer.record_write(lease)),
    }
}

/// Waits until the Lease is lost. Never returns without an election.
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
