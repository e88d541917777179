//! The profiles of the two schedule controllers.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{Namespace, eventually};
use serde_json::json;

use crate::{
    fixtures::{
        LIMIT,
        clock::OffsetClock,
        jobs::{JOBS, Jobs},
        metric_family::Family,
        namespace::NamespaceFixture,
        schedules::{CRON_JOBS, Kind, minutes, next_minute},
    },
    profile::{Expected, Profile, Reach, Reads, STEP, Wave, Work},
};

pub(crate) static CRONTAB: Profile = Profile {
    descriptor: portreeve_crontab::CRONTAB,
    reach: Reach::OwnKinds,
    reads: Reads::AfterDeletion,
    objects: &[CRONTABS, JOBS],
    metadata: None,
    queues: &["crontab"],
    families: &[],
    kubernetes_role: None,
    use_permissions: |fixture, clock| async move { use_permissions(&fixture, &clock, Kind::CronTab).await }.boxed(),
    work: |wave| async move { Schedule::create(&wave, Kind::CronTab).await }.boxed(),
    pending: |fixture| async move { pending(&fixture, Kind::CronTab).await }.boxed(),
};

pub(crate) static CRONJOB: Profile = Profile {
    descriptor: portreeve_crontab::CRONJOB,
    reach: Reach::OwnKinds,
    reads: Reads::AfterDeletion,
    objects: &[CRON_JOBS, JOBS],
    metadata: None,
    queues: &["cronjob"],
    families: &[Family::histogram(
        "cronjob_controller_job_creation_skew_duration_seconds",
        "",
        // Powers of two.
        &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0],
    )],
    kubernetes_role: Some("system:controller:cronjob-controller"),
    use_permissions: |fixture, clock| async move { use_permissions(&fixture, &clock, Kind::CronJob).await }.boxed(),
    work: |wave| async move { Schedule::create(&wave, Kind::CronJob).await }.boxed(),
    pending: |fixture| async move { pending(&fixture, Kind::CronJob).await }.boxed(),
};

/// Makes the controller start a Job, clean it up when it has finished, and start another Job, which
/// the test deletes while it runs.
async fn use_permissions(fixture: &NamespaceFixture, clock: &OffsetClock, kind: Kind) -> Result<()> {
    let namespace = &fixture.namespace;
    let objects = kind.objects(namespace);
    let (jobs, name): (Api<Job>, _) = (namespace.api(), kind.name());
    let keep_none = json!({"successfulJobsHistoryLimit": 0});
    let created = kind.create(namespace, name, "0 * * * *", &keep_none).await?;
    let created = created
        .metadata
        .creation_timestamp
        .context("the object has no creation timestamp")?;
    let wait_for_active = |count: usize| {
        let objects = objects.clone();
        async move {
            eventually(LIMIT, &format!("{count} active Jobs in the status"), || async {
                let status = objects.get(name).await?.data["status"].clone();
                let found = status["active"].as_array().map_or(0, Vec::len);
                ensure!(found == count, "{status}");
                Ok(())
            })
            .await
        }
    };

    let slot = next_minute(created.0, 60);
    clock.set(slot);
    wait_for_active(1).await?;
    let job = kind.job_of(name, slot);
    Jobs::of(fixture).end(&job, slot, true).await?;
    eventually(LIMIT, "the Job to be cleaned up", || async {
        ensure!(jobs.get_opt(&job).await?.is_none(), "the Job still exists");
        anyhow::Ok(())
    })
    .await?;
    wait_for_active(0).await?;

    let slot = slot + minutes(60);
    clock.set(slot);
    wait_for_active(1).await?;
    jobs.delete(&kind.job_of(name, slot), &DeleteParams::background())
        .await?;
    wait_for_active(0).await
}

