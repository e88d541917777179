//! Scenarios that make each controller use every verb of its role.
//!
//! A controller of the registry without a scenario fails
//! `a_rights_scenario_exists_for_every_controller` in `integration/registry.rs`.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::{batch::v1::Job, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    jobs::Jobs,
    namespace::{NamespaceFixture, replicas},
    schedules::{Kind, minutes, next_minute},
};

/// The scenario of one controller.
pub(crate) struct RightsScenario {
    /// The name in the registry.
    pub(crate) controller: &'static str,
    pub(super) reach: Reach,
    pub(super) run: fn(NamespaceFixture, OffsetClock) -> BoxFuture<'static, Result<()>>,
}

/// The objects on which a controller acts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reach {
    /// Objects of its kinds, so controllers can share a control plane.
    OwnKinds,
    /// All objects of the cluster.
    Cluster,
}

/// The scenarios of all controllers.
pub(crate) static SCENARIOS: [RightsScenario; 5] = [
    RightsScenario {
        controller: "foo-controller",
        reach: Reach::OwnKinds,
        run: |fixture, _| async move { foo(&fixture).await }.boxed(),
    },
    RightsScenario {
        controller: "crontab-controller",
        reach: Reach::OwnKinds,
        run: |fixture, clock| async move { schedule(&fixture, &clock, Kind::CronTab).await }.boxed(),
    },
    RightsScenario {
        controller: "cronjob-controller",
        reach: Reach::OwnKinds,
        run: |fixture, clock| async move { schedule(&fixture, &clock, Kind::CronJob).await }.boxed(),
    },
    RightsScenario {
        controller: "ttl-after-finished-controller",
        reach: Reach::OwnKinds,
        run: |fixture, clock| async move { ttl(&fixture, &clock).await }.boxed(),
    },
    RightsScenario {
        controller: "garbage-collector-controller",
        reach: Reach::Cluster,
        run: |fixture, _| async move { collect(&fixture).await }.boxed(),
    },
];

/// Returns the scenarios of controllers with this reach.
pub(super) fn with(reach: Reach) -> impl Iterator<Item = &'static RightsScenario> {
    SCENARIOS.iter().filter(move |scenario| scenario.reach == reach)
}

impl RightsScenario {
    /// Returns the name of the controller's role, as `portreeve rbac` prints it.
    pub(super) fn role(&self) -> String {
        format!("portreeve:{}", self.controller)
    }
}

/// Makes the controller create, repair, recreate and delete a Deployment, and send the same event
/// twice.
async fn foo(fixture: &NamespaceFixture) -> Result<()> {
    fixture.ready_foo("web", 1).await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 3}}))
        .await?;
    fixture
        .wait_for_deployment("web", "one replica", |found| replicas(found) == Some(1))
        .await?;
    fixture.delete_deployment("web").await?;
    fixture
        .wait_for_deployment("web", "a recreated Deployment", |found| replicas(found) == Some(1))
        .await?;
    let renamed = |name: &str| fixture.merge_foo("web", json!({"spec": {"deploymentName": name}}));
    renamed("shop").await?;
    fixture.wait_for_deployment("shop", "created", |_| true).await?;
    fixture.set_available("shop", 1).await?;
    fixture.wait_for_no_deployment("web").await?;
    fixture.create_foreign("taken").await?;
    for (name, type_) in [("taken", "Conflict"), ("shop", "Ready"), ("taken", "Conflict")] {
        renamed(name).await?;
        fixture.wait_for_condition("web", type_, ConditionStatus::True).await?;
    }
    eventually(LIMIT, "a second event about the conflict", || async {
        let events = fixture.events_on("web").await?;
        ensure!(events.iter().any(|event| event.series.is_some()), "{events:?}");
        Ok(())
    })
    .await
}

/// Makes the controller start a Job, clean it up when it has finished, and start another Job, which
/// the test deletes while it runs.
async fn schedule(fixture: &NamespaceFixture, clock: &OffsetClock, kind: Kind) -> Result<()> {
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

/// Makes the controller keep a finished Job for its TTL and then delete it.
async fn ttl(fixture: &NamespaceFixture, clock: &OffsetClock) -> Result<()> {
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

/// Makes the collector use all its verbs. The collector reads an owner that it has never observed,
/// deletes objects whose owners are absent, and removes one of two owner references.
async fn collect(fixture: &NamespaceFixture) -> Result<()> {
    let maps: Api<ConfigMap> = fixture.namespace.api();
    let create = |manifest: Value| {
        let maps = maps.clone();
        async move {
            let map: ConfigMap = serde_json::from_value(manifest)?;
            anyhow::Ok(maps.create(&PostParams::default(), &map).await?)
        }
    };
    let kept_owner = create(owned("keeper", &[])).await?;
    let deleted_owner = create(owned("goer", &[])).await?;
    let (kept_owner, deleted_owner) = (
        kept_owner.uid().unwrap_or_default(),
        deleted_owner.uid().unwrap_or_default(),
    );
    create(owned("both", &[("keeper", &kept_owner), ("goer", &deleted_owner)])).await?;
    create(owned("one", &[("goer", &deleted_owner)])).await?;
    create(owned("nobodys", &[("nobody", "nobody")])).await?;
    maps.delete("goer", &DeleteParams::background()).await?;
    eventually(
        LIMIT,
        "objects without owners to be deleted, and the reference to the deleted owner to be removed",
        || async {
            for name in ["one", "nobodys"] {
                ensure!(maps.get_opt(name).await?.is_none(), "{name} still exists");
            }
            let both = maps.get("both").await?;
            ensure!(both.owner_references().len() == 1, "{:?}", both.owner_references());
            anyhow::Ok(())
        },
    )
    .await
}

/// Returns the manifest of a ConfigMap with these owners, each a name and a UID.
fn owned(name: &str, owners: &[(&str, &str)]) -> Value {
    let references = owners
        .iter()
        .map(|(owner, uid)| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}));
    let references: Vec<_> = references.collect();
    json!({"metadata": {"name": name, "ownerReferences": references}})
}
