//! Tests of Kubernetes, by their names: `test/integration/serviceaccount`, and the specs in
//! `test/e2e/auth/service_accounts.go` that need no running Pods.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenReview, TokenReviewSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::profile::wait_for_account;
use crate::{
    bare_plane::tenant,
    fixtures::{LIMIT, dynamic_client::DynamicClient},
};

fn accounts(tenant: &DynamicClient) -> Api<ServiceAccount> {
    Api::namespaced(tenant.client().clone(), tenant.name())
}

async fn create(accounts: &Api<ServiceAccount>, manifest: Value) -> Result<ServiceAccount> {
    let account = serde_json::from_value(manifest)?;
    Ok(accounts.create(&PostParams::default(), &account).await?)
}

/// `TestServiceAccountAutoCreate`.
#[tokio::test]
async fn test_service_account_auto_create() -> Result<()> {
    let tenant = tenant("test-service-account-creation").await?;
    let accounts = accounts(&tenant);
    let first = wait_for_account(&accounts, None).await?;
    accounts.delete("default", &DeleteParams::default()).await?;
    wait_for_account(&accounts, first.uid().as_deref()).await?;
    Ok(())
}

/// An account that a finalizer holds is recreated when it is gone, not before.
#[tokio::test]
async fn an_account_that_is_being_deleted_is_recreated_once_it_is_gone() -> Result<()> {
    let tenant = tenant("held-account").await?;
    let accounts = accounts(&tenant);
    let first = wait_for_account(&accounts, None).await?;
    let finalizers = |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let accounts = accounts.clone();
        async move { accounts.patch("default", &PatchParams::default(), &patch).await }
    };
    finalizers(json!(["example.com/a-test"])).await?;
    accounts.delete("default", &DeleteParams::default()).await?;
    ensure!(accounts.get("default").await?.uid() == first.uid());
    finalizers(json!([])).await?;
    wait_for_account(&accounts, first.uid().as_deref()).await?;
    Ok(())
}

/// `no secret-based service account token should be auto-generated`.
#[tokio::test]
async fn no_secret_based_service_account_token_should_be_auto_generated() -> Result<()> {
    let tenant = tenant("no-secrets").await?;
    let account = wait_for_account(&accounts(&tenant), None).await?;
    ensure!(account.secrets.unwrap_or_default().is_empty());
    ensure!(tenant.list("v1", "Secret").await?.is_empty());
    Ok(())
}

/// `should allow opting out of API token automount`. Each row has the account, the field of the Pod
/// and whether a token is mounted.
#[tokio::test]
async fn should_allow_opting_out_of_api_token_automount() -> Result<()> {
    let tenant = tenant("automount").await?;
    let accounts = accounts(&tenant);
    wait_for_account(&accounts, None).await?;
    for (name, automount) in [("mount", true), ("nomount", false)] {
        let account = json!({"metadata": {"name": name}, "automountServiceAccountToken": automount});
        create(&accounts, account).await?;
    }
    let pods: Api<Pod> = Api::namespaced(tenant.client().clone(), tenant.name());
    let table = [
        ("default", None, true),
        ("mount", None, true),
        ("nomount", None, false),
        ("default", Some(true), true),
        ("mount", Some(true), true),
        ("nomount", Some(true), true),
        ("default", Some(false), false),
        ("mount", Some(false), false),
        ("nomount", Some(false), false),
    ];
    for (number, (account, automount, expected)) in table.into_iter().enumerate() {
        let spec = json!({
            "serviceAccountName": account,
            "automountServiceAccountToken": automount,
            "containers": [{"name": "token-test", "image": "example.com/main:1"}],
        });
        let pod = json!({"metadata": {"name": format!("pod-{number}")}, "spec": spec});
        let pod = serde_json::from_value(pod)?;
        let pod = pods.create(&PostParams::default(), &pod).await.context("no account")?;
        let spec = pod.spec.context("the Pod has no spec")?;
        let mounts = spec
            .containers
            .into_iter()
            .flat_map(|one| one.volume_mounts.unwrap_or_default());
        let mut paths = mounts.map(|mount| mount.mount_path);
        let is_mounted = paths.any(|path| path == "/var/run/secrets/kubernetes.io/serviceaccount");
        ensure!(is_mounted == expected, "{account} with {automount:?}: {is_mounted}");
    }
    Ok(())
}

