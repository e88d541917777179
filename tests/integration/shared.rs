//! The one daemon that reconciles the Foos of all tests on the shared control plane.
//!
//! It runs as a ServiceAccount with exactly the rights that `portreeve rbac` prints, so every test
//! of a Foo also tests those rules.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{
    Api, Client,
    api::{PatchParams, PostParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::support::{
    LIMIT,
    daemon::{Daemon, printed},
    fixtures::NamespaceFixture,
    manifests,
};

/// Creates a namespace on the shared control plane, in which the shared daemon reconciles Foos.
pub(crate) async fn fixture(prefix: &str) -> Result<NamespaceFixture> {
    daemon().await?;
    NamespaceFixture::new(ControlPlane::shared().await, prefix).await
}

/// Returns the shared daemon, once it is ready.
pub(crate) async fn daemon() -> Result<&'static Daemon> {
    static DAEMON: OnceCell<Daemon> = OnceCell::const_new();
    DAEMON.get_or_try_init(start).await
}

async fn start() -> Result<Daemon> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("portreeve-system").await?;
    let rbac = printed(&["rbac", "--install-crds", "--namespace", namespace.name()])?;
    apply_and_wait(namespace.client(), namespace.name(), &rbac).await?;
    let kubeconfig = plane
        .service_account_kubeconfig(namespace.name(), "portreeve", Vec::new())
        .await?;
    let daemon = Daemon::start_as(plane, &kubeconfig, "shared-daemon", &["--install-crds", "-v=4"]).await?;
    daemon.admin.wait_until_ready().await?;
    Ok(daemon)
}

/// Applies the output of `portreeve rbac`, and waits until the apiserver grants every permission in
/// it to the account `portreeve`.
pub(crate) async fn apply_and_wait(client: &Client, namespace: &str, rbac: &str) -> Result<()> {
    apply_and_wait_for(client, namespace, "portreeve", rbac).await
}

/// Applies the output of `portreeve rbac` like [`apply_and_wait`], for an account of another name.
pub(crate) async fn apply_and_wait_for(client: &Client, namespace: &str, account: &str, rbac: &str) -> Result<()> {
    let roles = manifests::documents(rbac)?;
    for role in &roles {
        manifests::apply(client, role, None, &PatchParams::apply("an-administrator").force()).await?;
    }
    let user = format!("system:serviceaccount:{namespace}:{account}");
    for role in &roles {
        let namespace = role.pointer("/metadata/namespace").and_then(Value::as_str);
        for attributes in role["rules"].as_array().into_iter().flatten().flat_map(granted) {
            let attributes = ResourceAttributes {
                namespace: namespace.map(str::to_owned),
                ..attributes
            };
            wait_until_granted(client, &user, attributes).await?;
        }
    }
    Ok(())
}

/// Returns every permission of a rule: each verb on each resource, for each resource name.
fn granted(rule: &Value) -> Vec<ResourceAttributes> {
    let text = |text: &str| Some(text.to_owned());
    let names: Vec<_> = match rule["resourceNames"].as_array() {
        Some(_) => strings(&rule["resourceNames"]).map(text).collect(),
        None => vec![None],
    };
    let mut permissions = Vec::new();
    for verb in strings(&rule["verbs"]) {
        for resource in strings(&rule["resources"]) {
            let (resource, subresource) = match resource.split_once('/') {
                Some((resource, subresource)) => (resource, text(subresource)),
                None => (resource, None),
            };
            permissions.extend(names.iter().map(|name| ResourceAttributes {
                verb: text(verb),
                group: strings(&rule["apiGroups"]).next().map(str::to_owned),
                resource: text(resource),
                subresource: subresource.clone(),
                name: name.clone(),
                ..ResourceAttributes::default()
            }));
        }
    }
    permissions
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

async fn wait_until_granted(client: &Client, user: &str, attributes: ResourceAttributes) -> Result<()> {
    let what = format!("{user} to be allowed {attributes:?}");
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    eventually(LIMIT, &what, || async {
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let SubjectAccessReviewStatus { allowed, reason, .. } = answer.status.context("the review has no status")?;
        ensure!(allowed, "denied: {reason:?}");
        anyhow::Ok(())
    })
    .await
}