/// Creates a schedule that was due within the last hour, and is not due again for most of an hour.
async fn pending(fixture: &NamespaceFixture, kind: Kind) -> Result<Box<dyn Expected>> {
    let now = Timestamp::from_second(Timestamp::now().as_second())?;
    let due = next_minute(now - SignedDuration::from_mins(10), 1);
    let schedule = format!("{} * * * *", due.as_second() / 60 % 60);
    let zone = json!({"timeZone": "UTC"});
    kind.create(&fixture.namespace, kind.name(), &schedule, &zone).await?;
    let last = format!("{:.0}", due - SignedDuration::from_mins(60));
    let mut status = json!({"lastScheduleTime": last});
    // Without an observed schedule, CronTab would count as new and not start the run that it
    // missed.
    if kind == Kind::CronTab {
        status["observedSchedule"] = format!("{schedule} UTC").into();
    }
    let patch = Patch::Merge(json!({"status": status}));
    let objects = kind.objects(&fixture.namespace);
    objects
        .patch_status(kind.name(), &PatchParams::default(), &patch)
        .await?;
    Ok(Box::new(Schedule {
        kind,
        fixture: fixture.clone(),
        ended: None,
        running: Some(due),
    }))
}

/// Returns a schedule that is due at this time and whenever [`STEP`] minutes have passed.
pub(crate) fn every_step(from: Timestamp) -> String {
    format!("{}-59/{STEP} * * * *", from.as_second() / 60 % STEP)
}

/// A schedule that is due in each wave.
struct Schedule {
    kind: Kind,
    fixture: NamespaceFixture,
    /// The time of the run that has ended.
    ended: Option<Timestamp>,
    /// The time of the last run, whose Job is unfinished.
    running: Option<Timestamp>,
}

impl Schedule {
    async fn create(wave: &Wave, kind: Kind) -> Result<Box<dyn Work>> {
        let namespace: &Namespace = &wave.fixture.namespace;
        let more = json!({"successfulJobsHistoryLimit": 1});
        kind.create(namespace, kind.name(), &every_step(wave.slot), &more)
            .await?;
        Ok(Box::new(Self {
            kind,
            fixture: wave.fixture.clone(),
            ended: None,
            running: None,
        }))
    }

    fn job(&self, slot: Timestamp) -> String {
        self.kind.job_of(self.kind.name(), slot)
    }

    async fn check(&self) -> Result<()> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut found = jobs.list(&ListParams::default()).await?.items;
        let kind = self.kind.resource().kind;
        found.retain(|job| job.owner_references().iter().any(|owner| owner.kind == kind));
        let mut names: Vec<_> = found.iter().map(ResourceExt::name_any).collect();
        names.sort();
        let mut expected: Vec<_> = self
            .ended
            .iter()
            .chain(&self.running)
            .map(|slot| self.job(*slot))
            .collect();
        expected.sort();
        ensure!(names == expected, "found Jobs {names:?}, expected {expected:?}");
        ensure!(
            found.iter().all(|job| job.metadata.deletion_timestamp.is_none()),
            "a Job is being deleted"
        );
        let Some(running) = self.running else { return Ok(()) };
        let object = self.kind.objects(&self.fixture.namespace).get(self.kind.name()).await?;
        let status = object.data.get("status").cloned().unwrap_or_default();
        let last = status["lastScheduleTime"].as_str().map(str::parse::<Timestamp>);
        ensure!(matches!(last, Some(Ok(last)) if last == running), "{kind}: {status}");
        let active = status["active"].as_array().map(Vec::as_slice).unwrap_or_default();
        let active: Vec<_> = active.iter().filter_map(|job| job["name"].as_str()).collect();
        ensure!(active == [self.job(running)], "{kind}: {status}");
        Ok(())
    }
}

impl Expected for Schedule {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        self.check().boxed()
    }
}

impl Work for Schedule {
    /// The Job of the last wave ends, and a new one is due.
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            if let Some(last) = self.running {
                Jobs::of(&self.fixture).end(&self.job(last), wave.slot, true).await?;
                self.ended = Some(last);
            }
            self.running = Some(wave.slot);
            Ok(())
        };
        work.boxed()
    }

    /// Nothing is due.
    fn churn<'a>(&'a mut self, _: &'a Wave) -> BoxFuture<'a, Result<()>> {
        async { Ok(()) }.boxed()
    }
}