/// `should run through the lifecycle of a ServiceAccount`. The account that the controller owns is
/// deleted with the others, and recreated.
#[tokio::test]
async fn should_run_through_the_lifecycle_of_a_service_account() -> Result<()> {
    let tenant = tenant("account-lifecycle").await?;
    let accounts = accounts(&tenant);
    let first = wait_for_account(&accounts, None).await?;
    let labels = json!({"test-serviceaccount-static": "true"});
    let account = json!({"metadata": {"name": "testserviceaccount", "labels": labels}});
    create(&accounts, account).await?;
    let patch = Patch::Merge(json!({"automountServiceAccountToken": false}));
    let parameters = PatchParams::default();
    accounts.patch("testserviceaccount", &parameters, &patch).await?;
    let all: Api<ServiceAccount> = Api::all(tenant.client().clone());
    let labelled = ListParams::default().labels("test-serviceaccount-static=true");
    let found = all.list(&labelled).await?.items;
    ensure!(
        found.len() == 1 && found[0].automount_service_account_token == Some(false),
        "{found:?}"
    );
    accounts
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    wait_for_account(&accounts, first.uid().as_deref()).await?;
    ensure!(accounts.get_opt("testserviceaccount").await?.is_none());
    Ok(())
}

/// `should update a ServiceAccount`.
#[tokio::test]
async fn should_update_a_service_account() -> Result<()> {
    let tenant = tenant("account-update").await?;
    let accounts = accounts(&tenant);
    let account = json!({"metadata": {"name": "e2e-sa"}, "automountServiceAccountToken": false});
    let mut account = create(&accounts, account).await?;
    account.automount_service_account_token = Some(true);
    let updated = accounts.replace("e2e-sa", &PostParams::default(), &account).await?;
    ensure!(updated.automount_service_account_token == Some(true));
    Ok(())
}

/// `should create a serviceAccountToken and ensure a successful TokenReview`, with the account that
/// the controller has created.
#[tokio::test]
async fn should_create_a_service_account_token_and_ensure_a_successful_token_review() -> Result<()> {
    let tenant = tenant("account-token").await?;
    let accounts = accounts(&tenant);
    wait_for_account(&accounts, None).await?;
    let request = TokenRequest::default();
    let issued = accounts
        .create_token_request("default", &PostParams::default(), &request)
        .await?;
    let token = issued.status.and_then(|status| status.token).context("no token")?;
    let reviews: Api<TokenReview> = Api::all(tenant.client().clone());
    let review = TokenReview {
        spec: TokenReviewSpec { token, audiences: None },
        ..TokenReview::default()
    };
    eventually(LIMIT, "the token to be accepted", || async {
        let reviewed = reviews.create(&PostParams::default(), &review).await?;
        let status = reviewed.status.context("no status")?;
        ensure!(status.authenticated == Some(true), "{status:?}");
        let user = status.user.context("no user")?;
        let name = format!("system:serviceaccount:{}:default", tenant.name());
        ensure!(user.username.as_deref() == Some(&*name), "{user:?}");
        let groups = user.groups.unwrap_or_default();
        let own = format!("system:serviceaccounts:{}", tenant.name());
        for group in ["system:authenticated", "system:serviceaccounts", &own] {
            ensure!(
                groups.iter().any(|known| known == group),
                "{group} is not in {groups:?}"
            );
        }
        anyhow::Ok(())
    })
    .await
}
