//! Objects that the apiserver accepts and that the controller cannot decode.

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    daemon::Daemon,
    manifests::loose,
    namespace::{NamespaceFixture, replicas},
};

#[tokio::test]
async fn an_undecodable_object_is_reported_and_other_objects_are_reconciled() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    crds.create(&PostParams::default(), &loose(&Foo::crd())?).await?;
    let fixture = NamespaceFixture::new(&plane, "undecodable").await?;
    let resource = ApiResource::erase::<Foo>(&());
    let anything: Api<DynamicObject> = Api::namespaced_with(plane.client()?, fixture.name(), &resource);
    let bad = DynamicObject::new("bad", &resource).data(json!({"spec": {"deploymentName": 7, "replicas": 1}}));
    let parameters = PostParams::default();
    eventually(LIMIT, "Foos to be served", || anything.create(&parameters, &bad)).await?;

    let daemon = Daemon::start(&plane, "tolerant-daemon", &["-v=4"]).await?;
    let named = format!("undecodable objects: 1 ({}/bad", fixture.name());
    let is_named = |status, text: &str| status == StatusCode::OK && text.contains(&named);
    daemon.admin.wait_until_readyz("its name", is_named).await?;
    let gauge = "portreeve_informer_undecodable_objects";
    let foos = [r#"resource="foos.v1alpha1.samplecontroller.k8s.io""#];
    let count = daemon.admin.metrics().await?.sum(gauge, &foos);
    ensure!((count - 1.0).abs() < f64::EPSILON, "{gauge} is {count}");
    fixture.ready_foo("good", 2).await?;

    // A watch event that cannot be decoded counts like a list item, and a repaired object is
    // reconciled.
    let invalid_patch = Patch::Merge(json!({"spec": {"deploymentName": ["good"]}}));
    anything.patch("good", &PatchParams::default(), &invalid_patch).await?;
    daemon
        .admin
        .wait_until_readyz("two of them", |_, text| text.contains("undecodable objects: 2 ("))
        .await?;
    for name in ["bad", "good"] {
        let mend = Patch::Merge(json!({"spec": {"deploymentName": name, "replicas": 4}}));
        anything.patch(name, &PatchParams::default(), &mend).await?;
        fixture
            .wait_for_deployment(name, "4 replicas", |found| replicas(found) == Some(4))
            .await?;
    }
    let (status, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(
        status == StatusCode::OK && !text.contains("cannot be decoded"),
        "{text}"
    );
    Ok(())
}
