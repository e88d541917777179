//! Outages of the apiserver, before a daemon starts and while it runs. `chaos` stops the apiserver
//! under a working daemon.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use kube::api::DynamicObject;
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, RequestCounter};
use serde_json::json;

use crate::{
    fixtures::{
        LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon},
        definitions::plane_with_definitions,
        dynamic_client::DynamicClient,
        namespace::{NamespaceFixture, replicas},
        object_builder::config_map,
    },
    garbage::restore::{HELD_LEASE, back_up, increase_versions, restore},
    registry::informers,
};

/// The `Retry-After` of throttled requests, in seconds.
const RETRY_AFTER: u32 = 15;
/// After this many rejections, a key waits for 15 to 30 s.
const REJECTIONS: u64 = 14;
/// The least wait after a rejection and after a `Retry-After`, and a second less, because a test
/// notices a request late.
const LEAST_WAIT: Duration = Duration::from_secs(14);
/// The names of the Foos whose Deployments cannot be created during the outage.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

#[tokio::test]
async fn the_daemon_waits_for_an_apiserver_that_is_down_at_startup() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
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

/// Counts the lists and watches from now on. The number of other requests, such as renewals of the
/// Lease, depends on how long everything takes.
fn count_lists_and_watches(proxy: &FaultProxy) -> impl Fn() -> u64 {
    let counts = [Matcher::lists(), Matcher::watches()].map(|matcher| proxy.count(matcher));
    move || counts.iter().map(RequestCounter::matched).sum()
}

/// Starts a daemon with every controller behind the proxy, and waits until all resources are
/// listed. Returns how many lists and watches it has requested.
async fn start_daemon(plane: &ControlPlane, proxy: &FaultProxy) -> Result<(Daemon, u64)> {
    let requests = count_lists_and_watches(proxy);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "outage")?;
    let daemon = Daemon::start_as(plane, &kubeconfig, "outage", &[&ALL_CONTROLLERS]).await?;
    daemon.admin.wait_until_ready().await?;
    daemon.wait_for_line(&["synced all resources"]).await?;
    Ok((daemon, requests()))
}

/// Returns a matcher for the creation of the Deployments of Foos.
fn creations(fixture: &NamespaceFixture) -> Matcher {
    let posts = Matcher::any().method("POST").resource("deployments");
    posts.namespace(fixture.name())
}

/// Creates an object whose owner does not exist, and waits until the collector has failed to delete
/// it.
async fn create_garbage(proxy: &FaultProxy, client: &DynamicClient) -> Result<(DynamicObject, RequestCounter)> {
    let deletions = Matcher::any().method("DELETE").resource("configmaps");
    let failure = proxy.respond(
        deletions.namespace(client.name()),
        CannedResponse::unavailable(),
        Repeat::UntilHealed,
    );
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "absent"});
    let garbage = client.create(config_map("garbage").owner(owner)).await?;
    failure.wait_for_applied(1, LIMIT).await?;
    Ok((garbage, failure))
}

/// Heals the faults, and waits until all informers watch again, the Deployments exist, and the
/// garbage is deleted.
async fn recover(
    proxy: &FaultProxy,
    faults: &[RequestCounter],
    failing: &NamespaceFixture,
    garbage: &DynamicObject,
) -> Result<()> {
    let matchers = informers(Matcher::watches).into_iter();
    let resumed: Vec<_> = matchers
        .map(|(resource, watches)| (resource, proxy.count(watches)))
        .collect();
    for fault in faults {
        proxy.heal_one(fault);
    }
    for (resource, watches) in &resumed {
        let reached = watches.wait_for_matched(1, LIMIT).await;
        reached.with_context(|| format!("{resource} was not watched again"))?;
    }
    for name in NAMES {
        failing.wait_for_deployment(name, "created", |_| true).await?;
    }
    DynamicClient::of(&failing.namespace).wait_until_gone(garbage).await
}

/// Fails once a request comes sooner after this call, or after the request before, than the least
/// wait.
async fn fail_if_sooner(requests: &RequestCounter) -> Result<()> {
    loop {
        let last = Instant::now();
        requests.wait_for_matched(requests.matched() + 1, LIMIT).await?;
        ensure!(last.elapsed() >= LEAST_WAIT, "the wait was {:?}", last.elapsed());
    }
}

