//! Tests of the Foos that the apiserver rejects, with a message that names the field.

use anyhow::{Result, ensure};
use kube::{
    Api,
    api::PostParams,
    core::{ApiResource, DynamicObject},
};
use portreeve_api::Foo;
use serde_json::json;

use crate::fixtures::shared_daemon::fixture;

#[tokio::test]
async fn an_invalid_foo_is_rejected_with_the_name_of_the_field() -> Result<()> {
    let fixture = fixture("admission").await?;
    let resource = ApiResource::erase::<Foo>(&());
    let foos: Api<DynamicObject> = Api::namespaced_with(fixture.namespace.client().clone(), fixture.name(), &resource);
    let long = "a".repeat(64);
    let table = [
        ("a", json!({"deploymentName": "a", "replicas": 0}), "spec.replicas"),
        ("a", json!({"deploymentName": "a", "replicas": 11}), "spec.replicas"),
        ("a", json!({"deploymentName": "a", "replicas": "two"}), "spec.replicas"),
        ("a", json!({"deploymentName": "Bad_Name"}), "spec.deploymentName"),
        ("a", json!({"deploymentName": "-a"}), "spec.deploymentName"),
        ("a", json!({"deploymentName": ""}), "spec.deploymentName"),
        ("a", json!({"deploymentName": long}), "spec.deploymentName"),
        ("a", json!({"replicas": 1}), "spec.deploymentName"),
        (
            &*long,
            json!({"deploymentName": "a"}),
            "metadata.name can have at most 63 characters",
        ),
    ];
    for (name, spec, field) in table {
        let foo = DynamicObject::new(name, &resource).data(json!({"spec": spec}));
        let rejected = foos.create(&PostParams::default(), &foo).await;
        let Err(kube::Error::Api(status)) = rejected else {
            anyhow::bail!("{name} {spec} is not refused: {rejected:?}");
        };
        ensure!(status.code == 422, "{name} {spec}: {status:?}");
        ensure!(status.message.contains(field), "{name} {spec}: {}", status.message);
    }
    Ok(())
}

#[tokio::test]
async fn foos_at_the_allowed_limits_are_reconciled() -> Result<()> {
    let fixture = fixture("bounds").await?;
    let long = "a".repeat(63);
    let (_, deployment) = fixture.ready_foo(&long, 10).await?;
    ensure!(crate::fixtures::namespace::replicas(&deployment) == Some(10));
    fixture.ready_foo("a", 1).await?;
    Ok(())
}
