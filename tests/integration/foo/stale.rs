//! Plans that come too late: between the decision and the request, the object became somebody else's.
//!
//! The plans here are the ones that `decide` makes, with the UID and version that it saw; the unit tests of `decide` hold it to
//! those. The requests are the applier's own, and the judge is the real apiserver.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use portreeve_api::{FOOS, Foo, ObjectKey, Resource, conditions::ConditionStatus};
use portreeve_reconcile::{
    Applied, Applier, ControllerMetrics, Effect, Events, Object, Plan, Propagation, SystemClock, Target,
};
use portreeve_testing::ControlPlane;
use prometheus::Registry;
use serde_json::json;

use crate::{
    shared::fixture,
    support::{
        admission_gate::AdmissionGate,
        fixtures::{NamespaceFixture, unrelated_deployment},
    },
};

const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "Deployment", "deployments");

/// As a worker has it. Its events are never written.
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
    })
}

/// What a Foo would make of a Deployment.
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
        uid: deployment.uid().context("it has a UID")?.into(),
        version: deployment.resource_version().context("it has a version")?.into(),
    })
}

/// A Foo that no daemon reconciles: its name is a conflict for ever.
async fn idle_foo(fixture: &NamespaceFixture) -> Result<Foo> {
    fixture.create_foreign("occupied").await?;
    fixture.create_foo("idle", "occupied", 1).await
}

async fn expect_look_again(applier: &Applier, effect: Effect) -> Result<()> {
    let plan = Plan::of(vec![effect]);
    let end = applier.run(&plan).await;
    ensure!(matches!(end, Applied::Stale(_)), "{plan}: {end:?}");
    Ok(())
}

#[tokio::test]
async fn an_object_that_was_replaced_since_the_decision_is_not_taken_over() -> Result<()> {
    let fixture = fixture("replaced").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let Target { uid, version, .. } = target(&fixture, &fixture.create_foreign("web").await?)?;
    fixture.delete_deployment("web").await?;
    let theirs = fixture.create_foreign("web").await?;
    let object = desired(&fixture, &foo, "web");
    let now: Arc<str> = theirs.resource_version().context("it has a version")?.into();
    for version in [version, now] {
        let (object, uid) = (object.clone(), Arc::clone(&uid));
        expect_look_again(&applier, Effect::Apply { object, uid, version }).await?;
    }
    expect_look_again(&applier, Effect::Create(object)).await?;
    let after = fixture.deployments().get("web").await?;
    ensure!(json!(after) == json!(theirs), "{after:#?}");
    Ok(())
}

#[tokio::test]
async fn an_object_that_was_changed_since_the_decision_is_left_as_it_is() -> Result<()> {
    let fixture = fixture("changed").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let seen = target(&fixture, &fixture.create_foreign("web").await?)?;
    let changed = fixture
        .merge_deployment("web", json!({"spec": {"replicas": 3}}))
        .await?;
    let apply = Effect::Apply {
        object: desired(&fixture, &foo, "web"),
        uid: Arc::clone(&seen.uid),
        version: Arc::clone(&seen.version),
    };
    let status = json!({"replicas": 0});
    let patch = Effect::PatchStatus {
        target: seen.clone(),
        status,
    };
    let propagation = Propagation::Background;
    let delete = Effect::Delete {
        target: seen,
        propagation,
    };
    for effect in [apply, patch, delete] {
        expect_look_again(&applier, effect).await?;
    }
    let after = fixture.deployments().get("web").await?;
    ensure!(json!(after) == json!(changed), "{after:#?}");
    Ok(())
}

#[tokio::test]
async fn an_object_that_is_gone_is_not_made_by_an_apply_and_not_missed_by_a_delete() -> Result<()> {
    let fixture = fixture("gone").await?;
    let (applier, foo) = (applier(&fixture)?, idle_foo(&fixture).await?);
    let seen = target(&fixture, &fixture.create_foreign("web").await?)?;
    fixture.delete_deployment("web").await?;
    let apply = Effect::Apply {
        object: desired(&fixture, &foo, "web"),
        uid: Arc::clone(&seen.uid),
        version: Arc::clone(&seen.version),
    };
    expect_look_again(&applier, apply).await?;
    ensure!(
        fixture.deployments().get_opt("web").await?.is_none(),
        "the apply made it"
    );
    let delete = Effect::Delete {
        target: seen,
        propagation: Propagation::Background,
    };
    let end = applier.run(&Plan::of(vec![delete])).await;
    ensure!(matches!(end, Applied::Done), "{end:?}");
    Ok(())
}

/// Through the whole daemon, with its apply held inside the apiserver meanwhile. There even an apply without preconditions would be
/// refused; what this shows is that the daemon then looks again, at once, and sees the conflict.
#[tokio::test]
async fn an_object_that_is_replaced_while_a_repair_is_under_way_is_not_taken_over() -> Result<()> {
    let fixture = fixture("under-way").await?;
    fixture.settled_foo("web", 2).await?;
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
