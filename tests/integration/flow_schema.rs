//! The requests that the FlowSchema of `portreeve flowschema` matches on the real apiserver.

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use kube::{Api, Client, ResourceExt, api::PatchParams, client::Body};
use portreeve_testing::{ControlPlane, eventually};

use crate::fixtures::{LIMIT, daemon::printed, manifests};

/// The header with the UID of the FlowSchema that the apiserver has matched, even if it then denies
/// the request.
const FLOW_SCHEMA_UID: &str = "X-Kubernetes-PF-FlowSchema-UID";

/// Returns the UID of the FlowSchema that matches a request.
async fn matched(client: &Client, method: &str, path: &str) -> Result<String> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", "application/json")
        .body(Body::empty())?;
    let response = client.send(request).await?;
    let uid = response.headers().get(FLOW_SCHEMA_UID);
    Ok(uid.context("the response names no FlowSchema")?.to_str()?.to_owned())
}

#[tokio::test]
async fn the_flow_schema_matches_exactly_the_requests_of_leader_election() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let (system, elsewhere) = (plane.namespace("system").await?, plane.namespace("elsewhere").await?);
    let namespace = format!("--namespace={}", system.name());
    let lease = format!("--leader-elect-resource-namespace={}", system.name());
    let schema = &manifests::documents(&printed(&["flowschema", &namespace, &lease])?)?[0];
    let administrator = PatchParams::apply("an-administrator");
    let name = manifests::apply(system.client(), schema, None, &administrator)
        .await?
        .name_any();
    let schemas: Api<FlowSchema> = Api::all(system.client().clone());
    let uid = schemas.get(&name).await?.uid().context("the FlowSchema has no UID")?;
    let account = plane
        .service_account_client(system.name(), "portreeve", Vec::new())
        .await?;
    let other = plane.service_account_client(system.name(), "other", Vec::new()).await?;

    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", system.name());
    let lease = format!("{leases}/portreeve");
    eventually(LIMIT, "the apiserver to apply the FlowSchema", || async {
        ensure!(
            matched(&account, "GET", &lease).await? == uid,
            "another FlowSchema matches"
        );
        anyhow::Ok(())
    })
    .await?;
    for (method, path) in [
        ("POST", &*leases),
        ("PATCH", &*lease),
        ("GET", &*format!("{leases}?watch=true")),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"),
    ] {
        ensure!(matched(&account, method, path).await? == uid, "{method} {path}");
    }
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", system.name());
    let foreign = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/a", elsewhere.name());
    for (client, method, path) in [
        (&account, "POST", &*deployments),
        (&account, "GET", &*foreign),
        (&account, "GET", "/apis/coordination.k8s.io/v1/leases"),
        (&other, "GET", &*lease),
    ] {
        ensure!(matched(client, method, path).await? != uid, "{method} {path}");
    }
    Ok(())
}
