//! Watches that are silent, refused, forbidden, or without an apiserver.

use anyhow::{Result, ensure};
use kube::{Api, CustomResourceExt, api::PostParams};
use portreeve_api::Foo;
use portreeve_testing::{BodyFault, CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use super::{ensure_passing, failing, wait_until_failing, wait_until_passing};
use crate::{
    shared,
    support::{
        SETTLED,
        daemon::{Daemon, printed},
    },
};

const FOOS: &str = "informer/foos.v1alpha1.samplecontroller.k8s.io";
const DEPLOYMENTS: &str = "informer/deployments.v1.apps";
const DEFINITIONS: &str = "informer/customresourcedefinitions.v1.apiextensions.k8s.io";
/// Without contact for 8 s, a watch is stale.
const IDLE: &str = "--watch-idle-timeout=6s";

/// A daemon behind a proxy that looks at what the tests share, and writes nothing there. It is ready.
async fn onlooker(name: &str, idle: &str) -> Result<(FaultProxy, Daemon)> {
    // Foos are served.
    shared::daemon().await?;
    let plane = ControlPlane::shared().await;
    let proxy = FaultProxy::start(plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), name)?;
    let daemon = Daemon::start_as(plane, &kubeconfig, name, &["--dry-run", idle]).await?;
    daemon.admin.wait_until_ready().await?;
    Ok((proxy, daemon))
}

/// Waits until these are stale, which is nothing that a restart would cure, and heals what made them so.
async fn stale_until_healed(proxy: &FaultProxy, daemon: &Daemon, checks: &[&str]) -> Result<()> {
    for check in checks {
        wait_until_failing(&daemon.admin, "/readyz", check, &["stale: last contact"]).await?;
    }
    ensure_passing(&daemon.admin, "/livez").await?;
    proxy.heal();
    wait_until_passing(&daemon.admin, "/readyz").await
}

#[tokio::test]
async fn watches_that_hear_nothing_fail_readiness_until_they_do() -> Result<()> {
    let (proxy, daemon) = onlooker("deaf-daemon", IDLE).await?;
    proxy.hold_responses();
    stale_until_healed(&proxy, &daemon, &[FOOS, DEPLOYMENTS]).await
}

/// As a proxy has it that keeps what it passes on until it is a lot.
#[tokio::test]
async fn watches_whose_lines_are_held_back_are_made_up_for_by_lists() -> Result<()> {
    let (proxy, daemon) = onlooker("patient-daemon", "--watch-idle-timeout=3s").await?;
    let silent = Fault::Body(BodyFault::StallAt(0));
    proxy.fault(Matcher::watches(), silent, Repeat::UntilHealed);
    proxy.reset();
    let lists = proxy.count(Matcher::lists().resource("foos"));
    lists.wait_for_matched(1, SETTLED).await?;
    // A list has shown what there is: nothing is wrong.
    wait_until_passing(&daemon.admin, "/readyz").await?;
    // Not the lists either: nobody knows any more.
    proxy.respond(Matcher::lists(), CannedResponse::unavailable(), Repeat::UntilHealed);
    stale_until_healed(&proxy, &daemon, &[FOOS]).await
}

#[tokio::test]
async fn a_list_that_is_never_complete_fails_readiness_whatever_its_first_pages_say() -> Result<()> {
    let (proxy, daemon) = onlooker("page-turner", IDLE).await?;
    let pages = Matcher::later_pages().resource("customresourcedefinitions");
    proxy.respond(pages, CannedResponse::internal_error(), Repeat::UntilHealed);
    proxy.fault(Matcher::lists(), Fault::LimitPageSize(1), Repeat::UntilHealed);
    proxy.respond(Matcher::watches(), CannedResponse::expired(), Repeat::UntilHealed);
    proxy.reset();
    stale_until_healed(&proxy, &daemon, &[DEFINITIONS]).await
}

#[tokio::test]
async fn a_watch_that_is_refused_fails_readiness_by_its_name_alone() -> Result<()> {
    let (proxy, daemon) = onlooker("refused-daemon", IDLE).await?;
    let deployments = Matcher::any().resource("deployments");
    proxy.respond(deployments, CannedResponse::unavailable(), Repeat::UntilHealed);
    // It goes on for as long as the connection is heard of, and then for its limit.
    wait_until_failing(
        &daemon.admin,
        "/readyz",
        DEPLOYMENTS,
        &["stale: last contact", "ServiceUnavailable"],
    )
    .await?;
    let red = failing(&daemon.admin, "/readyz").await?;
    ensure!(red.iter().all(|line| line.contains(DEPLOYMENTS)), "{red:?}");
    ensure_passing(&daemon.admin, "/livez").await?;
    proxy.heal();
    wait_until_passing(&daemon.admin, "/readyz").await
}

#[tokio::test]
async fn a_right_that_is_revoked_fails_readiness_until_it_is_restored() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let definitions = Api::all(plane.client()?);
    definitions.create(&PostParams::default(), &Foo::crd()).await?;
    let namespace = plane.namespace("portreeve-system").await?;
    let rbac = printed(&["rbac", "--namespace", namespace.name()])?;
    // Everything but the rule for Deployments.
    let without = rbac.replace("- apps\n", "- nothing.example\n");
    shared::apply_and_wait(namespace.client(), namespace.name(), &rbac).await?;
    let kubeconfig = plane
        .service_account_kubeconfig(namespace.name(), "portreeve", Vec::new())
        .await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "revoked-daemon", &[IDLE]).await?;
    daemon.admin.wait_until_ready().await?;
    shared::apply_and_wait(namespace.client(), namespace.name(), &without).await?;
    let words = [
        "forbidden: ",
        "deployments",
        "`portreeve rbac` prints the required rules",
    ];
    wait_until_failing(&daemon.admin, "/readyz", DEPLOYMENTS, &words).await?;
    let red = failing(&daemon.admin, "/readyz").await?;
    ensure!(red.len() == 1, "{red:?}");
    ensure_passing(&daemon.admin, "/livez").await?;
    shared::apply_and_wait(namespace.client(), namespace.name(), &rbac).await?;
    wait_until_passing(&daemon.admin, "/readyz").await
}

#[tokio::test]
async fn an_apiserver_that_is_away_for_long_fails_readiness_and_not_liveness() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let flags = [
        IDLE,
        "--install-crds",
        "--controller-stuck-timeout=3s",
        "--queue-stuck-timeout=3s",
    ];
    let daemon = Daemon::start(&plane, "abandoned-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    plane.apiserver().stop().await?;
    wait_until_failing(&daemon.admin, "/readyz", FOOS, &["stale: last contact"]).await?;
    ensure_passing(&daemon.admin, "/livez").await?;
    plane.apiserver().start().await?;
    wait_until_passing(&daemon.admin, "/readyz").await?;
    ensure_passing(&daemon.admin, "/livez").await
}
