//! The profile of ttl-after-finished-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, api::ListParams};
use portreeve_testing::eventually;
use serde_json::json;

use crate::{
    fixtures::{
        LIMIT,
        clock::OffsetClock,
        jobs::{JOBS, Jobs},
        metric_family::Family,
        namespace::NamespaceFixture,
        schedules::minutes,
    },
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_ttlafterfinished::DESCRIPTOR,
    reach: Reach::OwnKinds,
    reads: Reads::Never,
    objects: &[JOBS],
    metadata: None,
    queues: &["ttl_jobs_to_delete"],
    families: &[Family::histogram(
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        "",
        &[
            0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
        ],
    )],
    kubernetes_role: Some("system:controller:ttl-after-finished-controller"),
    use_permissions: |fixture, clock| async move { use_permissions(&fixture, &clock).await }.boxed(),
    work: |wave| async move { Ok(Box::new(FinishedJobs::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { pending(&fixture).await }.boxed(),
};

/// Makes the controller keep a finished Job for its TTL and then delete it.
async fn use_permissions(fixture: &NamespaceFixture, clock: &OffsetClock) -> Result<()> {
    let jobs = Jobs::of(fixture);
    let created = jobs.create("once", json!({"ttlSecondsAfterFinished": 600})).await?;
    let created = created
        .metadata
        .creation_timestamp
        .context("the Job has no creation timestamp")?
        .0;
    jobs.end("once", created, true).await?;
    clock.set(created + minutes(10));
    eventually(LIMIT, "the Job to be deleted", || async {
        let found = jobs.0.get("once").await?;
        ensure!(
            found.metadata.deletion_timestamp.is_some(),
            "the Job is not being deleted"
        );
        anyhow::Ok(())
    })
    .await
}

async fn pending(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
    let work = FinishedJobs::of(fixture);
    work.finish("expired", 1, Timestamp::now() - SignedDuration::from_secs(60))
        .await?;
    Ok(Box::new(work))
}

/// Jobs that have finished. They have no owner.
struct FinishedJobs {
    jobs: Jobs,
    /// The Job that has not expired.
    kept: Option<String>,
}

impl FinishedJobs {
    /// The TTL in seconds of the Job of a wave. It expires before the next wave.
    const TTL: u32 = 1_200;

    fn of(fixture: &NamespaceFixture) -> Self {
        Self {
            jobs: Jobs::of(fixture),
            kept: None,
        }
    }

    /// Creates a Job with this TTL in seconds that has finished at this time.
    async fn finish(&self, name: &str, ttl: u32, time: Timestamp) -> Result<()> {
        self.jobs.create(name, json!({"ttlSecondsAfterFinished": ttl})).await?;
        self.jobs
            .end(name, Timestamp::from_second(time.as_second())?, true)
            .await
    }
}

impl Expected for FinishedJobs {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let mut jobs = self.jobs.0.list_metadata(&ListParams::default()).await?.items;
            jobs.retain(|job| job.owner_references().is_empty());
            let names: Vec<_> = jobs.iter().map(ResourceExt::name_any).collect();
            let kept: Vec<_> = self.kept.iter().cloned().collect();
            ensure!(names == kept, "found finished Jobs {names:?}, expected {kept:?}");
            let is_kept = jobs.iter().all(|job| job.metadata.deletion_timestamp.is_none());
            ensure!(is_kept, "{kept:?} is being deleted");
            Ok(())
        };
        checked.boxed()
    }
}

impl Work for FinishedJobs {
    /// The Job of the wave before expires.
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            let name = format!("finished-{}", wave.number);
            self.finish(&name, Self::TTL, wave.slot).await?;
            self.kept = Some(name);
            Ok(())
        };
        work.boxed()
    }

    /// The Job expires at once.
    fn churn<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            self.finish(&format!("churned-{}", wave.number), 0, Timestamp::now())
                .await
        };
        work.boxed()
    }
}
