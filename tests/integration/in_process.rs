//! Runs a daemon inside the test process, with controllers that the test defines.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use portreeve::{Config, Error};
use portreeve_reconcile::{Clock, Descriptor, Shutdown, SystemClock};
use portreeve_testing::{ControlPlane, eventually, free_port};
use tokio::{task::JoinSet, time::timeout};

use crate::support::{
    LIMIT,
    admin::{Admin, OPEN},
    daemon::leader_elect_flag,
};

/// The number of ports to try: another process may take a free port before the daemon listens on
/// it.
const PORT_ATTEMPTS: usize = 5;

/// A running daemon. Dropping it aborts the daemon without a drain.
pub(crate) struct InProcess {
    stop: Shutdown,
    task: JoinSet<Result<(), Error>>,
    pub(crate) admin: Admin,
}

impl InProcess {
    /// Starts a daemon with the `known` controllers, and waits until it is ready.
    pub(crate) async fn start(plane: &ControlPlane, known: &'static [Descriptor], flags: &[&str]) -> Result<Self> {
        Self::start_as(plane.kubeconfig(), Arc::new(SystemClock), known, flags).await
    }

    /// Starts a daemon like [`InProcess::start`], with another kubeconfig and another clock.
    pub(crate) async fn start_as(
        kubeconfig: &Path,
        clock: Arc<dyn Clock>,
        known: &'static [Descriptor],
        flags: &[&str],
    ) -> Result<Self> {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        for _ in 0..PORT_ATTEMPTS {
            let admin = Admin { port: free_port()? };
            let port = format!("--secure-port={}", admin.port);
            let common = ["portreeve", &*kubeconfig, &*port, "--bind-address=127.0.0.1", OPEN];
            let arguments = common
                .into_iter()
                .chain(leader_elect_flag(flags))
                .chain(flags.iter().copied());
            let config = Config::parse(arguments, known)?;
            let stop = Shutdown::new();
            let mut task = JoinSet::new();
            task.spawn(portreeve::run(config, known, Arc::clone(&clock), stop.clone()));
            let mut daemon = Self { stop, task, admin };
            tokio::select! {
                ready = admin.wait_until_ready() => return ready.map(|()| daemon),
                end = daemon.task.join_next() => match end {
                    Some(Ok(Err(Error::Serving(_)))) => {}
                    end => bail!("the daemon ended: {end:?}"),
                },
            }
        }
        bail!("found no free port in {PORT_ATTEMPTS} attempts");
    }

    /// Waits until a metric has the value `value`.
    pub(crate) async fn wait_for_metric(&self, name: &str, labels: &[&str], value: f64) -> Result<()> {
        eventually(LIMIT, &format!("{name}{labels:?} to be {value}"), || async {
            let found = self.admin.metrics().await?.sum(name, labels);
            ensure!((found - value).abs() < f64::EPSILON, "{name}{labels:?} is {found}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until a counter exceeds its present value.
    pub(crate) async fn wait_for_more(&self, name: &str, labels: &[&str], limit: Duration) -> Result<()> {
        let before = self.admin.metrics().await?.sum(name, labels);
        eventually(limit, &format!("{name}{labels:?} to be more than {before}"), || async {
            let found = self.admin.metrics().await?.sum(name, labels);
            ensure!(found > before, "{name}{labels:?} is {found}");
            anyhow::Ok(())
        })
        .await
    }

    /// Requests the daemon to stop, and waits until it has stopped.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.stop.request();
        let end = timeout(LIMIT, self.task.join_next())
            .await
            .context("timed out waiting for the daemon to stop")?;
        end.context("the daemon task was not running")??
            .context("the daemon failed")
    }

    /// Stops the daemon like [`InProcess::stop`], after checking that no request was forbidden and
    /// that no reconcile panicked.
    pub(crate) async fn finish(self) -> Result<()> {
        let metrics = self.admin.metrics().await?;
        let forbidden = metrics.sum("rest_client_requests_total", &[r#"code="403""#]);
        ensure!(forbidden == 0.0, "{forbidden} requests were refused");
        let panics = metrics.sum("controller_runtime_reconcile_panics_total", &[]);
        ensure!(panics == 0.0, "{panics} panics");
        self.stop().await
    }
}
