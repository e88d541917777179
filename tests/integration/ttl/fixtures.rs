//! A control plane behind a proxy, one namespace with Jobs, and a daemon whose clock the test sets.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, FaultProxy, eventually};
use serde_json::{Value, json};

use crate::{
    clock::OffsetClock,
    in_process::InProcess,
    shared,
    support::{LIMIT, daemon::printed, fixtures::NamespaceFixture},
};

pub(super) const CONTROLLERS: &str = "--controllers=ttl-after-finished";
/// One worker, so that Jobs are processed in the order of their events.
const ONE_WORKER: &str = "--concurrent-ttl-after-finished-syncs=1";
/// The finalizer that the apiserver adds when an object is deleted in the foreground.
const FOREGROUND: &str = "foregroundDeletion";

pub(super) struct TtlEnvironment {
    // The fields are dropped in this order.
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) jobs: Jobs,
    pub(super) fixture: NamespaceFixture,
    kubeconfig: PathBuf,
    pub(super) proxy: FaultProxy,
    pub(super) plane: ControlPlane,
    /// The number of canary Jobs that were created for [`TtlEnvironment::catch_up`] and
    /// [`TtlEnvironment::advance`].
    pub(super) canaries: u32,
}

/// Creates an account with the printed RBAC rules, and returns its kubeconfig.
pub(super) async fn account(plane: &ControlPlane) -> Result<PathBuf> {
    let system = plane.namespace("portreeve-system").await?;
    let rbac = printed(&["rbac", CONTROLLERS, "--namespace", system.name()])?;
    shared::apply_and_wait(system.client(), system.name(), &rbac).await?;
    plane
        .service_account_kubeconfig(system.name(), "portreeve", Vec::new())
        .await
}

async fn run(kubeconfig: &std::path::Path, clock: &OffsetClock) -> Result<InProcess> {
    let flags = [CONTROLLERS, ONE_WORKER];
    InProcess::start_as(kubeconfig, Arc::new(clock.clone()), portreeve::CONTROLLERS, &flags).await
}

impl TtlEnvironment {
    pub(super) async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(&account(&plane).await?, "portreeve")?;
        let clock = OffsetClock::new();
        let daemon = run(&kubeconfig, &clock).await?;
        let fixture = NamespaceFixture::new(&plane, "ttl").await?;
        Ok(Self {
            daemon,
            clock,
            jobs: Jobs::of(&fixture),
            fixture,
            kubeconfig,
            proxy,
            plane,
            canaries: 0,
        })
    }

    /// Stops the daemon, runs `meanwhile`, and starts a new daemon.
    pub(super) async fn restart_after(
        self,
        meanwhile: impl AsyncFnOnce(&Jobs, &OffsetClock) -> Result<()>,
    ) -> Result<Self> {
        let Self { daemon, .. } = self;
        daemon.stop().await?;
        meanwhile(&self.jobs, &self.clock).await?;
        let daemon = run(&self.kubeconfig, &self.clock).await?;
        Ok(Self { daemon, ..self })
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

/// The Jobs of one namespace, with administrator rights.
#[derive(Clone)]
pub(crate) struct Jobs(pub(crate) Api<Job>);

impl Jobs {
    pub(crate) fn of(fixture: &NamespaceFixture) -> Self {
        Self(fixture.namespace.api())
    }

    /// Creates an unfinished Job with these fields in its spec.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<Job> {
        self.create_with(name, spec, &[]).await
    }

    /// Creates a Job as [`Jobs::create`] does, with finalizers.
    pub(super) async fn create_with(&self, name: &str, mut spec: Value, finalizers: &[&str]) -> Result<Job> {
        spec["template"] = json!({"spec": {
            "containers": [{"name": "main", "image": "example.com/main:1"}], "restartPolicy": "Never"}});
        let metadata = json!({"name": name, "finalizers": finalizers});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec});
        let created = self
            .0
            .create(&PostParams::default(), &serde_json::from_value(job)?)
            .await;
        created.with_context(|| format!("failed to create Job {name}"))
    }

    /// Finishes a Job as Kubernetes' job controller would.
    pub(crate) async fn end(&self, name: &str, time: Timestamp, succeeded: bool) -> Result<()> {
        let time = format!("{time:.0}");
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "ATest", "lastTransitionTime": time, "lastProbeTime": time});
        let status = if succeeded {
            let conditions = [condition("SuccessCriteriaMet"), condition("Complete")];
            json!({"startTime": time, "completionTime": time, "succeeded": 1, "conditions": conditions})
        } else {
            json!({"startTime": time, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")]})
        };
        self.set_status(name, status).await
    }

    pub(crate) async fn set_status(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = self.0.patch_status(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("failed to set the status of Job {name}"))?;
        Ok(())
    }

    pub(super) async fn merge(&self, name: &str, patch: Value) -> Result<Job> {
        let patched = self.0.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.with_context(|| format!("failed to patch Job {name}"))
    }

    pub(super) async fn set_ttl(&self, name: &str, ttl: impl Into<Value>) -> Result<Job> {
        let patch = json!({"spec": {"ttlSecondsAfterFinished": ttl.into()}});
        self.merge(name, patch).await
    }

    /// Waits until a Job is being deleted in the foreground, and returns it.
    pub(super) async fn wait_until_deleted(&self, name: &str) -> Result<Job> {
        eventually(LIMIT, &format!("Job {name} to be deleted"), || async {
            let job = self.0.get(name).await?;
            ensure!(
                job.metadata.deletion_timestamp.is_some(),
                "the Job is not being deleted"
            );
            let collected = job.finalizers().iter().any(|finalizer| finalizer == FOREGROUND);
            ensure!(
                collected,
                "the Job is not being deleted in the foreground: {:?}",
                job.finalizers()
            );
            anyhow::Ok(job)
        })
        .await
    }

    /// Returns the Jobs that are being deleted.
    pub(super) async fn deleted(&self) -> Result<Vec<Job>> {
        let mut found = self.0.list(&ListParams::default()).await?.items;
        found.retain(|job| job.metadata.deletion_timestamp.is_some());
        Ok(found)
    }

    /// Fails if any of these Jobs is being deleted.
    pub(super) async fn ensure_kept(&self, names: &[&str]) -> Result<()> {
        for name in names {
            let job = self.0.get(name).await?;
            let deleted = &job.metadata.deletion_timestamp;
            ensure!(deleted.is_none(), "Job {name} was deleted at {deleted:?}");
        }
        Ok(())
    }
}

pub(super) fn seconds(count: i64) -> SignedDuration {
    SignedDuration::from_secs(count)
}

fn whole_second(time: Timestamp) -> Result<Timestamp> {
    Timestamp::from_second(time.as_second()).context("the time is out of range")
}
