//! Polls the health endpoints of a daemon throughout a test.

use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use http::StatusCode;
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::interval};

use crate::fixtures::admin::Admin;

/// The interval at which health is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// Polls `/livez` and `/readyz` of a daemon.
pub(super) struct HealthMonitor {
    history: Arc<Mutex<HealthHistory>>,
    _task: JoinSet<()>,
}

/// The failures that a [`HealthMonitor`] has observed.
#[derive(Default)]
struct HealthHistory {
    /// The first failure of `/livez`.
    livez_failure: Option<String>,
    /// The lines of `/readyz` that failed since the last [`HealthMonitor::take_failed_checks`].
    failed_checks: BTreeSet<String>,
}

impl HealthMonitor {
    pub(super) fn of(admin: Admin) -> Self {
        let history = Arc::<Mutex<HealthHistory>>::default();
        let mut task = JoinSet::new();
        task.spawn(poll_health(admin, Arc::clone(&history)));
        Self { history, _task: task }
    }

    /// Returns an error when `/livez` has failed at any time so far.
    pub(super) fn ensure_always_live(&self) -> Result<()> {
        let history = self.history.lock();
        let livez_failure = history.livez_failure.as_deref().unwrap_or_default();
        ensure!(livez_failure.is_empty(), "/livez has failed: {livez_failure}");
        Ok(())
    }

    /// Returns the lines of `/readyz` that have failed since the last call.
    pub(super) fn take_failed_checks(&self) -> BTreeSet<String> {
        mem::take(&mut self.history.lock().failed_checks)
    }

    /// Checks for the last time that `/livez` has never failed, before the daemon is stopped.
    pub(super) fn end(self) -> Result<()> {
        self.ensure_always_live()
    }
}

async fn poll_health(admin: Admin, history: Arc<Mutex<HealthHistory>>) {
    let mut ticks = interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        let failure = match admin.get("/livez?verbose").await {
            Ok((StatusCode::OK, _)) => None,
            Ok((status, text)) => Some(format!("{status}: {text}")),
            Err(error) => Some(format!("{error:#}")),
        };
        let failed_checks = admin.failing("/readyz").await;
        let mut history = history.lock();
        history.livez_failure = history.livez_failure.take().or(failure);
        history.failed_checks.extend(failed_checks.into_iter().flatten());
    }
}
