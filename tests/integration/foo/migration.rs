//! Replaces sample-controller in place: its CRD, and the Foos and Deployments that it leaves
//! behind.

use anyhow::{Result, ensure};
use k8s_openapi::{
    api::apps::v1::Deployment, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use portreeve_api::conditions::ConditionStatus;
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::deployment::{desired, owned, reference};
use crate::fixtures::{
    LIMIT,
    daemon::Daemon,
    manifests,
    namespace::{NamespaceFixture, image, replicas},
};

const MANAGER: &str = "sample-controller";

/// Returns the CRD of sample-controller, with the status subresource.
fn definition() -> Value {
    let spec = json!({"type": "object", "properties": {
        "deploymentName": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10},
    }});
    let status = json!({"type": "object", "properties": {"availableReplicas": {"type": "integer"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "foos.samplecontroller.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, experimental-only"},
        },
        "spec": {
            "group": "samplecontroller.k8s.io",
            "names": {"kind": "Foo", "plural": "foos"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
                "subresources": {"status": {}},
            }],
        },
    })
}

async fn install_definition(client: &Client) -> Result<()> {
    manifests::apply(client, &definition(), None, &PatchParams::apply("a-user")).await?;
    Ok(())
}

/// Returns the Deployment that sample-controller 1.36 creates for a Foo. It sets no labels on the
/// Deployment itself.
fn sample_deployment(foo: &DynamicObject, name: &str, image: &str) -> Value {
    let labels = json!({"app": "nginx", "controller": foo.name_any()});
    json!({
        "metadata": {
            "name": name,
            "ownerReferences": [reference(foo)],
        },
        "spec": {
            "replicas": foo.data["spec"]["replicas"],
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "nginx", "image": image}]},
            },
        },
    })
}

/// Acts as sample-controller.
struct SampleController<'a> {
    fixture: &'a NamespaceFixture,
    foos: Api<DynamicObject>,
}

impl<'a> SampleController<'a> {
    fn new(fixture: &'a NamespaceFixture) -> Self {
        let resource = ApiResource::erase::<Foo>(&());
        let client = fixture.namespace.client().clone();
        Self {
            fixture,
            foos: Api::namespaced_with(client, fixture.name(), &resource),
        }
    }

    /// Creates a Foo as a user does, as soon as the apiserver serves Foos.
    async fn create_foo(&self, name: &str, deployment: &str) -> Result<DynamicObject> {
        let foo = DynamicObject::new(name, &ApiResource::erase::<Foo>(&()));
        let foo = foo.data(json!({"spec": {"deploymentName": deployment, "replicas": 2}}));
        eventually(LIMIT, "Foos to be served", || async {
            anyhow::Ok(self.foos.create(&PostParams::default(), &foo).await?)
        })
        .await
    }

    /// Creates a Deployment, lets it become available, and writes the status of the Foo.
    async fn deploy(&self, foo: &DynamicObject, name: &str, image: &str) -> Result<Deployment> {
        let deployment = serde_json::from_value(sample_deployment(foo, name, image))?;
        let parameters = PostParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PostParams::default()
        };
        self.fixture.deployments().create(&parameters, &deployment).await?;
        self.fixture.set_available(name, 2).await?;
        let status = Patch::Merge(json!({"status": {"availableReplicas": 2}}));
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        self.foos.patch_status(&foo.name_any(), &parameters, &status).await?;
        Ok(self.fixture.deployments().get(name).await?)
    }
}

/// Returns the manager and the operation of each entry about the Deployment itself, sorted.
fn managers(deployment: &Deployment) -> Vec<(String, String)> {
    let entries = deployment.managed_fields().iter();
    let entries = entries.filter(|entry| entry.subresource.is_none());
    let managers = entries.map(|entry| {
        (
            entry.manager.clone().unwrap_or_default(),
            entry.operation.clone().unwrap_or_default(),
        )
    });
    let mut managers: Vec<_> = managers.collect();
    managers.sort();
    managers
}

#[tokio::test]
async fn sample_controller_is_replaced_in_place() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let fixture = NamespaceFixture::new(&plane, "migrated").await?;
    install_definition(fixture.namespace.client()).await?;
    let sample = SampleController::new(&fixture);
    let web = sample.create_foo("web", "web").await?;
    let before = sample.deploy(&web, "web", "nginx:latest").await?;
    ensure!(before.labels().is_empty(), "{before:?}");
    // sample-controller keeps the Deployments of earlier names, and images that others have set.
    sample.deploy(&web, "earlier", "nginx:latest").await?;
    let other = sample.create_foo("other", "other").await?;
    let other = sample.deploy(&other, "other", "nginx:1.29").await?;

    // The CRD of sample-controller accepts names that are no DNS labels.
    let dotted = sample.create_foo("dotted", "web.example").await?;
    sample.deploy(&dotted, "web.example", "nginx:latest").await?;

    let crds: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let label = Patch::Merge(json!({"metadata": {"labels": {"app.kubernetes.io/part-of": "portreeve"}}}));
    crds.patch(Foo::crd_name(), &PatchParams::default(), &label).await?;
    let _daemon = Daemon::start(&plane, "replacement", &["--install-crds"]).await?;
    let foo = fixture
        .wait_for_condition("web", "Ready", ConditionStatus::True)
        .await?;
    let after = fixture.deployments().get("web").await?;
    ensure!(owned(&after) == desired(&foo), "{:#}", owned(&after));
    let unchanged = |deployment: &Deployment| {
        let deployment = json!(deployment);
        json!([
            deployment["metadata"]["uid"],
            deployment["metadata"]["generation"],
            deployment["metadata"]["ownerReferences"],
            deployment["spec"],
        ])
    };
    ensure!(unchanged(&after) == unchanged(&before), "{after:#?}");
    let entry = |operation: &str| (MANAGER.to_owned(), operation.to_owned());
    ensure!(managers(&before) == [entry("Update")], "{:?}", managers(&before));
    ensure!(
        managers(&after) == [entry("Apply"), entry("Update")],
        "{:?}",
        managers(&after)
    );
    fixture.wait_for_no_deployment("earlier").await?;

    fixture
        .wait_for_condition("other", "Ready", ConditionStatus::True)
        .await?;
    let restored = fixture.deployments().get("other").await?;
    ensure!(image(&restored) == Some("nginx:latest"), "{restored:#?}");
    ensure!(restored.uid() == other.uid(), "{restored:#?}");
    let generations = (other.metadata.generation, restored.metadata.generation);
    ensure!(generations == (Some(1), Some(2)), "{generations:?}");
    fixture
        .wait_for_condition("dotted", "Ready", ConditionStatus::True)
        .await?;
    fixture.merge_foo("dotted", json!({"spec": {"replicas": 3}})).await?;
    fixture
        .wait_for_deployment("web.example", "3 replicas", |found| replicas(found) == Some(3))
        .await?;
    Ok(())
}
