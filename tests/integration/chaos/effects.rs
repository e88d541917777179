//! The executable is killed after each single effect and started again, until all work is done.
//!
//! The audit log shows that the apiserver executed the effect, but the response is lost. The
//! controllers' own tests of `decide` do the same within a process, for many more plans.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat, Signal, eventually};
use serde_json::json;

use super::scenario::Account;
use crate::{
    audit::{AuditLog, Event, policy},
    faults::controllers,
    fixtures::{
        LIMIT, RETRY_LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon},
        dynamic_client::{DynamicClient, Policy},
        expected_objects::ExpectedObjects,
        jobs::Jobs,
        namespace::{NamespaceFixture, replicas},
        object_builder::{config_map, secret},
        schedules::{Kind, next_minute},
    },
};

/// The maximum number of kills, far more than there are effects.
const MAX_KILLS: usize = 80;

/// Work for every controller, created before the daemon starts.
struct PendingWork {
    fixture: NamespaceFixture,
    dynamic_client: DynamicClient,
    expected_objects: ExpectedObjects,
    /// A past time at which both schedules were due.
    due: Timestamp,
}

impl PendingWork {
    async fn build(plane: &ControlPlane) -> Result<Self> {
        let fixture = NamespaceFixture::new(plane, "killed").await?;
        fixture.create_foo("new", "new", 1).await?;
        let dynamic_client = DynamicClient::of(&fixture.namespace);
        let mut expected_objects = ExpectedObjects::default();
        for policy in [Policy::Background, Policy::Foreground, Policy::Orphan] {
            let name = format!("{policy:?}").to_lowercase();
            let owner = expected_objects.create_one(&dynamic_client, config_map(&name)).await?;
            let child = |number| secret(&format!("{name}-{number}")).blocking(&owner, true);
            expected_objects.create(&dynamic_client, (0..2).map(child)).await?;
            expected_objects.delete(&dynamic_client, &owner, policy).await?;
        }
        let now = Timestamp::from_second(Timestamp::now().as_second())?;
        let jobs = Jobs::of(&fixture);
        jobs.create("expired", json!({"ttlSecondsAfterFinished": 1})).await?;
        jobs.end("expired", now - SignedDuration::from_secs(60), true).await?;
        // The schedules were due within the last hour, and are not due again for most of an hour.
        let due = next_minute(now - SignedDuration::from_mins(10), 1);
        for kind in Kind::BOTH {
            let objects = kind.objects(&fixture.namespace);
            let schedule = format!("{} * * * *", due.as_second() / 60 % 60);
            let zone = json!({"timeZone": "UTC"});
            kind.create(&fixture.namespace, kind.name(), &schedule, &zone).await?;
            let last = format!("{:.0}", due - SignedDuration::from_mins(60));
            let mut status = json!({"lastScheduleTime": last});
            // Without an observed schedule, CronTab would count as new and not start the run that
            // it missed.
            if kind == Kind::CronTab {
                status["observedSchedule"] = format!("{schedule} UTC").into();
            }
            let patch = Patch::Merge(json!({"status": status}));
            objects
                .patch_status(kind.name(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(Self {
            fixture,
            dynamic_client,
            expected_objects,
            due,
        })
    }

    /// Waits until all work is done.
    async fn wait_until_done(&self) -> Result<()> {
        self.fixture
            .wait_for_condition("new", "Ready", ConditionStatus::True)
            .await?;
        self.fixture
            .wait_for_deployment("new", "one replica", |found| replicas(found) == Some(1))
            .await?;
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut wanted = Kind::BOTH.map(|kind| kind.job_of(kind.name(), self.due));
        wanted.sort();
        eventually(RETRY_LIMIT, "exactly the Jobs that were due", || async {
            let mut names: Vec<_> = jobs.list(&ListParams::default()).await?.items;
            names.sort_by_key(ResourceExt::name_any);
            let names: Vec<_> = names.iter().map(ResourceExt::name_any).collect();
            ensure!(names == wanted, "found {names:?}, expected {wanted:?}");
            anyhow::Ok(())
        })
        .await?;
        for kind in Kind::BOTH {
            eventually(LIMIT, "the status of the schedule", || async {
                let object = kind.objects(&self.fixture.namespace).get(kind.name()).await?;
                let last = object.data["status"]["lastScheduleTime"].as_str();
                let last = last
                    .context("the status has no lastScheduleTime")?
                    .parse::<Timestamp>()?;
                ensure!(last == self.due, "lastScheduleTime is {last}, expected {}", self.due);
                anyhow::Ok(())
            })
            .await?;
        }
        // Do not create a canary: collecting it would be one more effect.
        eventually(RETRY_LIMIT, "only orphaned Secrets to be left", || async {
            let secrets = self.dynamic_client.list("v1", "Secret").await?;
            let names: Vec<_> = secrets.iter().map(ResourceExt::name_any).collect();
            ensure!(names == ["orphan-0", "orphan-1"], "{names:?}");
            ensure!(
                secrets.iter().all(|secret| secret.owner_references().is_empty()),
                "an orphaned Secret still has an owner"
            );
            let owners = self.dynamic_client.list("v1", "ConfigMap").await?;
            ensure!(owners.is_empty(), "{owners:?}");
            anyhow::Ok(())
        })
        .await
    }
}

/// Returns the daemon's writes in a namespace so far, in order, including rejected ones.
fn effects(plane: &ControlPlane, namespace: &str) -> Result<Vec<Event>> {
    let mut writes = AuditLog::of(plane)?.events_since(0)?;
    writes.retain(|write| write.is_of_daemon() && write.namespace() == namespace);
    Ok(writes)
}

#[tokio::test]
async fn a_daemon_killed_after_each_effect_completes_its_work_without_duplicates() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
    let flags = [&*ALL_CONTROLLERS, "--install-crds"];
    // A first daemon installs the CRDs, so that the custom resources can be created before
    // the next one starts.
    let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    let pending_work = PendingWork::build(&plane).await?;
    let mut killed_controllers = BTreeSet::new();
    for kills in 0..MAX_KILLS {
        let before = effects(&plane, pending_work.fixture.name())?.len();
        let write = || Matcher::writes().namespace(pending_work.fixture.name());
        let done = proxy.fault(write(), Fault::DropResponse, Repeat::Nth(1));
        // Cut the writes that other workers send until the daemon is killed.
        proxy.fault(write(), Fault::Cut, Repeat::UntilHealed);
        let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
        tokio::select! {
            biased;
            killed = done.wait_for_applied(1, RETRY_LIMIT) => {
                killed.with_context(|| daemon.process.log_tail())?;
                let effect = eventually(LIMIT, "the effect in the audit log", || async {
                    effects(&plane, pending_work.fixture.name())?.get(before).cloned().context("the effect is missing")
                })
                .await?;
                println!("killed after {effect}");
                killed_controllers.extend(controllers::names().find(|name| effect.user_agent.ends_with(name)));
                daemon.process.signal(Signal::KILL)?;
                daemon.process.wait(LIMIT).await?;
                proxy.heal();
            }
            finished = pending_work.wait_until_done(), if kills > 0 => {
                finished.with_context(|| daemon.process.log_tail())?;
                println!("killed {kills} times");
                // The work needs at least these effects: a Deployment and a status, Jobs and
                // statuses, deletions and patches.
                ensure!(kills >= 12, "only {kills} kills");
                ensure!(
                    killed_controllers.len() == portreeve::CONTROLLERS.len(),
                    "only {killed_controllers:?} were killed after an effect"
                );
                proxy.heal();
                pending_work.expected_objects.verify(&pending_work.dynamic_client).await?;
                ensure!(!daemon.log()?.contains("panicked"), "{}", daemon.process.log_tail());
                return AuditLog::of(&plane)?.check_effects();
            }
        }
    }
    let writes = effects(&plane, pending_work.fixture.name())?;
    let last: Vec<_> = writes.iter().rev().take(20).map(Event::to_string).collect();
    bail!("the work was not done after {MAX_KILLS} kills; the last writes were {last:#?}");
}
