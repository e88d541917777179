//! Pods that the cache does not show: the live list protects their claims.

use std::sync::Arc;

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_reconcile::SystemClock;
use portreeve_testing::{CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use super::profile::{CLAIM_FINALIZER, delete_pod, wait_for_finalizers};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    in_process::InProcess,
    object_builder::{claim, scheduled_pod},
    rbac::restricted_kubeconfig,
};

const CONTROLLERS: &str = "--controllers=pvc-protection";

/// The informer lists and watches the Pods of all namespaces, and a decision lists those of one.
#[tokio::test]
async fn a_claim_stays_while_a_pod_that_the_cache_does_not_have_uses_it() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let kubeconfig = proxy.kubeconfig(&kubeconfig, "portreeve")?;
    let tenant = DynamicClient::new(&plane, "unseen").await?;
    let not_served = CannedResponse::status(StatusCode::NOT_FOUND, "NotFound", "not found (fault proxy)");
    let informer = proxy.respond(
        Matcher::any().path_prefix("/api/v1/pods"),
        not_served.clone(),
        Repeat::UntilHealed,
    );
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
    for (matcher, response) in [(live(), not_served), (live(), CannedResponse::unavailable())] {
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
