//! Pods that the cache does not show, where the live list protects their claims, and an apiserver
//! that serves no Pods.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode};
use portreeve_reconcile::SystemClock;
use portreeve_testing::{CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, Repeat};
use serde_json::{Value, json};

use super::profile::{CLAIM_FINALIZER, delete_pod, wait_for_finalizers};
use crate::fixtures::{
    LIMIT,
    daemon::Daemon,
    dynamic_client::{DynamicClient, Policy},
    in_process::InProcess,
    object_builder::{claim, scheduled_pod},
    rbac::restricted_kubeconfig,
};

const CONTROLLERS: &str = "--controllers=pvc-protection";

fn not_served() -> CannedResponse {
    CannedResponse::status(StatusCode::NOT_FOUND, "NotFound", "not found (fault proxy)")
}

/// The informer lists and watches the Pods of all namespaces, and a decision lists those of one.
#[tokio::test]
async fn a_claim_stays_while_a_pod_that_the_cache_does_not_have_uses_it() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let kubeconfig = proxy.kubeconfig(&kubeconfig, "portreeve")?;
    let tenant = DynamicClient::new(&plane, "unseen").await?;
    let all = Matcher::any().path_prefix("/api/v1/pods");
    let informer = proxy.respond(all, not_served(), Repeat::UntilHealed);
    let flags = [CONTROLLERS];
    let daemon = InProcess::start_as(&kubeconfig, Arc::new(SystemClock), portreeve_cli::CONTROLLERS, &flags).await?;
    let used = tenant.create(claim("used")).await?;
    let unused = tenant.create(claim("unused")).await?;
    let mut pods = Vec::new();
    // The Pod that uses the claim is on the last page.
    for (name, of) in [("a", "other"), ("b", "other"), ("c", "used")] {
        pods.push(tenant.create(scheduled_pod(name, of)).await?);
    }
    let live = || Matcher::lists().resource("pods").namespace(tenant.name());
    let one_each = proxy.fault(live(), Fault::LimitPageSize(1), Repeat::UntilHealed);
    tenant.delete(&used, Policy::Unspecified).await?;
    // Three pages, twice.
    one_each.wait_for_applied(6, LIMIT).await?;
    wait_for_finalizers(&tenant, &used, &[CLAIM_FINALIZER]).await?;

    proxy.heal_one(&one_each);

    // The same for an apiserver that answers nothing of use: it says that Pods are not served, and
    // serves them by its discovery.
    for (matcher, response) in [(live(), not_served()), (live(), CannedResponse::unavailable())] {
        let failing = proxy.respond(matcher, response, Repeat::UntilHealed);
        tenant.delete(&unused, Policy::Unspecified).await?;
        failing.wait_for_applied(2, LIMIT).await?;
        wait_for_finalizers(&tenant, &unused, &[CLAIM_FINALIZER]).await?;
        wait_for_finalizers(&tenant, &used, &[CLAIM_FINALIZER]).await?;
        proxy.heal_one(&failing);
    }
    tenant.wait_until_gone(&unused).await?;
    delete_pod(&tenant, &pods[2]).await?;
    tenant.wait_until_gone(&used).await?;
    ensure!(informer.applied() > 0, "the informer listed no Pods");
    daemon.finish().await
}

/// kube-controller-manager waits for the list of Pods for ever.
#[tokio::test]
async fn claims_are_released_where_pods_are_not_served() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let kubeconfig = proxy.kubeconfig(&kubeconfig, "portreeve")?;
    let tenant = DynamicClient::new(&plane, "podless").await?;
    let core = Request::get("/api/v1").body(Vec::new())?;
    let mut core: Value = plane.client()?.request(core).await?;
    let resources = core["resources"].as_array_mut().context("a list of resources")?;
    resources.retain(|resource| resource["name"] != "pods");
    let versions = CannedResponse::document(json!({"kind": "APIVersions", "versions": ["v1"]}));
    proxy.respond(Matcher::any().path("/api"), versions, Repeat::UntilHealed);
    let core = CannedResponse::document(core);
    proxy.respond(Matcher::any().path("/api/v1"), core, Repeat::UntilHealed);
    proxy.respond(Matcher::any().resource("pods"), not_served(), Repeat::UntilHealed);
    let daemon = Daemon::start_as(&plane, &kubeconfig, "podless", &[CONTROLLERS]).await?;
    let deleted = tenant.create(claim("deleted")).await?;
    wait_for_finalizers(&tenant, &deleted, &[CLAIM_FINALIZER]).await?;
    // It would keep the claim if it were seen.
    tenant.create(scheduled_pod("hidden", "deleted")).await?;
    tenant.delete(&deleted, Policy::Unspecified).await?;
    tenant.wait_until_gone(&deleted).await?;
    daemon.admin.wait_until_ready().await
}
