//! A control plane, one namespace, and a daemon with both schedule controllers whose clock the test
//! sets.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use portreeve_reconcile::Clock;
use portreeve_testing::{FaultProxy, PooledPlane, eventually};
use serde_json::{Value, json};

use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    definitions::plane_with_definitions,
    in_process::InProcess,
    jobs::Jobs,
    namespace::NamespaceFixture,
    rbac::restricted_kubeconfig,
    schedules::{Kind, next_minute},
};

const CONTROLLERS: &str = "--controllers=crontab,cronjob";
/// The minimum time before a due time. A loaded machine needs less to create some objects and to
/// reconcile them.
const TIME_LEFT: SignedDuration = SignedDuration::from_secs(20);

pub(super) struct ScheduleEnvironment {
    // The fields are dropped in this order.
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) fixture: NamespaceFixture,
    kubeconfig: PathBuf,
    pub(super) plane: PooledPlane,
}

impl ScheduleEnvironment {
    pub(super) async fn start() -> Result<Self> {
        let plane = plane_with_definitions().await?;
        let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS, "--install-crds"]).await?;
        Self::start_with(plane, kubeconfig).await
    }

    /// Starts the daemon behind a proxy that has these faults from the beginning.
    pub(super) async fn start_behind_proxy(faults: impl FnOnce(&FaultProxy)) -> Result<(Self, FaultProxy)> {
        let plane = plane_with_definitions().await?;
        let proxy = FaultProxy::start(&plane).await?;
        faults(&proxy);
        let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS, "--install-crds"]).await?;
        let kubeconfig = proxy.kubeconfig(&kubeconfig, "schedules")?;
        Ok((Self::start_with(plane, kubeconfig).await?, proxy))
    }

    async fn start_with(plane: PooledPlane, kubeconfig: PathBuf) -> Result<Self> {
        let clock = OffsetClock::new();
        let daemon = run(&kubeconfig, &clock).await?;
        let fixture = NamespaceFixture::new(&plane, "schedules").await?;
        Ok(Self {
            daemon,
            clock,
            fixture,
            kubeconfig,
            plane,
        })
    }

    /// Stops the daemon and starts a new one.
    pub(super) async fn restart(self) -> Result<Self> {
        let Self { daemon, .. } = self;
        daemon.stop().await?;
        let daemon = run(&self.kubeconfig, &self.clock).await?;
        Ok(Self { daemon, ..self })
    }

    /// Stops the daemon, after checking that no request was forbidden and that no reconcile
    /// panicked.
    pub(super) async fn finish(self) -> Result<()> {
        self.daemon.finish().await
    }

    pub(super) fn objects(&self, kind: Kind) -> Api<DynamicObject> {
        kind.objects(&self.fixture.namespace)
    }

    /// Waits until at least `TIME_LEFT` is left before the next multiple of `step` minutes, so that
    /// the test can create objects before that time.
    pub(super) async fn wait_until_time_left(&self, step: i64) {
        let now = Timestamp::now();
        let left = next_minute(now, step).duration_since(now);
        if left < TIME_LEFT {
            tokio::time::sleep(left.unsigned_abs()).await;
        }
    }

    /// Creates an object of `kind`, and returns its creation time.
    pub(super) async fn create(&self, kind: Kind, name: &str, schedule: &str, more: Value) -> Result<Timestamp> {
        let created = kind.create(&self.fixture.namespace, name, schedule, &more).await?;
        let time = created
            .metadata
            .creation_timestamp
            .context("the object has no creation timestamp")?;
        Ok(time.0)
    }

    pub(super) async fn merge(&self, kind: Kind, name: &str, patch: Value) -> Result<()> {
        let patched = self
            .objects(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("failed to patch {kind:?} {name}"))?;
        Ok(())
    }

    /// Waits until the controller has processed all earlier events. Creates a schedule, and waits
    /// until the controller starts a run of it.
    ///
    /// The clock must be at `slot`, a multiple of ten minutes later than the system time.
    pub(super) async fn catch_up(&self, kind: Kind, canary: &str, slot: Timestamp) -> Result<()> {
        let created = self.create(kind, canary, "*/10 * * * *", json!({})).await?;
        ensure!(created < slot, "{created} is not before {slot}");
        self.wait_for_jobs(canary, &[kind.job_of(canary, slot)]).await?;
        self.delete(kind, canary).await
    }

    pub(super) async fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        self.objects(kind).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the status of an object satisfies `wanted`, and returns the status.
    pub(super) async fn status(
        &self,
        kind: Kind,
        name: &str,
        what: &str,
        expected: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let objects = self.objects(kind);
        eventually(LIMIT, &format!("{kind:?} {name}: {what}"), || async {
            let found = objects.get(name).await?;
            let status = found.data.get("status").cloned().unwrap_or_default();
            ensure!(expected(&status), "the status is {status}");
            anyhow::Ok(status)
        })
        .await
    }

    /// Waits until the controller has reconciled a new CronTab, so that its key is queued for the
    /// next run. Returns at once for a CronJob, whose status does not show this.
    pub(super) async fn wait_until_reconciled(&self, kind: Kind, name: &str) -> Result<()> {
        if kind == Kind::CronTab {
            self.status(kind, name, "a condition", |status| status["conditions"].is_array())
                .await?;
        }
        Ok(())
    }

    /// Returns the Jobs of a schedule, sorted by name.
    pub(super) async fn jobs(&self, owner: &str) -> Result<Vec<Job>> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut found = jobs.list(&ListParams::default()).await?.items;
        found.retain(|job| job.owner_references().iter().any(|reference| reference.name == owner));
        found.sort_by_key(ResourceExt::name_any);
        Ok(found)
    }

    /// Waits until a schedule has exactly the Jobs `names`, and returns them.
    pub(super) async fn wait_for_jobs(&self, owner: &str, names: &[String]) -> Result<Vec<Job>> {
        eventually(LIMIT, &format!("the Jobs {names:?}"), || async {
            let jobs = self.jobs(owner).await?;
            let found: Vec<_> = jobs.iter().map(ResourceExt::name_any).collect();
            ensure!(found == names, "{found:?}");
            anyhow::Ok(jobs)
        })
        .await
    }

    /// Finishes a Job as Kubernetes' job controller would, at the clock's time.
    pub(super) async fn end_job(&self, name: &str, succeeded: bool) -> Result<()> {
        Jobs::of(&self.fixture).end(name, self.clock.now(), succeeded).await
    }

    /// Waits until the object has Events with exactly these reasons, in this order.
    pub(super) async fn wait_for_events(&self, object: &str, reasons: &[&str]) -> Result<Vec<Event>> {
        self.fixture.wait_for_events(object, reasons).await
    }
}

async fn run(kubeconfig: &std::path::Path, clock: &OffsetClock) -> Result<InProcess> {
    let flags = [CONTROLLERS, "--install-crds"];
    InProcess::start_as(kubeconfig, Arc::new(clock.clone()), portreeve_cli::CONTROLLERS, &flags).await
}
