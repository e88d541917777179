//! The work of every controller, in waves, and the expected state of the cluster after each wave.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use portreeve_api::conditions::{self, ConditionStatus};
use portreeve_reconcile::Clock;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::fixtures::{
    RETRY_LIMIT,
    clock::OffsetClock,
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    jobs::Jobs,
    namespace::{NamespaceFixture, replicas},
    object_builder::{config_map, secret},
    schedules::{Kind, minutes, next_minute},
};

/// The number of minutes by which each wave advances the clock.
pub(super) const STEP: i64 = 10;
/// The TTL of finished Jobs in seconds, which is shorter than a step.
const TTL: u32 = 300;
/// The name prefix of Jobs that expire as soon as they are finished.
const CHURNED: &str = "churned-";

/// The objects that a test has created so far, in one namespace. The test writes to the apiserver
/// directly, not through the proxy.
pub(super) struct Work {
    pub(super) fixture: NamespaceFixture,
    dynamic_client: DynamicClient,
    clock: OffsetClock,
    waves: usize,
    /// The first wave whose Foos still exist.
    first_wave: usize,
    /// The schedule of the CronTab and of the CronJob.
    pub(super) schedule: String,
    /// The due time of the last wave, of both schedules.
    pub(super) slot: Timestamp,
    /// The replicas of each Foo, by name. Each Foo has a Deployment of the same name.
    foos: BTreeMap<String, i32>,
    /// The names of the Jobs that have to exist.
    jobs: Vec<String>,
    expected_objects: ExpectedObjects,
    /// The owners that the next wave deletes, with the deletion policies.
    doomed: Vec<(DynamicObject, Policy)>,
}

impl Work {
    pub(super) async fn start(plane: &ControlPlane, clock: &OffsetClock) -> Result<Self> {
        let fixture = NamespaceFixture::new(plane, "chaos").await?;
        // The first slot lies as far in the future as a step allows, so that only the test's clock
        // reaches it.
        let slot = next_minute(Timestamp::now(), 1) + minutes(STEP - 1);
        let schedule = format!("{}-59/{STEP} * * * *", slot.as_second() / 60 % STEP);
        for kind in Kind::BOTH {
            let more = json!({"successfulJobsHistoryLimit": 1});
            kind.create(&fixture.namespace, kind.name(), &schedule, &more).await?;
        }
        Ok(Self {
            dynamic_client: DynamicClient::of(&fixture.namespace),
            fixture,
            clock: clock.clone(),
            waves: 0,
            first_wave: 0,
            schedule,
            slot,
            foos: BTreeMap::new(),
            jobs: Vec::new(),
            expected_objects: ExpectedObjects::default(),
            doomed: Vec::new(),
        })
    }

    /// Gives every controller new, changed, due and deleted objects to process.
    pub(super) async fn wave(&mut self) -> Result<()> {
        self.change_foos().await?;
        self.change_owners().await?;
        self.change_jobs().await?;
        self.waves += 1;
        Ok(())
    }

    /// Runs the part of a wave for Foos, after their CRD was recreated.
    pub(super) async fn foo_wave(&mut self) -> Result<()> {
        self.change_foos().await?;
        self.waves += 1;
        Ok(())
    }

    /// Runs the parts of a wave that need no clock.
    pub(super) async fn churn(&mut self) -> Result<()> {
        self.change_foos().await?;
        self.change_owners().await?;
        let jobs = Jobs::of(&self.fixture);
        let name = format!("{CHURNED}{}", self.waves);
        jobs.create(&name, json!({"ttlSecondsAfterFinished": 0})).await?;
        jobs.end(&name, Timestamp::from_second(Timestamp::now().as_second())?, true)
            .await?;
        self.waves += 1;
        Ok(())
    }

    /// Creates three Foos. Changes the first Foo of the last wave, modifies the Deployment of the
    /// second, and deletes the Deployment of the third. Deletes the Foos of the wave before the
    /// last.
    async fn change_foos(&mut self) -> Result<()> {
        let of = |wave: usize| [0, 1, 2].map(|number| format!("foo-{wave}-{number}"));
        for name in of(self.waves) {
            self.fixture.create_foo(&name, &name, 2).await?;
            self.foos.insert(name, 2);
        }
        let earlier = |back: usize| self.waves.checked_sub(back).filter(|wave| *wave >= self.first_wave);
        let (last, old) = (earlier(1), earlier(2));
        if let Some(last) = last {
            let [changed, drifted, recreated] = of(last);
            self.fixture
                .merge_foo(&changed, json!({"spec": {"replicas": 5}}))
                .await?;
            self.foos.insert(changed, 5);
            self.fixture
                .merge_deployment(&drifted, json!({"spec": {"replicas": 9}}))
                .await?;
            let deployments = self.fixture.deployments();
            deployments.delete(&recreated, &DeleteParams::default()).await?;
        }
        if let Some(old) = old {
            for name in of(old) {
                self.fixture.foos().delete(&name, &DeleteParams::default()).await?;
                self.foos.remove(&name);
            }
        }
        Ok(())
    }

