//! The executable is killed after each single thing that it does, and started again, until there is nothing left to do.
//!
//! What it was doing has been done, by the audit log, and it has not heard so: its answers are lost. In process, the controllers' own
//! tests of `decide` do the same to whatever plans they meet.

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

use super::{
    faults::CONTROLLERS,
    record,
    scenario::{ALL, Account},
};
use crate::{
    garbage::{
        dynamic_client::{DynamicClient, Policy},
        expectations::ExpectedObjects,
        object_builder::{config_map, secret},
    },
    schedules::{
        fixtures::{job_of, next_minute},
        kinds::Kind,
    },
    support::{
        LIMIT, SETTLED,
        daemon::Daemon,
        fixtures::{NamespaceFixture, replicas},
    },
    ttl::fixtures::Jobs,
};

/// Far more than there is to do.
const DEATHS: usize = 80;

/// Something for every controller, before there is a daemon.
struct PendingWork {
    fixture: NamespaceFixture,
    dynamic_client: DynamicClient,
    expected_objects: ExpectedObjects,
    /// A time that has passed, at which both schedules were due.
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
        // Due within the hour that has passed, and then not for most of an hour.
        let due = next_minute(now - SignedDuration::from_mins(10), 1);
        for kind in Kind::BOTH {
            let objects = kind.objects(&fixture.namespace);
            let schedule = format!("{} * * * *", due.as_second() / 60 % 60);
            let zone = json!({"timeZone": "UTC"});
            kind.create(&fixture.namespace, kind.name(), &schedule, &zone).await?;
            let last = format!("{:.0}", due - SignedDuration::from_mins(60));
            let mut status = json!({"lastScheduleTime": last});
            // Or else the schedule would be a new one, and nothing be made up for.
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

    /// Waits until everything is done.
    async fn settled(&self) -> Result<()> {
        self.fixture
            .wait_for_condition("new", "Ready", ConditionStatus::True)
            .await?;
        self.fixture
            .wait_for_deployment("new", "one replica", |found| replicas(found) == Some(1))
            .await?;
        let jobs: Api<Job> = self.fixture.namespace.api();
        let mut wanted = Kind::BOTH.map(|kind| job_of(kind.name(), self.due));
        wanted.sort();
        eventually(SETTLED, "the Jobs that were due, and no other", || async {
            let mut names: Vec<_> = jobs.list(&ListParams::default()).await?.items;
            names.sort_by_key(ResourceExt::name_any);
            let names: Vec<_> = names.iter().map(ResourceExt::name_any).collect();
            ensure!(names == wanted, "{names:?}, not {wanted:?}");
            anyhow::Ok(())
        })
        .await?;
        for kind in Kind::BOTH {
            eventually(LIMIT, "the status of the schedule", || async {
                let object = kind.objects(&self.fixture.namespace).get(kind.name()).await?;
                let last = object.data["status"]["lastScheduleTime"].as_str();
                let last = last.context("it has none")?.parse::<Timestamp>()?;
                ensure!(last == self.due, "{last}, and not {}", self.due);
                anyhow::Ok(())
            })
            .await?;
        }
        // Without a canary: to collect one would be one effect more.
        eventually(SETTLED, "what is orphaned to be all that is left", || async {
            let secrets = self.dynamic_client.list("v1", "Secret").await?;
            let names: Vec<_> = secrets.iter().map(ResourceExt::name_any).collect();
            ensure!(names == ["orphan-0", "orphan-1"], "{names:?}");
            ensure!(
                secrets.iter().all(|secret| secret.owner_references().is_empty()),
                "one is owned"
            );
            let owners = self.dynamic_client.list("v1", "ConfigMap").await?;
            ensure!(owners.is_empty(), "{owners:?}");
            anyhow::Ok(())
        })
        .await
    }
}

/// What has been done to it so far, in order.
fn effects(plane: &ControlPlane, pending_work: &PendingWork) -> Result<Vec<record::Write>> {
    let mut writes = record::writes(plane)?;
    writes.retain(|write| write.namespace == pending_work.fixture.name());
    Ok(writes)
}

#[tokio::test]
async fn killed_after_each_single_effect_it_gets_everything_done_and_nothing_twice() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(record::POLICY).start().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
    let flags = [ALL, "--install-crds"];
    // Definitions first: what they define is made before the daemon that is to find it.
    let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    let pending_work = PendingWork::build(&plane).await?;
    let mut bereft = BTreeSet::new();
    for deaths in 0..DEATHS {
        let before = effects(&plane, &pending_work)?.len();
        let write = || Matcher::writes().namespace(pending_work.fixture.name());
        let done = proxy.fault(write(), Fault::DropResponse, Repeat::Nth(1));
        // What its other workers send until it is dead does not get through.
        proxy.fault(write(), Fault::Cut, Repeat::UntilHealed);
        let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal", &flags).await?;
        tokio::select! {
            biased;
            killed = done.wait_for_applied(1, SETTLED) => {
                killed.with_context(|| daemon.process.log_tail())?;
                let effect = eventually(LIMIT, "the effect in the audit log", || async {
                    effects(&plane, &pending_work)?.get(before).cloned().context("it is not done")
                })
                .await?;
                println!("killed after {effect:?}");
                bereft.extend(CONTROLLERS.into_iter().find(|name| effect.agent.ends_with(name)));
                daemon.process.signal(Signal::KILL)?;
                daemon.process.wait(LIMIT).await?;
                proxy.heal();
            }
            settled = pending_work.settled(), if deaths > 0 => {
                settled.with_context(|| daemon.process.log_tail())?;
                println!("{deaths} deaths");
                // A Deployment and a status, Jobs and statuses, deletions and patches: at least these are effects.
                ensure!(deaths >= 12, "only {deaths} deaths");
                ensure!(bereft.len() == CONTROLLERS.len(), "only {bereft:?} were killed");
                proxy.heal();
                pending_work.expected_objects.verify(&pending_work.dynamic_client).await?;
                ensure!(!daemon.log()?.contains("panicked"), "{}", daemon.process.log_tail());
                return record::ensure_clean(&plane);
            }
        }
    }
    let writes = record::writes(&plane)?;
    let last: Vec<_> = writes.iter().rev().take(20).collect();
    bail!("it was not done after {DEATHS} deaths; its last writes were {last:#?}");
}
