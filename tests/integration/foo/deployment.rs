//! Tests of the Deployment of a Foo: the foo-controller creates, repairs and deletes it.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use portreeve_api::conditions::ConditionStatus;
use portreeve_foo::api::Foo;
use serde_json::{Value, json};

use crate::fixtures::{
    manifests,
    namespace::{image, replicas},
    shared_daemon::fixture,
};

/// Returns the values of the fields that the foo-controller owns in a Deployment.
pub(super) fn owned(deployment: &Deployment) -> Value {
    let deployment = json!(deployment);
    json!({
        "labels": deployment["metadata"]["labels"],
        "ownerReferences": deployment["metadata"]["ownerReferences"],
        "replicas": deployment["spec"]["replicas"],
        "selector": deployment["spec"]["selector"],
        "templateLabels": deployment["spec"]["template"]["metadata"]["labels"],
        "image": deployment["spec"]["template"]["spec"]["containers"][0]["image"],
        "container": deployment["spec"]["template"]["spec"]["containers"][0]["name"],
    })
}

/// Returns the ownerReference from a Deployment to its Foo.
pub(super) fn reference(foo: &impl ResourceExt) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "name": foo.name_any(),
        "uid": foo.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Returns the values that these fields have for a Foo.
pub(super) fn desired(foo: &Foo) -> Value {
    let labels = json!({"app": "nginx", "controller": foo.name_any()});
    json!({
        "labels": labels,
        "ownerReferences": [reference(foo)],
        "replicas": foo.spec.replicas,
        "selector": {"matchLabels": labels},
        "templateLabels": labels,
        "image": "nginx:latest",
        "container": "nginx",
    })
}

#[tokio::test]
async fn a_foo_gets_the_desired_deployment() -> Result<()> {
    let fixture = fixture("create").await?;
    let (foo, deployment) = fixture.ready_foo("web", 2).await?;
    ensure!(owned(&deployment) == desired(&foo), "{:#}", owned(&deployment));
    let managers: Vec<_> = deployment
        .managed_fields()
        .iter()
        .map(|fields| &fields.manager)
        .collect();
    ensure!(managers == [&Some("sample-controller".to_owned())], "{managers:?}");
    Ok(())
}

#[tokio::test]
async fn one_replica_is_the_default() -> Result<()> {
    let fixture = fixture("default").await?;
    let foo = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": {"name": "web"},
        "spec": {"deploymentName": "web"},
    });
    let client = fixture.namespace.client();
    manifests::apply(client, &foo, Some(fixture.name()), &PatchParams::apply("a-user")).await?;
    fixture
        .wait_for_deployment("web", "one replica", |found| replicas(found) == Some(1))
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_samples_are_reconciled() -> Result<()> {
    let fixture = fixture("samples").await?;
    let mut samples = manifests::documents(include_str!("../../../controllers/foo/samples/foo.yaml"))?;
    samples.extend(manifests::documents(include_str!(
        "../../../controllers/foo/samples/foo-clash.yaml"
    ))?);
    ensure!(samples.len() == 2, "{samples:?}");
    for mut sample in samples {
        sample["metadata"]["namespace"] = fixture.name().into();
        let parameters = PatchParams::apply("a-user");
        manifests::apply(fixture.namespace.client(), &sample, Some(fixture.name()), &parameters).await?;
        let name = sample["metadata"]["name"].as_str().context("the sample has no name")?;
        let ready = if name == "example-clash" {
            ConditionStatus::False
        } else {
            ConditionStatus::True
        };
        fixture.wait_for_condition(name, "Ready", ready).await?;
    }
    let events = fixture.wait_for_events("example-foo", &["Synced"]).await?;
    let (type_, note) = (events[0].type_.as_deref(), events[0].note.as_deref());
    ensure!(
        (type_, note) == (Some("Normal"), Some("Foo synced successfully")),
        "{events:?}"
    );
    let controller = events[0].reporting_controller.as_deref();
    ensure!(controller == Some("sample-controller"), "{controller:?}");
    fixture.wait_for_events("example-clash", &["ErrResourceExists"]).await?;
    Ok(())
}

#[tokio::test]
async fn drift_of_any_owned_field_is_repaired() -> Result<()> {
    let fixture = fixture("drift").await?;
    let (foo, deployment) = fixture.ready_foo("web", 2).await?;
    let mut owners = json!(deployment.owner_references());
    owners[0]["blockOwnerDeletion"] = false.into();
    let containers = |name: &str, image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": name, "image": image}]}}}});
    let table = [
        ("replicas", json!({"spec": {"replicas": 9}})),
        ("replicas to zero", json!({"spec": {"replicas": 0}})),
        ("image", containers("nginx", "evil:1")),
        ("a label", json!({"metadata": {"labels": {"app": "other"}}})),
        ("a missing label", json!({"metadata": {"labels": {"controller": null}}})),
        ("all labels", json!({"metadata": {"labels": null}})),
        ("the owner's blocking", json!({"metadata": {"ownerReferences": owners}})),
    ];
    for (what, drift) in table {
        let drifted = fixture.merge_deployment("web", drift).await?;
        ensure!(
            owned(&drifted) != desired(&foo),
            "the patch of {what} changed no owned field"
        );
        let repaired = fixture
            .wait_for_deployment("web", "the desired fields", |found| owned(found) == desired(&foo))
            .await?;
        ensure!(
            repaired.uid() == deployment.uid(),
            "{what}: the Deployment was recreated"
        );
    }
    Ok(())
}

#[tokio::test]
async fn fields_of_other_managers_survive_a_repair() -> Result<()> {
    let fixture = fixture("extras").await?;
    fixture.ready_foo("web", 1).await?;
    let theirs = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"labels": {"team": "blue"}, "annotations": {"note": "kept"}},
        "spec": {"minReadySeconds": 7},
    });
    let patch = Patch::Apply(&theirs);
    fixture
        .deployments()
        .patch("web", &PatchParams::apply("a-user"), &patch)
        .await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 8}}))
        .await?;
    let repaired = fixture
        .wait_for_deployment("web", "one replica", |found| replicas(found) == Some(1))
        .await?;
    ensure!(
        repaired.labels().get("team").is_some_and(|team| team == "blue"),
        "{:?}",
        repaired.labels()
    );
    ensure!(repaired.annotations().get("note").is_some_and(|note| note == "kept"));
    ensure!(repaired.spec.as_ref().and_then(|spec| spec.min_ready_seconds) == Some(7));
    ensure!(image(&repaired) == Some("nginx:latest"));
    Ok(())
}

/// `tests/integration/admission` has the Foos that the CRD rejects.
#[tokio::test]
async fn foos_at_the_allowed_limits_are_reconciled() -> Result<()> {
    let fixture = fixture("bounds").await?;
    let (_, deployment) = fixture.ready_foo(&"a".repeat(63), 10).await?;
    ensure!(replicas(&deployment) == Some(10));
    fixture.ready_foo("a", 1).await?;
    Ok(())
}
