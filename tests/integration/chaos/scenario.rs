//! All controllers in one daemon behind a proxy, with their work.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, FaultProxy, Namespace, eventually};

use super::{
    record::{self, HealthMonitor},
    work::{STEP, Work},
};
use crate::{
    clock::OffsetClock,
    in_process::InProcess,
    schedules::fixtures::minutes,
    shared,
    support::{SETTLED, daemon::printed},
};

/// Whatever there is.
pub(super) const ALL: &str = "--controllers=*,cronjob,garbagecollector,ttl-after-finished";
/// The name of its account.
pub(super) const NAME: &str = "portreeve";
/// More than there are resources to watch, and workers to write at the same time.
const CONNECTIONS: usize = 130;
/// A connection more may be open at one time than at another, with a task at each of its ends.
const SLACK: usize = 10;
/// Whatever goes wrong, each call to the apiserver ends within 30 s and is a step, so nobody may be taken for stuck, and whoever is asked to
/// stop does so.
pub(super) const STRICT: &[&str] = &[
    "--controller-stuck-timeout=60s",
    "--queue-stuck-timeout=60s",
    "--controller-shutdown-timeout=40s",
];

/// A cluster, all controllers, and what they have been given to do.
pub(super) struct Scenario {
    // Dropped in this order.
    health_monitor: HealthMonitor,
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) work: Work,
    pub(super) account: Account,
    pub(super) proxy: FaultProxy,
    pub(super) plane: ControlPlane,
    /// How many tasks there were when nothing had gone wrong.
    tasks: usize,
}

impl Scenario {
    /// Everything is there, and one wave is done.
    pub(super) async fn start() -> Result<Self> {
        Self::start_with(STRICT, async |_| Ok(())).await
    }

    /// The same with other flags than those that are strict, and with credentials that are changed before the daemon sees them.
    pub(super) async fn start_with(
        flags: &'static [&'static str],
        change: impl AsyncFnOnce(&Account) -> Result<()>,
    ) -> Result<Self> {
        let plane = ControlPlane::builder().audit_policy(record::POLICY).start().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let account = Account::of(&plane, &proxy, flags).await?;
        change(&account).await?;
        let clock = OffsetClock::new();
        let daemon = account.run(&clock).await?;
        let work = Work::start(&plane, &clock).await?;
        let mut scenario = Self {
            health_monitor: HealthMonitor::of(daemon.admin),
            daemon,
            clock,
            work,
            account,
            proxy,
            plane,
            tasks: 0,
        };
        scenario.work.wave().await?;
        scenario.verify().await?;
        scenario.tasks = scenario.tasks(usize::MAX).await?;
        Ok(scenario)
    }

    /// Stops the daemon and starts another one.
    pub(super) async fn restart(self) -> Result<Self> {
        self.another_after(InProcess::stop).await
    }

    /// Ends the daemon at once, wherever each of its tasks is, and starts another one.
    pub(super) async fn kill(self) -> Result<Self> {
        let dropped = async |daemon| {
            drop::<InProcess>(daemon);
            Ok(())
        };
        self.another_after(dropped).await
    }

    async fn another_after(self, end: impl AsyncFnOnce(InProcess) -> Result<()>) -> Result<Self> {
        let Self {
            health_monitor,
            daemon,
            clock,
            account,
            ..
        } = self;
        health_monitor.end()?;
        ensure_no_panic(&daemon).await?;
        end(daemon).await?;
        let daemon = account.run(&clock).await?;
        Ok(Self {
            health_monitor: HealthMonitor::of(daemon.admin),
            daemon,
            clock,
            account,
            ..self
        })
    }

    /// Waits until the cluster is as it must be, and makes sure of how it came to be so.
    /// Meanwhile nobody who reads `/readyz` was told that anything was stale: nothing was for as long as it takes.
    pub(super) async fn verify(&self) -> Result<()> {
        self.verify_with_failing_checks(|_| false).await
    }

    /// The same, where `/readyz` had lines that failed, and such alone.
    pub(super) async fn verify_with_failing_checks(&self, is_meant: impl Fn(&str) -> bool) -> Result<()> {
        self.work.verify().await?;
        self.ensure_healthy(is_meant).await?;
        record::ensure_clean(&self.plane)
    }

    /// Makes sure of what the daemon says of itself: it is ready, has always been alive, and no other line of `/readyz` has failed.
    pub(super) async fn ensure_healthy(&self, is_meant: impl Fn(&str) -> bool) -> Result<()> {
        self.daemon.admin.wait_until_ready().await?;
        self.health_monitor.ensure_always_live()?;
        let mut red = self.health_monitor.take_failed_checks();
        red.retain(|line| !is_meant(line));
        ensure!(red.is_empty(), "/readyz has failed: {red:#?}");
        Ok(())
    }

    /// How many tasks there are besides those of connections, each of which has one at either end, once there are no more than `most`.
    ///
    /// # Errors
    /// When there are more and it stays so, or when more connections are opened anew than watches could need.
    async fn tasks(&self, most: usize) -> Result<usize> {
        self.proxy.reset();
        self.daemon.admin.wait_until_ready().await?;
        eventually(SETTLED, "tasks to end", || async {
            let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            let connections = self.proxy.connections();
            let tasks = tasks.saturating_sub(2 * connections);
            ensure!(
                tasks <= most,
                "{tasks} besides {connections} connections, and not {most}"
            );
            ensure!(connections <= CONNECTIONS, "{connections} connections");
            anyhow::Ok(tasks)
        })
        .await
    }

    /// Sets the clock back to before what was due last, and on again once schedules were decided on by that time.
    pub(super) async fn turn_back_and_on(&self) -> Result<()> {
        let decisions = async || {
            let metrics = self.daemon.admin.metrics().await?;
            let of = |kind: &str| {
                metrics.sum(
                    "controller_runtime_reconcile_total",
                    &[&format!("controller=\"{kind}\"")],
                )
            };
            anyhow::Ok(["crontab-controller", "cronjob-controller"].map(of))
        };
        let (now, before) = (self.clock.now(), decisions().await?);
        self.clock.set(now - minutes(2 * STEP));
        eventually(SETTLED, "decisions by a clock that was set back", || async {
            let after = decisions().await?;
            ensure!(
                before.iter().zip(&after).all(|(before, after)| after > before),
                "{after:?} decisions, {before:?} before"
            );
            anyhow::Ok(())
        })
        .await?;
        self.clock.set(now);
        Ok(())
    }

    /// Ends the scenario: no tasks are left over, no reconcile has panicked, and the daemon stops as it should.
    pub(super) async fn finish(self) -> Result<()> {
        self.tasks(self.tasks + SLACK).await.context("tasks have leaked")?;
        self.health_monitor.end()?;
        ensure_no_panic(&self.daemon).await?;
        self.daemon.stop().await
    }
}

