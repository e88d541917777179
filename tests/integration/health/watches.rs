//! Informers whose watches are silent, failing, or disconnected from the apiserver. `rights` has
//! those that are forbidden.

use anyhow::{Result, ensure};
use portreeve_testing::{BodyFault, CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use crate::fixtures::{LIMIT, daemon::Daemon, definitions::plane_with_definitions, shared_daemon};

const FOOS: &str = "informer/foos.v1alpha1.samplecontroller.k8s.io";
const DEPLOYMENTS: &str = "informer/deployments.v1.apps";
const CRDS: &str = "informer/customresourcedefinitions.v1.apiextensions.k8s.io";
/// With this idle timeout, a watch without contact for 8 s is stale.
const IDLE: &str = "--watch-idle-timeout=6s";

/// Starts a dry-run daemon behind a proxy, on the shared control plane, and returns both once the
/// daemon is ready.
async fn dry_run_daemon(name: &str, idle: &str) -> Result<(FaultProxy, Daemon)> {
    // The shared daemon installs the CRD of Foo.
    shared_daemon::daemon().await?;
    let plane = ControlPlane::shared().await;
    let proxy = FaultProxy::start(plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), name)?;
    let daemon = Daemon::start_as(plane, &kubeconfig, name, &["--dry-run", idle]).await?;
    daemon.admin.wait_until_ready().await?;
    Ok((proxy, daemon))
}

/// Waits until the checks report stale watches, which must not fail liveness, then heals the proxy
/// and waits until readiness passes.
async fn wait_until_stale_and_heal(proxy: &FaultProxy, daemon: &Daemon, checks: &[&str]) -> Result<()> {
    for check in checks {
        daemon
            .admin
            .wait_until_failing("/readyz", check, &["stale: last contact"])
            .await?;
    }
    daemon.admin.ensure_passing("/livez").await?;
    proxy.heal();
    daemon.admin.wait_until_passing("/readyz").await
}

#[tokio::test]
async fn silent_watches_fail_readiness_until_they_receive_data() -> Result<()> {
    let (proxy, daemon) = dry_run_daemon("deaf-daemon", IDLE).await?;
    proxy.hold_responses();
    wait_until_stale_and_heal(&proxy, &daemon, &[FOOS, DEPLOYMENTS]).await
}

/// Simulates a proxy that buffers the lines of a watch.
#[tokio::test]
async fn informers_relist_when_a_proxy_buffers_their_watches() -> Result<()> {
    let (proxy, daemon) = dry_run_daemon("patient-daemon", "--watch-idle-timeout=3s").await?;
    let stalled = Fault::Body(BodyFault::StallAt(0));
    proxy.fault(Matcher::watches(), stalled, Repeat::UntilHealed);
    proxy.reset();
    let lists = proxy.count(Matcher::lists().resource("foos"));
    lists.wait_for_matched(1, LIMIT).await?;
    // A list has refreshed the store, so readiness passes although the watch is silent.
    daemon.admin.wait_until_passing("/readyz").await?;
    // Without lists as well, the informer has no contact and becomes stale.
    proxy.respond(Matcher::lists(), CannedResponse::unavailable(), Repeat::UntilHealed);
    wait_until_stale_and_heal(&proxy, &daemon, &[FOOS]).await
}

#[tokio::test]
async fn an_incomplete_list_fails_readiness_although_its_first_pages_succeed() -> Result<()> {
    let (proxy, daemon) = dry_run_daemon("page-turner", IDLE).await?;
    let pages = Matcher::later_pages().resource("customresourcedefinitions");
    proxy.respond(pages, CannedResponse::internal_error(), Repeat::UntilHealed);
    proxy.fault(Matcher::lists(), Fault::LimitPageSize(1), Repeat::UntilHealed);
    proxy.respond(Matcher::watches(), CannedResponse::expired(), Repeat::UntilHealed);
    proxy.reset();
    wait_until_stale_and_heal(&proxy, &daemon, &[CRDS]).await
}

#[tokio::test]
async fn a_failing_watch_fails_only_its_own_readiness_check() -> Result<()> {
    let (proxy, daemon) = dry_run_daemon("refused-daemon", IDLE).await?;
    let deployments = Matcher::any().resource("deployments");
    proxy.respond(deployments, CannedResponse::unavailable(), Repeat::UntilHealed);
    // At first the open watch continues. The check fails once the watch has had no contact for the
    // stale limit.
    daemon
        .admin
        .wait_until_failing("/readyz", DEPLOYMENTS, &["stale: last contact", "ServiceUnavailable"])
        .await?;
    let failed = daemon.admin.failing("/readyz").await?;
    ensure!(failed.iter().all(|line| line.contains(DEPLOYMENTS)), "{failed:?}");
    daemon.admin.ensure_passing("/livez").await?;
    proxy.heal();
    daemon.admin.wait_until_passing("/readyz").await
}

#[tokio::test]
async fn a_long_apiserver_outage_fails_readiness_but_not_liveness() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let flags = [
        IDLE,
        "--install-crds",
        "--controller-stuck-timeout=3s",
        "--queue-stuck-timeout=3s",
    ];
    let daemon = Daemon::start(&plane, "abandoned-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    plane.apiserver().stop().await?;
    daemon
        .admin
        .wait_until_failing("/readyz", FOOS, &["stale: last contact"])
        .await?;
    daemon.admin.ensure_passing("/livez").await?;
    plane.apiserver().start().await?;
    daemon.admin.wait_until_passing("/readyz").await?;
    daemon.admin.ensure_passing("/livez").await
}
