//! A daemon with all controllers behind a proxy, and their work.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, FaultProxy, Namespace, PooledPlane, eventually};

use super::{health_monitor::HealthMonitor, work::Work};
use crate::{
    audit::{AuditLog, policy},
    fixtures::{
        LIMIT,
        clock::OffsetClock,
        daemon::{ALL_CONTROLLERS, PROMPT_NAMESPACES, printed},
        in_process::InProcess,
        rbac,
        schedules::{Kind, minutes},
    },
    profile::STEP,
};

/// The name of the daemon's account.
pub(super) const NAME: &str = "portreeve";
/// The maximum number of connections while tasks are counted, each with up to three tasks.
const FEW_CONNECTIONS: usize = 5;
/// The tolerance for tasks: that number varies.
const SLACK: usize = 10;
/// Timeouts that must not expire under any fault. Each call to the apiserver ends within 35 s and
/// counts as progress, so no controller may be reported as stuck, and each shutdown must complete.
pub(super) const STRICT: &[&str] = &[
    "--controller-stuck-timeout=60s",
    "--queue-stuck-timeout=60s",
    "--controller-shutdown-timeout=40s",
];

/// A cluster, a daemon with all controllers, and their work.
pub(super) struct Scenario {
    // The fields are dropped in this order.
    health_monitor: HealthMonitor,
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) work: Work,
    pub(super) account: Account,
    pub(super) proxy: FaultProxy,
    pub(super) plane: PooledPlane,
    /// The number of tasks before the first fault.
    tasks: usize,
}

impl Scenario {
    /// Starts a scenario, and waits until the first wave of work is done.
    pub(super) async fn start() -> Result<Self> {
        Self::start_with(STRICT, async |_| Ok(())).await
    }

    /// Starts a scenario with other flags than [`STRICT`]. `change` modifies the account before the
    /// daemon starts.
    pub(super) async fn start_with(
        flags: &'static [&'static str],
        change: impl AsyncFnOnce(&Account) -> Result<()>,
    ) -> Result<Self> {
        let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
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
        // A short idle timeout leaves a busy machine little time to open a watch again.
        let is_short = flags.iter().any(|flag| flag.starts_with("--watch-idle-timeout"));
        scenario
            .verify_with_failing_checks(|line| is_short && line.contains("stale"))
            .await?;
        scenario.tasks = scenario.tasks(usize::MAX).await?;
        Ok(scenario)
    }

    /// Stops the daemon and starts a new one.
    pub(super) async fn restart(self) -> Result<Self> {
        self.replace_daemon(InProcess::stop).await
    }

    /// Drops the daemon, which aborts all its tasks, and starts a new one.
    pub(super) async fn kill(self) -> Result<Self> {
        let dropped = async |daemon| {
            drop::<InProcess>(daemon);
            Ok(())
        };
        self.replace_daemon(dropped).await
    }

    async fn replace_daemon(self, end: impl AsyncFnOnce(InProcess) -> Result<()>) -> Result<Self> {
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

    /// Waits until the cluster has the expected state, then checks the audit log and the daemon's
    /// health. No check of `/readyz` may have failed since the last verification.
    pub(super) async fn verify(&self) -> Result<()> {
        self.verify_with_failing_checks(|_| false).await
    }

    /// Verifies like [`Scenario::verify`], where `/readyz` may have failed in the lines for which
    /// `is_expected` holds.
    pub(super) async fn verify_with_failing_checks(&self, is_expected: impl Fn(&str) -> bool) -> Result<()> {
        self.work.verify().await?;
        self.ensure_healthy(is_expected).await?;
        AuditLog::of(&self.plane)?.check_effects()
    }

    /// Checks that the daemon is ready, that `/livez` has never failed, and that `/readyz` failed
    /// only in lines for which `is_expected` holds.
    pub(super) async fn ensure_healthy(&self, is_expected: impl Fn(&str) -> bool) -> Result<()> {
        self.daemon.admin.wait_until_ready().await?;
        self.health_monitor.ensure_always_live()?;
        let mut failed = self.health_monitor.take_failed_checks();
        failed.retain(|line| !is_expected(line));
        ensure!(failed.is_empty(), "/readyz has failed: {failed:#?}");
        Ok(())
    }

    /// Waits until there are at most `limit` tasks besides those of connections, and returns their
    /// number.
    ///
    /// A connection has a task of the proxy and one of the daemon, and a watch one more. So tasks
    /// are counted between a reset and the moment at which the informers connect again.
    async fn tasks(&self, limit: usize) -> Result<usize> {
        eventually(LIMIT, "tasks to end", || async {
            self.proxy.reset();
            self.daemon.admin.wait_until_ready().await?;
            let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            let connections = self.proxy.connections();
            ensure!(connections <= FEW_CONNECTIONS, "{connections} connections are open");
            let tasks = tasks.saturating_sub(2 * connections);
            ensure!(
                tasks <= limit,
                "{tasks} tasks besides those of {connections} connections, expected at most {limit}"
            );
            anyhow::Ok(tasks)
        })
        .await
    }

    /// Sets the clock back to a time before the last due time. Sets it forward again once the
    /// schedule controllers have decided at that time.
    pub(super) async fn set_clock_back_and_forth(&self) -> Result<()> {
        let decisions = async || {
            let metrics = self.daemon.admin.metrics().await?;
            let of = |controller: &str| {
                metrics.sum(
                    "controller_runtime_reconcile_total",
                    &[&format!("controller=\"{controller}\"")],
                )
            };
            anyhow::Ok(Kind::BOTH.map(|kind| of(kind.controller())))
        };
        let (now, before) = (self.clock.now(), decisions().await?);
        self.clock.set(now - minutes(2 * STEP));
        eventually(LIMIT, "decisions by a clock that was set back", || async {
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

    /// Ends the scenario: checks that no task is left over and that no reconcile has panicked, and
    /// stops the daemon.
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

/// The account of a daemon.
pub(super) struct Account {
    /// The namespace of the account.
    pub(super) system: Namespace,
    /// The kubeconfig of the account, which connects through the proxy.
    pub(super) kubeconfig: PathBuf,
    flags: &'static [&'static str],
}

impl Account {
    /// Creates an account with the printed RBAC rules.
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

    /// Grants the printed RBAC rules to the account, and waits until the apiserver applies them.
    pub(super) async fn grant(&self) -> Result<()> {
        let rbac = printed(&[
            "rbac",
            &ALL_CONTROLLERS,
            "--install-crds",
            "--namespace",
            self.system.name(),
        ])?;
        rbac::apply_and_wait(self.system.client(), self.system.name(), &rbac).await
    }

    /// Starts a daemon with all controllers under this account.
    pub(super) async fn run(&self, clock: &OffsetClock) -> Result<InProcess> {
        let flags = [
            &[&*ALL_CONTROLLERS, "--install-crds"],
            &PROMPT_NAMESPACES[..],
            self.flags,
        ]
        .concat();
        InProcess::start_as(
            &self.kubeconfig,
            Arc::new(clock.clone()),
            portreeve_cli::CONTROLLERS,
            &flags,
        )
        .await
    }
}