    /// Deletes the owners of the last wave, and creates new owners with dependents.
    async fn change_owners(&mut self) -> Result<()> {
        let (expected_objects, dynamic_client) = (&mut self.expected_objects, &self.dynamic_client);
        for (owner, policy) in self.doomed.drain(..) {
            expected_objects.delete(dynamic_client, &owner, policy).await?;
        }
        for policy in [Policy::Background, Policy::Foreground, Policy::Orphan] {
            let name = format!("{policy:?}-{}", self.waves).to_lowercase();
            let owner = expected_objects.create_one(dynamic_client, config_map(&name)).await?;
            let child = |number| secret(&format!("{name}-{number}")).blocking(&owner, true);
            let children = expected_objects.create(dynamic_client, (0..3).map(child)).await?;
            let first = children.first().context("no child was created")?;
            expected_objects
                .create_one(dynamic_client, config_map(&format!("{name}-own")).owned_by(first))
                .await?;
            self.doomed.push((owner, policy));
        }
        Ok(())
    }

    /// Finishes the running Jobs and one new Job, and advances the clock so that each schedule is
    /// due and an earlier Job expires.
    async fn change_jobs(&mut self) -> Result<()> {
        let jobs = Jobs::of(&self.fixture);
        let now = Timestamp::from_second(self.clock.now().as_second())?;
        let last = self.slot;
        self.jobs.clear();
        if self.waves > 0 {
            for kind in Kind::BOTH {
                let ended = kind.job_of(kind.name(), last);
                jobs.end(&ended, now, true).await?;
                self.jobs.push(ended);
            }
            self.slot = last + minutes(STEP);
        }
        self.clock.set(self.slot);
        let finished = format!("finished-{}", self.waves);
        jobs.create(&finished, json!({"ttlSecondsAfterFinished": TTL})).await?;
        let now = Timestamp::from_second(self.clock.now().as_second())?;
        jobs.end(&finished, now, true).await?;
        self.jobs.push(finished);
        self.jobs
            .extend(Kind::BOTH.map(|kind| kind.job_of(kind.name(), self.slot)));
        self.jobs.sort();
        Ok(())
    }

    /// Waits until the cluster has the expected state.
    pub(super) async fn verify(&self) -> Result<()> {
        self.wait_until_done().await?;
        self.expected_objects.verify(&self.dynamic_client).await
    }

    /// Waits until the Deployments and the Jobs have the expected state.
    pub(super) async fn wait_until_done(&self) -> Result<()> {
        eventually(RETRY_LIMIT, "the expected Deployments and Jobs", || async {
            self.check_deployments().await?;
            self.check_jobs().await
        })
        .await
    }

    /// Waits for the expected state after [`Work::churn`].
    pub(super) async fn verify_churn(&self) -> Result<()> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        eventually(
            RETRY_LIMIT,
            "the expected Deployments, and all churned Jobs to be deleted",
            || async {
                self.check_deployments().await?;
                let jobs = jobs.list_metadata(&ListParams::default()).await?;
                let mut names = jobs.items.iter().map(ResourceExt::name_any);
                ensure!(
                    !names.any(|name| name.starts_with(CHURNED)),
                    "a churned Job still exists"
                );
                anyhow::Ok(())
            },
        )
        .await?;
        self.expected_objects.verify(&self.dynamic_client).await
    }

    /// Forgets all Foos, after their CRD was deleted.
    pub(super) fn forget_foos(&mut self) {
        self.foos.clear();
        self.first_wave = self.waves;
    }

    async fn check_deployments(&self) -> Result<()> {
        let deployments = self.fixture.deployments().list(&ListParams::default()).await?.items;
        let found: BTreeMap<_, _> = deployments
            .iter()
            .map(|deployment| (deployment.name_any(), replicas(deployment).unwrap_or_default()))
            .collect();
        ensure!(
            found == self.foos,
            "found Deployments {found:?}, expected {:?}",
            self.foos
        );
        if self.foos.is_empty() {
            // The apiserver may not serve Foos.
            return Ok(());
        }
        for foo in self.fixture.foos().list(&ListParams::default()).await?.items {
            let status = foo.status.as_ref().context("the Foo has no status")?;
            let ready = conditions::find_status_condition(&status.conditions, "Ready");
            let is_ready = ready.is_some_and(|ready| ready.status == ConditionStatus::True);
            let is_current = Some(status.observed_generation) == foo.metadata.generation;
            ensure!(is_ready && is_current, "{} has {}", foo.name_any(), json!(status));
        }
        Ok(())
    }

    async fn check_jobs(&self) -> Result<()> {
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut found = jobs.list(&ListParams::default()).await?.items;
        found.sort_by_key(ResourceExt::name_any);
        let names: Vec<_> = found.iter().map(ResourceExt::name_any).collect();
        ensure!(names == self.jobs, "found Jobs {names:?}, expected {:?}", self.jobs);
        ensure!(
            found.iter().all(|job| job.metadata.deletion_timestamp.is_none()),
            "a Job is being deleted"
        );
        for kind in Kind::BOTH {
            let object = kind.objects(&self.fixture.namespace).get(kind.name()).await?;
            let status = object.data.get("status").cloned().unwrap_or_default();
            let last = status["lastScheduleTime"].as_str().map(str::parse::<Timestamp>);
            ensure!(
                matches!(last, Some(Ok(last)) if last == self.slot),
                "{kind:?}: {status}"
            );
            let active = status["active"].as_array().map(Vec::as_slice).unwrap_or_default();
            let active: Vec<_> = active.iter().filter_map(|job| job["name"].as_str()).collect();
            ensure!(active == [kind.job_of(kind.name(), self.slot)], "{kind:?}: {status}");
        }
        Ok(())
    }
}
