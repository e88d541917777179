//! Tests of stale plans: the object was replaced or changed between the decision and the request.
//!
//! The plans have the form of those that `decide` returns, with the UID and the resourceVersion
//! that were observed; the unit tests of `decide` check that form. The applier sends the requests
//! to the real apiserver.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use portreeve_api::{ObjectKey, conditions::ConditionStatus};
use portreeve_foo::api::{FOOS, Foo};
use portreeve_metrics::Registry;
use portreeve_reconcile::{
    Applied, Applier, ControllerMetrics, Effect, Events, FenceMonitor, Object, Plan, Propagation, SystemClock, Target,
};
use portreeve_testing::ControlPlane;
use serde_json::json;

use crate::fixtures::{
    admission_gate::AdmissionGate,
    namespace::{DEPLOYMENTS, NamespaceFixture, unrelated_deployment},
    shared_daemon::fixture,
};

/// Returns an applier like that of a worker, except that its events are dropped.
fn applier(fixture: &NamespaceFixture) -> Result<Applier> {
    let client = fixture.namespace.client().clone();
    let (events, _) = Events::channel(client.clone(), "a-test", &Registry::new())?;
    Ok(Applier {
        client,
        events,
        manager: "sample-controller".to_owned(),
        dry_run: false,
        controller_metrics: ControllerMetrics::default(),
        clock: Arc::new(SystemClock),
        fence_monitor: FenceMonitor::default(),
    })
}

/// Returns the Deployment that the controller would write for a Foo.
fn desired(fixture: &NamespaceFixture, foo: &Foo, name: &str) -> Object {
    let mut body = unrelated_deployment(name);
    body["metadata"]["ownerReferences"] = json!([{
        "apiVersion": FOOS.api_version(), "kind": "Foo", "name": foo.name_any(), "uid": foo.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    Object {
        resource: DEPLOYMENTS,
        key: ObjectKey::namespaced(fixture.name(), name),
        body,
    }
}

fn target(fixture: &NamespaceFixture, deployment: &Deployment) -> Result<Target> {
    Ok(Target {
        resource: DEPLOYMENTS,
        key: ObjectKey::namespaced(fixture.name(), deployment.name_any()),
        uid: deployment.uid().context("the Deployment has no UID")?.into(),
        version: deployment
            .resource_version()
            .context("the Deployment has no resourceVersion")?
            .into(),
    })
}

/// Creates a Foo that stays in conflict, so that the daemon writes nothing for it.
async fn idle_foo(fixture: &NamespaceFixture) -> Result<Foo> {
    fixture.create_foreign("occupied").await?;
    fixture.create_foo("idle", "occupied", 1).await
}

async fn expect_stale(applier: &Applier, effect: Effect) -> Result<()> {
    let plan = Plan::of(vec![effect]);
    let outcome = applier.run(&plan).await;
    ensure!(matches!(outcome, Applied::Stale(_)), "{plan}: {outcome:?}");
    Ok(())
}

#[tokio::test]
async fn a_stale_plan_does_not_adopt_a_replaced_object() -> Result<()> {
    let fixture = fixture("replaced").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let Target { uid, version, .. } = target(&fixture, &fixture.create_foreign("web").await?)?;
    fixture.delete_deployment("web").await?;
    let theirs = fixture.create_foreign("web").await?;
    let object = desired(&fixture, &foo, "web");
    let now: Arc<str> = theirs
        .resource_version()
        .context("the Deployment has no resourceVersion")?
        .into();
    for version in [version, now] {
        let (object, uid) = (object.clone(), Arc::clone(&uid));
        expect_stale(&applier, Effect::Apply { object, uid, version }).await?;
    }
    expect_stale(&applier, Effect::Create(object)).await?;
    let after = fixture.deployments().get("web").await?;
    ensure!(json!(after) == json!(theirs), "{after:#?}");
    Ok(())
}

#[tokio::test]
async fn a_stale_plan_does_not_modify_a_changed_object() -> Result<()> {
    let fixture = fixture("changed").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let observed = target(&fixture, &fixture.create_foreign("web").await?)?;
    let changed = fixture
        .merge_deployment("web", json!({"spec": {"replicas": 3}}))
        .await?;
    let apply = Effect::Apply {
        object: desired(&fixture, &foo, "web"),
        uid: Arc::clone(&observed.uid),
        version: Arc::clone(&observed.version),
    };
    let status = json!({"replicas": 0});
    let patch = Effect::PatchStatus {
        target: observed.clone(),
        status,
    };
    let propagation = Propagation::Background;
    let delete = Effect::Delete {
        target: observed,
        propagation,
    };
    for effect in [apply, patch, delete] {
        expect_stale(&applier, effect).await?;
    }
    let after = fixture.deployments().get("web").await?;
    ensure!(json!(after) == json!(changed), "{after:#?}");
    Ok(())
}

#[tokio::test]
async fn an_apply_does_not_recreate_a_deleted_object_and_a_delete_of_it_succeeds() -> Result<()> {
    let fixture = fixture("gone").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let observed = target(&fixture, &fixture.create_foreign("web").await?)?;
    fixture.delete_deployment("web").await?;
    let apply = Effect::Apply {
        object: desired(&fixture, &foo, "web"),
        uid: Arc::clone(&observed.uid),
        version: Arc::clone(&observed.version),
    };
    expect_stale(&applier, apply).await?;
    ensure!(
        fixture.deployments().get_opt("web").await?.is_none(),
        "the apply created the Deployment"
    );
    let delete = Effect::Delete {
        target: observed,
        propagation: Propagation::Background,
    };
    let outcome = applier.run(&Plan::of(vec![delete])).await;
    ensure!(matches!(outcome, Applied::Done), "{outcome:?}");
    Ok(())
}

/// Holds an apply of the daemon inside the apiserver while the Deployment is replaced. The
/// apiserver would reject even an apply without preconditions here. The test shows that the daemon
/// then reconciles again at once and reports the conflict.
#[tokio::test]
async fn an_object_replaced_during_a_repair_is_not_adopted() -> Result<()> {
    let fixture = fixture("under-way").await?;
    fixture.ready_foo("web", 2).await?;
    let gate = AdmissionGate::close(ControlPlane::shared().await, &fixture).await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 9}}))
        .await?;
    let apply = gate.hold().await?;
    fixture.delete_deployment("web").await?;
    let theirs = fixture.create_foreign("web").await?;
    drop(apply);
    fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::True)
        .await?;
    let after = fixture.deployments().get("web").await?;
    ensure!(json!(after) == json!(theirs), "{after:#?}");
    drop(gate);
    fixture.delete_deployment("web").await?;
    fixture
        .wait_for_condition("web", "Ready", ConditionStatus::True)
        .await?;
    Ok(())
}
