//! The RBAC rules that the daemon needs, and what it reports when one is missing.

mod cluster_wide;
mod definitions;
mod kubernetes_roles;
mod permissions;
mod required_verbs;
mod webhook_parameters;

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::ControlPlane;

use crate::fixtures::{daemon::Daemon, namespace::NamespaceFixture, rbac::FooAccount};

#[tokio::test]
async fn a_watch_that_is_or_becomes_forbidden_fails_readiness_until_its_rbac_rule_exists() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let account = FooAccount::new(&plane).await?;
    account.grant_all_but_deployments().await?;
    let flags = ["-v=4", "--watch-idle-timeout=6s"];
    let daemon = Daemon::start_as(&plane, &account.kubeconfig, "poor-daemon", &flags).await?;
    let fixture = NamespaceFixture::new(&plane, "forbidden").await?;
    fixture.create_foo("web", "web", 1).await?;
    let failed = "[-]informer/deployments.v1.apps failed: forbidden";
    let synced = "[+]informer/foos.v1alpha1.samplecontroller.k8s.io ok\n";
    let both = |_, text: &str| text.contains(failed) && text.contains(synced);
    let (status, text) = daemon
        .admin
        .wait_until_readyz("the name of the forbidden watch", both)
        .await?;
    ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{text}");
    // A restart would not help.
    daemon.admin.ensure_passing("/livez").await?;
    ensure!(fixture.deployments().get_opt("web").await?.is_none());

    account.grant_all().await?;
    daemon.admin.wait_until_ready().await?;
    fixture
        .wait_for_condition("web", "Ready", ConditionStatus::True)
        .await?;

    account.grant_all_but_deployments().await?;
    let words = [
        "forbidden: ",
        "deployments",
        "`portreeve rbac` prints the required rules, `portreeve webhooks` those for the parameters of webhooks",
    ];
    let check = "informer/deployments.v1.apps";
    daemon.admin.wait_until_failing("/readyz", check, &words).await?;
    let failed = daemon.admin.failing("/readyz").await?;
    ensure!(failed.len() == 1, "{failed:?}");
    daemon.admin.ensure_passing("/livez").await?;
    account.grant_all().await?;
    daemon.admin.wait_until_passing("/readyz").await
}
