//! A control plane behind a proxy, one namespace with Jobs, and a daemon whose clock the test sets.

use std::sync::Arc;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, FaultProxy, PooledPlane};
use serde_json::{Value, json};

use crate::fixtures::{
    clock::OffsetClock, in_process::InProcess, jobs::Jobs, namespace::NamespaceFixture, rbac::restricted_kubeconfig,
};

pub(super) const CONTROLLERS: &str = "--controllers=ttl-after-finished";
/// One worker, so that Jobs are processed in the order of their events.
const ONE_WORKER: &str = "--concurrent-ttl-after-finished-syncs=1";

pub(super) struct TtlEnvironment {
    // The fields are dropped in this order.
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) jobs: Jobs,
    pub(super) fixture: NamespaceFixture,
    pub(super) proxy: FaultProxy,
    pub(super) plane: PooledPlane,
    /// The number of canary Jobs that were created for [`TtlEnvironment::catch_up`] and
    /// [`TtlEnvironment::advance`].
    canaries: u32,
}

impl TtlEnvironment {
    pub(super) async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(&restricted_kubeconfig(&plane, &[CONTROLLERS]).await?, "portreeve")?;
        let clock = OffsetClock::new();
        let (known, flags) = (portreeve_cli::CONTROLLERS, [CONTROLLERS, ONE_WORKER]);
        let daemon = InProcess::start_as(&kubeconfig, Arc::new(clock.clone()), known, &flags).await?;
        let fixture = NamespaceFixture::new(&plane, "ttl").await?;
        Ok(Self {
            daemon,
            clock,
            jobs: Jobs::of(&fixture),
            fixture,
            proxy,
            plane,
            canaries: 0,
        })
    }

    /// Stops the daemon, after checking that no request was forbidden and that no reconcile
    /// panicked.
    pub(super) async fn finish(self) -> Result<()> {
        self.daemon.finish().await
    }

    /// Creates a Job with this TTL that finishes now, by the test's clock. Returns its finish time
    /// in whole seconds.
    pub(super) async fn finish_job(&self, name: &str, ttl: impl Into<Value>) -> Result<Timestamp> {
        self.jobs
            .create(name, json!({"ttlSecondsAfterFinished": ttl.into()}))
            .await?;
        let now = whole_second(self.clock.now())?;
        self.jobs.end(name, now, true).await?;
        Ok(now)
    }

    /// Waits until the controller has processed all earlier events. Creates a Job that has expired,
    /// and waits until the controller deletes it.
    pub(super) async fn catch_up(&mut self) -> Result<()> {
        let canary = self.canary();
        self.finish_job(&canary, 0).await?;
        self.jobs.wait_until_deleted(&canary).await?;
        Ok(())
    }

    /// Sets the clock to a later time, and returns once the controller has processed every Job at
    /// that time.
    pub(super) async fn advance(&mut self, to: Timestamp) -> Result<()> {
        // This canary expires at the new time. Its deletion shows that the controller has decided
        // again on waiting Jobs.
        let waiting = self.canary();
        let time = to.duration_since(self.clock.now()).as_secs();
        self.finish_job(&waiting, time).await?;
        self.catch_up().await?;
        self.clock.set(to);
        self.jobs.wait_until_deleted(&waiting).await?;
        self.catch_up().await
    }

    fn canary(&mut self) -> String {
        self.canaries += 1;
        format!("canary-{}", self.canaries)
    }
}

pub(super) fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

fn whole_second(time: Timestamp) -> Result<Timestamp> {
    Timestamp::from_second(time.as_second()).context("the time is out of range")
}
