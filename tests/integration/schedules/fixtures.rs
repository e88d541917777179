//! A control plane, a daemon with both controllers whose clock the test sets, and one namespace.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::kinds::Kind;
use crate::{
    clock::OffsetClock,
    in_process::InProcess,
    shared,
    support::{LIMIT, daemon::printed, fixtures::NamespaceFixture},
};

const CONTROLLERS: &str = "--controllers=crontab,cronjob";
/// More than some objects take to be created, and to be looked at, on a busy machine.
const ROOM: SignedDuration = SignedDuration::from_secs(20);

pub(super) struct ScheduleEnvironment {
    // Dropped in this order.
    pub(super) daemon: InProcess,
    pub(super) clock: OffsetClock,
    pub(super) fixture: NamespaceFixture,
    kubeconfig: PathBuf,
    pub(super) plane: ControlPlane,
}

impl ScheduleEnvironment {
    pub(super) async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let system = plane.namespace("portreeve-system").await?;
        let rbac = printed(&["rbac", CONTROLLERS, "--install-crds", "--namespace", system.name()])?;
        shared::apply_and_wait(system.client(), system.name(), &rbac).await?;
        let kubeconfig = plane
            .service_account_kubeconfig(system.name(), "portreeve", Vec::new())
            .await?;
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

    /// Stops the daemon and starts another one.
    pub(super) async fn restart(self) -> Result<Self> {
        let Self {
            daemon,
            clock,
            fixture,
            kubeconfig,
            plane,
        } = self;
        daemon.stop().await?;
        let daemon = run(&kubeconfig, &clock).await?;
        Ok(Self {
            daemon,
            clock,
            fixture,
            kubeconfig,
            plane,
        })
    }

    /// Ends the test: nothing that the daemon needed was refused to it.
    pub(super) async fn finish(self) -> Result<()> {
        self.daemon.finish().await
    }

    pub(super) fn objects(&self, kind: Kind) -> Api<DynamicObject> {
        kind.objects(&self.fixture.namespace)
    }

    /// Waits until some time is left before the next minute that is one of every `step`: what is created now is created before it.
    pub(super) async fn until_between(&self, step: i64) {
        let now = Timestamp::now();
        let left = next_minute(now, step).duration_since(now);
        if left < ROOM {
            tokio::time::sleep(left.unsigned_abs()).await;
        }
    }

    /// Creates an object of that kind. Returns when it was created.
    pub(super) async fn create(&self, kind: Kind, name: &str, schedule: &str, more: Value) -> Result<Timestamp> {
        let created = kind.create(&self.fixture.namespace, name, schedule, &more).await?;
        let time = created.metadata.creation_timestamp.context("it has no time")?;
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

    /// Waits until the controller has heard of everything so far: it starts what was created after that, for a time that has come.
    ///
    /// The clock must be at a multiple of ten minutes that comes later than now.
    pub(super) async fn catch_up(&self, kind: Kind, witness: &str, slot: Timestamp) -> Result<()> {
        let created = self.create(kind, witness, "*/10 * * * *", json!({})).await?;
        ensure!(created < slot, "{created} is not before {slot}");
        self.wait_for_jobs(witness, &[job_of(witness, slot)]).await?;
        self.delete(kind, witness).await
    }

    pub(super) async fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        self.objects(kind).delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until the status of an object is as wanted, and returns it.
    pub(super) async fn status(
        &self,
        kind: Kind,
        name: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let objects = self.objects(kind);
        eventually(LIMIT, &format!("{kind:?} {name}: {what}"), || async {
            let found = objects.get(name).await?;
            let status = found.data.get("status").cloned().unwrap_or_default();
            ensure!(wanted(&status), "its status is {status}");
            anyhow::Ok(status)
        })
        .await
    }

    /// Waits until the controller has seen an object, so that a time that comes now finds it waiting.
    pub(super) async fn seen(&self, kind: Kind, name: &str) -> Result<()> {
        if kind == Kind::CronTab {
            self.status(kind, name, "a condition", |status| status["conditions"].is_array())
                .await?;
        }
        Ok(())
    }

    /// The Jobs of a schedule, by name.
    pub(super) async fn jobs(&self, owner: &str) -> Result<Vec<Job>> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut found = jobs.list(&ListParams::default()).await?.items;
        found.retain(|job| job.owner_references().iter().any(|reference| reference.name == owner));
        found.sort_by_key(ResourceExt::name_any);
        Ok(found)
    }

    /// Waits until a schedule has exactly the Jobs of these times and values, and returns them.
    pub(super) async fn wait_for_jobs(&self, owner: &str, names: &[String]) -> Result<Vec<Job>> {
        eventually(LIMIT, &format!("the Jobs {names:?}"), || async {
            let jobs = self.jobs(owner).await?;
            let found: Vec<_> = jobs.iter().map(ResourceExt::name_any).collect();
            ensure!(found == names, "{found:?}");
            anyhow::Ok(jobs)
        })
        .await
    }

    /// Ends a Job as Kubernetes' job controller would, at the clock's time.
    pub(super) async fn end_job(&self, name: &str, succeeded: bool) -> Result<()> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        let now = format!("{:.0}", portreeve_reconcile::Clock::now(&self.clock));
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "ATest", "lastTransitionTime": now, "lastProbeTime": now});
        let status = if succeeded {
            let conditions = [condition("SuccessCriteriaMet"), condition("Complete")];
            json!({"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions})
        } else {
            json!({"startTime": now, "failed": 1, "conditions": [condition("FailureTarget"), condition("Failed")]})
        };
        let patch = Patch::Merge(json!({"status": status}));
        let patched = jobs.patch_status(name, &PatchParams::default(), &patch).await;
        patched.with_context(|| format!("failed to end Job {name}"))?;
        Ok(())
    }

    /// Waits until there are Events of these reasons on an object, and no others, in this order.
    pub(super) async fn wait_for_events(&self, object: &str, reasons: &[&str]) -> Result<Vec<Event>> {
        self.fixture.wait_for_events(object, reasons).await
    }
}

async fn run(kubeconfig: &std::path::Path, clock: &OffsetClock) -> Result<InProcess> {
    let flags = [CONTROLLERS, "--install-crds"];
    InProcess::start_as(kubeconfig, Arc::new(clock.clone()), portreeve::CONTROLLERS, &flags).await
}

/// The first whole number of minutes after a time that is one of every `step` minutes of the hour.
pub(crate) fn next_minute(after: Timestamp, step: i64) -> Timestamp {
    let seconds = 60 * step;
    let slot = (after.as_second().div_euclid(seconds) + 1) * seconds;
    Timestamp::from_second(slot).unwrap_or(after)
}

/// The name of the Job of a time.
pub(crate) fn job_of(owner: &str, slot: Timestamp) -> String {
    format!("{owner}-{}", slot.as_second() / 60)
}

pub(crate) fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}