/// The end of an outage ends the waits that it has caused: those of informers and of failed keys,
/// including the collector's. It does not end the waits after rejections and after responses with
/// `Retry-After`. The recovery takes hardly more lists and watches than a start.
#[tokio::test]
async fn the_end_of_an_outage_ends_the_waits_that_it_has_caused() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let (_daemon, requests) = start_daemon(&plane, &proxy).await?;
    let failing = NamespaceFixture::new(&plane, "failing").await?;
    let rejected = NamespaceFixture::new(&plane, "rejected").await?;
    let throttled = NamespaceFixture::new(&plane, "throttled").await?;

    let failure = proxy.respond(creations(&failing), CannedResponse::unavailable(), Repeat::UntilHealed);
    let (garbage, undeleted) = create_garbage(&proxy, &DynamicClient::of(&failing.namespace)).await?;
    let rejection = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "forbidden (fault proxy)");
    // This includes the report in the status, after which each attempt would begin with a read.
    proxy.respond(
        Matcher::any().namespace(rejected.name()),
        rejection,
        Repeat::UntilHealed,
    );
    let rejections = proxy.count(creations(&rejected));
    let throttling = CannedResponse::too_many_requests(RETRY_AFTER);
    let throttlings = proxy.respond(creations(&throttled), throttling, Repeat::UntilHealed);
    for name in NAMES {
        failing.create_foo(name, name, 1).await?;
    }
    rejected.create_foo("web", "web", 1).await?;
    throttled.create_foo("web", "web", 1).await?;
    // The watch delivers this Foo last.
    throttlings.wait_for_applied(1, LIMIT).await?;
    let outage = proxy.respond(Matcher::any(), CannedResponse::unavailable(), Repeat::UntilHealed);
    proxy.reset();

    rejections.wait_for_matched(REJECTIONS, LIMIT).await?;
    let recovery = async {
        throttlings.wait_for_applied(throttlings.applied() + 1, LIMIT).await?;
        let sent = count_lists_and_watches(&proxy);
        let faults = [failure, undeleted, outage];
        tokio::select! {
            recovered = recover(&proxy, &faults, &failing, &garbage) => recovered?,
            sooner = fail_if_sooner(&throttlings) => sooner.context("a throttled request")?,
        }
        // After this, all other waits have ended too.
        throttlings.wait_for_applied(throttlings.applied() + 1, LIMIT).await?;
        anyhow::Ok(sent())
    };
    let sent = tokio::select! {
        sent = recovery => sent?,
        sooner = fail_if_sooner(&rejections) => return sooner.context("a rejected request"),
    };
    ensure!(
        2 * sent <= 3 * requests,
        "{sent} lists and watches after the outage, {requests} at the start"
    );
    Ok(())
}

/// The watches resume at versions in the future and stay silent. Without the collector, only the
/// Lease shows that versions have decreased.
#[tokio::test]
async fn changes_after_a_restore_of_etcd_are_observed_without_the_collector() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let flags = [&["--install-crds", "--controllers=foo"], &HELD_LEASE[..]].concat();
    let daemon = Daemon::start(&plane, "restored", &flags).await?;
    daemon.wait_for_line(&["starting workers", "foo-controller"]).await?;
    let fixture = NamespaceFixture::new(&plane, "restored").await?;
    fixture.ready_foo("web", 1).await?;
    back_up(&plane).await?;
    let dynamic_client = DynamicClient::of(&fixture.namespace);
    let unrelated = dynamic_client.create(config_map("unrelated")).await?;
    increase_versions(&dynamic_client, &unrelated).await?;
    // Every watch has the new versions.
    fixture.ready_foo("later", 1).await?;
    restore(&plane).await?;
    fixture.merge_foo("web", json!({"spec": {"replicas": 3}})).await?;
    fixture
        .wait_for_deployment("web", "3 replicas", |found| replicas(found) == Some(3))
        .await?;
    daemon
        .wait_for_line(&["relisting all informers", "resourceVersion of the Lease decreased"])
        .await?;
    Ok(())
}
