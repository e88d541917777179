//! An admission policy that changes the Deployments that are written: it replaces the image.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding},
    apps::v1::Deployment,
};
use kube::{
    Api,
    api::{DeleteParams, PatchParams, PostParams},
};
use portreeve_api::conditions::{self, Condition};
use portreeve_foo::api::Foo;
use portreeve_testing::eventually;
use serde_json::json;

use super::deployment::owned;
use crate::fixtures::{
    LIMIT, manifests,
    namespace::{NamespaceFixture, replicas, unrelated_deployment},
    shared_daemon::{daemon, fixture},
};

const MIRRORED: &str = "mirror.example/nginx:latest";

/// A policy for the Deployments of a fixture's namespace.
struct ImagePolicy<'a>(&'a NamespaceFixture);

impl<'a> ImagePolicy<'a> {
    /// Creates the policy, and waits until it is enforced.
    async fn create(fixture: &'a NamespaceFixture) -> Result<Self> {
        let name = fixture.name();
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                    "resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
                        "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}],
                },
                "reinvocationPolicy": "Never",
                "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": format!(
                    "[JSONPatch{{op: 'replace', path: '/spec/template/spec/containers/0/image', value: '{MIRRORED}'}}]"
                )}}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        });
        let force = PatchParams::apply("an-administrator").force();
        for document in [&policy, &binding] {
            manifests::apply(fixture.namespace.client(), document, None, &force).await?;
        }
        let policy = Self(fixture);
        policy.wait_until(true).await?;
        Ok(policy)
    }

    async fn delete(self) -> Result<()> {
        let (client, name) = (self.0.namespace.client(), self.0.name());
        let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(client.clone());
        bindings.delete(name, &DeleteParams::default()).await?;
        let policies: Api<MutatingAdmissionPolicy> = Api::all(client.clone());
        policies.delete(name, &DeleteParams::default()).await?;
        self.wait_until(false).await
    }

    async fn wait_until(&self, is_enforced: bool) -> Result<()> {
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let probe: Deployment = serde_json::from_value(unrelated_deployment("probe"))?;
        eventually(LIMIT, &format!("enforced: {is_enforced}"), || async {
            let created = self.0.deployments().create(&dry_run, &probe).await?;
            ensure!((image(&created) == MIRRORED) == is_enforced, "{}", image(&created));
            anyhow::Ok(())
        })
        .await
    }
}

fn image(deployment: &Deployment) -> String {
    owned(deployment)["image"].as_str().unwrap_or_default().to_owned()
}

fn ready(foo: &Foo) -> Option<&Condition> {
    conditions::find_status_condition(&foo.status.as_ref()?.conditions, "Ready")
}

async fn wait_for_reason(fixture: &NamespaceFixture, reason: &str) -> Result<Foo> {
    let is_wanted = |foo: &Foo| {
        let is_current = |found: &Condition| Some(found.observed_generation) == foo.metadata.generation;
        ready(foo).is_some_and(|ready| *ready.reason == *reason && is_current(ready))
    };
    fixture.wait_for_foo("web", reason, is_wanted).await
}

/// Returns how often the controller has decided to apply Deployment `web` of this fixture.
async fn applies(fixture: &NamespaceFixture) -> Result<usize> {
    let log = daemon().await?.log()?;
    let apply = format!("apply Deployment {}/web", fixture.name());
    Ok(log.lines().filter(|line| line.contains(&apply)).count())
}

#[tokio::test]
async fn what_admission_made_of_the_deployment_is_its_state() -> Result<()> {
    let fixture = fixture("mutated").await?;
    let policy = ImagePolicy::create(&fixture).await?;
    fixture.create_foo("web", "web", 2).await?;
    let foo = wait_for_reason(&fixture, "ChangedByAdmission").await?;
    let message = ready(&foo).map(|ready| &*ready.message);
    let expected = "Admission changed what the controller applied to the Deployment: \
                    spec.template.spec.containers[nginx].image";
    ensure!(message == Some(expected), "{message:?}");
    let selector = foo.status.map(|status| status.label_selector);
    ensure!(selector.as_deref() == Some("app=nginx,controller=web"), "{selector:?}");
    for available in [1, 2, 1] {
        fixture.set_available("web", available).await?;
        let is_followed =
            |foo: &Foo| (foo.status.as_ref()).is_some_and(|status| status.available_replicas == available);
        fixture
            .wait_for_foo("web", &format!("{available} available"), is_followed)
            .await?;
    }
    let count = applies(&fixture).await?;
    ensure!(count == 0, "{count} applies, but only the status has changed");

    // A change of the Foo, and one that somebody makes to the Deployment.
    fixture.merge_foo("web", json!({"spec": {"replicas": 3}})).await?;
    wait_for_reason(&fixture, "ChangedByAdmission").await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 7}}))
        .await?;
    let has_three = |deployment: &Deployment| replicas(deployment) == Some(3);
    let deployment = fixture.wait_for_deployment("web", "3 replicas", has_three).await?;
    ensure!(image(&deployment) == MIRRORED, "{}", image(&deployment));

    policy.delete().await?;
    fixture.merge_foo("web", json!({"spec": {"replicas": 4}})).await?;
    let is_own = |deployment: &Deployment| image(deployment) == "nginx:latest" && replicas(deployment) == Some(4);
    fixture
        .wait_for_deployment("web", "the image of the controller", is_own)
        .await?;
    wait_for_reason(&fixture, "Synced").await?;
    fixture
        .wait_for_events("web", &["ChangedByAdmission", "Synced"])
        .await?;
    Ok(())
}

/// The Deployment existed before the policy, so the first apply after it changes nothing, and no
/// watch event follows.
#[tokio::test]
async fn a_rename_ends_in_spite_of_a_policy() -> Result<()> {
    let fixture = fixture("mutated-rename").await?;
    fixture.ready_foo("web", 1).await?;
    let _policy = ImagePolicy::create(&fixture).await?;
    fixture
        .merge_deployment("web", json!({"metadata": {"labels": {"team": "blue"}}}))
        .await?;
    wait_for_reason(&fixture, "ChangedByAdmission").await?;
    fixture
        .merge_foo("web", json!({"spec": {"deploymentName": "shop"}}))
        .await?;
    fixture.wait_for_deployment("shop", "created", |_| true).await?;
    fixture.set_available("shop", 1).await?;
    fixture.wait_for_no_deployment("web").await?;
    let foo = wait_for_reason(&fixture, "ChangedByAdmission").await?;
    let renaming = foo.status.context("the Foo has no status")?.conditions;
    let renaming = conditions::find_status_condition(&renaming, "Renaming").map(|found| found.reason.clone());
    ensure!(renaming.as_deref() != Some("DeploymentUnavailable"), "{renaming:?}");
    Ok(())
}
