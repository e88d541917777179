//! Outages of the apiserver, before a daemon starts and while it runs. `chaos` stops the apiserver
//! under a working daemon.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat};

use crate::{
    faults::controllers::informers,
    fixtures::{
        LIMIT, RETRY_LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon},
        namespace::NamespaceFixture,
    },
};

/// The `Retry-After` of throttled requests, in seconds. It is longer than the recovery of a daemon.
const RETRY_AFTER: u32 = 5;
/// After this many rejections, a key waits for at least ten seconds.
const REJECTIONS: u64 = 12;

#[tokio::test]
async fn the_daemon_waits_for_an_apiserver_that_is_down_at_startup() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let fixture = NamespaceFixture::new(&plane, "away").await?;
    plane.apiserver().stop().await?;
    let daemon = Daemon::start(&plane, "patient-daemon", &["--install-crds"]).await?;
    daemon.wait_for_line(&["waiting for the apiserver"]).await?;
    let (status, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
    ensure!(text.contains("waiting for the apiserver"), "{text}");
    let (status, text) = daemon.admin.get("/livez").await?;
    ensure!(
        status == StatusCode::OK,
        "livez fails, but a restart would not help: {text}"
    );
    plane.apiserver().start().await?;
    daemon.admin.wait_until_ready().await?;
    fixture.ready_foo("web", 2).await?;
    Ok(())
}

/// Starts a daemon with every controller behind the proxy, and waits until all resources are
/// listed. Returns how many requests it has sent.
async fn start_daemon(plane: &ControlPlane, proxy: &FaultProxy) -> Result<(Daemon, u64)> {
    let requests = proxy.count(Matcher::any());
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "outage")?;
    let daemon = Daemon::start_as(plane, &kubeconfig, "outage", &[&ALL_CONTROLLERS]).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.wait_for_line(&["synced all resources"]).await?;
    Ok((daemon, requests.matched()))
}

/// The end of an outage ends the waits that it has caused: those of informers.
/// It does not end the waits after rejections and after responses with `Retry-After`. All
/// recoveries happen within the next `Retry-After`, and with hardly more requests than a start.
#[tokio::test]
async fn the_end_of_an_outage_ends_the_waits_that_it_has_caused() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let installer = Daemon::start(&plane, "installer", &["--install-crds", "--controllers=*"]).await?;
    installer.admin.wait_until_ready().await?;
    drop(installer);
    let proxy = FaultProxy::start(&plane).await?;
    let (_daemon, requests) = start_daemon(&plane, &proxy).await?;

    let creations = |fixture: &NamespaceFixture| {
        Matcher::any()
            .method("POST")
            .resource("deployments")
            .namespace(fixture.name())
    };
    let rejected = NamespaceFixture::new(&plane, "rejected").await?;
    let throttled = NamespaceFixture::new(&plane, "throttled").await?;
    let rejection = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "forbidden (fault proxy)");
    let rejections = proxy.respond(creations(&rejected), rejection, Repeat::UntilHealed);
    let throttling = CannedResponse::too_many_requests(RETRY_AFTER);
    let throttlings = proxy.respond(creations(&throttled), throttling, Repeat::UntilHealed);
    let outage = proxy.respond(Matcher::any(), CannedResponse::unavailable(), Repeat::UntilHealed);
    rejected.create_foo("web", "web", 1).await?;
    throttled.create_foo("web", "web", 1).await?;
    // The watch delivers this Foo last.
    throttlings.wait_for_applied(1, LIMIT).await?;
    proxy.reset();

    rejections.wait_for_applied(REJECTIONS, LIMIT).await?;
    throttlings.wait_for_applied(throttlings.applied() + 1, LIMIT).await?;
    let before = (rejections.applied(), throttlings.applied());
    let sent = proxy.count(Matcher::any());
    let reopened: Vec<_> = informers(Matcher::watches)
        .into_iter()
        .map(|(resource, watches)| (resource, proxy.count(watches)))
        .collect();
    proxy.heal_one(&outage);
    for (resource, watches) in &reopened {
        let watched = watches.wait_for_matched(1, RETRY_LIMIT).await;
        watched.with_context(|| format!("{resource} was not watched again"))?;
    }
    let after = (rejections.applied(), throttlings.applied());
    ensure!(
        after == before,
        "rejected and throttled {after:?} requests instead of {before:?}"
    );
    // By now, all other waits have ended too.
    throttlings.wait_for_applied(before.1 + 1, LIMIT).await?;
    let sent = sent.matched();
    ensure!(
        2 * sent <= 3 * requests,
        "{sent} requests after the outage, {requests} at the start"
    );
    Ok(())
}
