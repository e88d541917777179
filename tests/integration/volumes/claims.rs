//! The protection of claims.

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::json;

use super::profile::{CLAIM_FINALIZER, delete_pod, wait_for_finalizers};
use crate::{
    bare_plane::tenant,
    fixtures::{
        dynamic_client::{DynamicClient, Policy},
        object_builder::{claim, scheduled_pod, unscheduled_pod},
    },
};

/// Waits until the controller has processed all earlier changes: it removes the finalizer of
/// another claim.
async fn catch_up(tenant: &DynamicClient) -> Result<()> {
    let canary = tenant.create(claim("canary")).await?;
    tenant.delete(&canary, Policy::Unspecified).await?;
    tenant.wait_until_gone(&canary).await
}

async fn ensure_protected(tenant: &DynamicClient, claim: &DynamicObject) -> Result<()> {
    let found = tenant.get(claim).await?;
    let finalizers = found.finalizers();
    ensure!(
        finalizers.iter().any(|known| known == CLAIM_FINALIZER),
        "{finalizers:?}"
    );
    Ok(())
}

/// controller-runtime #2854.
#[tokio::test]
async fn a_deleted_claim_goes_once_no_pod_with_a_node_uses_it() -> Result<()> {
    let client = tenant("claims").await?;
    let unused = client.create(claim("unused")).await?;
    let used = client.create(claim("used")).await?;
    // Another namespace has a claim of this name, too.
    let elsewhere = tenant("claims-elsewhere").await?;
    let elsewhere_used = elsewhere.create(claim("used")).await?;
    let pods = [
        client.create(scheduled_pod("one", "used")).await?,
        client.create(scheduled_pod("two", "used")).await?,
    ];
    client.create(unscheduled_pod("unscheduled", "unused")).await?;
    for claim in [&unused, &used] {
        client.delete(claim, Policy::Unspecified).await?;
    }
    elsewhere.delete(&elsewhere_used, Policy::Unspecified).await?;
    client.wait_until_gone(&unused).await?;
    elsewhere.wait_until_gone(&elsewhere_used).await?;
    delete_pod(&client, &pods[0]).await?;
    catch_up(&client).await?;
    ensure_protected(&client, &used).await?;
    delete_pod(&client, &pods[1]).await?;
    client.wait_until_gone(&used).await?;
    // A claim of the same name is protected again.
    let again = client.create(claim("used")).await?;
    catch_up(&client).await?;
    ensure_protected(&client, &again).await
}

#[tokio::test]
async fn a_claim_without_the_finalizer_gets_it_and_others_stay() -> Result<()> {
    let tenant = tenant("claim-finalizers").await?;
    let claim = tenant.create(claim("stripped")).await?;
    tenant
        .patch(&claim, json!({"metadata": {"finalizers": ["example.com/a-test"]}}))
        .await?;
    let both = ["example.com/a-test", CLAIM_FINALIZER];
    wait_for_finalizers(&tenant, &claim, &both).await?;
    tenant.delete(&claim, Policy::Unspecified).await?;
    wait_for_finalizers(&tenant, &claim, &both[..1]).await?;
    // Nothing adds the finalizer to a claim that is being deleted.
    catch_up(&tenant).await?;
    wait_for_finalizers(&tenant, &claim, &both[..1]).await?;
    tenant.patch(&claim, json!({"metadata": {"finalizers": null}})).await?;
    tenant.wait_until_gone(&claim).await
}