async fn ensure_no_panic(daemon: &InProcess) -> Result<()> {
    let panics = daemon.admin.metrics().await?;
    let panics = panics.sum("controller_runtime_reconcile_panics_total", &[]);
    ensure!(panics == 0.0, "{panics} panics");
    Ok(())
}

/// Who the daemon is.
pub(super) struct Account {
    /// Where it has its namespace and its rights.
    pub(super) system: Namespace,
    /// What leads it through the proxy.
    pub(super) kubeconfig: PathBuf,
    flags: &'static [&'static str],
}

impl Account {
    /// Makes an account with the printed rights.
    pub(super) async fn of(plane: &ControlPlane, proxy: &FaultProxy, flags: &'static [&'static str]) -> Result<Self> {
        let system = plane.namespace("portreeve-system").await?;
        let direct = plane
            .service_account_kubeconfig(system.name(), NAME, Vec::new())
            .await?;
        let account = Self {
            system,
            kubeconfig: proxy.kubeconfig(&direct, NAME)?,
            flags,
        };
        account.grant().await?;
        Ok(account)
    }

    /// Gives it the printed rights, and waits until it has them.
    pub(super) async fn grant(&self) -> Result<()> {
        let rbac = printed(&["rbac", ALL, "--install-crds", "--namespace", self.system.name()])?;
        shared::apply_and_wait(self.system.client(), self.system.name(), &rbac).await
    }

    /// Starts all controllers in its name.
    pub(super) async fn run(&self, clock: &OffsetClock) -> Result<InProcess> {
        let flags = [&[ALL, "--install-crds"], self.flags].concat();
        InProcess::start_as(
            &self.kubeconfig,
            Arc::new(clock.clone()),
            portreeve::CONTROLLERS,
            &flags,
        )
        .await
    }
}
