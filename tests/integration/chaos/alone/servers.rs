//! Faults of the servers, each alone, in the middle of a wave of every controller's work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat};

use crate::{
    chaos::{credentials::is_forbidden, scenario::Scenario},
    faults::servers::ServerFault,
    fixtures::LIMIT,
    registry::{self, informers},
};

/// The delay of writes, so that faults occur in the middle of a wave.
const DELAY: Duration = Duration::from_millis(200);

/// The number of 429 responses in a storm. The client retries each request after one second at the
/// earliest.
const STORM: u64 = 10;

/// Begins a wave, and returns when the first writes of the daemon are done.
async fn begin(scenario: &mut Scenario) -> Result<()> {
    let writes = scenario
        .proxy
        .fault(Matcher::writes(), Fault::DelayRequest(DELAY), Repeat::UntilHealed);
    scenario.work.wave().await?;
    writes.wait_for_applied(3, LIMIT).await
}

/// An apiserver that has just started rejects every request until it has read the roles, so
/// `/readyz` reports forbidden watches.
#[tokio::test]
async fn no_work_is_lost_when_servers_are_killed() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    begin(&mut scenario).await?;
    scenario.plane.apiserver().kill().await?;
    // An outage of the apiserver must not fail liveness.
    let (status, text) = scenario.daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");
    scenario.plane.apiserver().start().await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;

    for fault in [ServerFault::EtcdKilled, ServerFault::BothKilled] {
        begin(&mut scenario).await?;
        fault.inject(&scenario.plane).await?;
        scenario.proxy.heal();
        let verified = scenario.verify_with_failing_checks(is_forbidden).await;
        verified.with_context(|| format!("{fault:?}"))?;
    }
    scenario.finish().await
}

#[tokio::test]
async fn the_daemon_recovers_from_a_hanging_apiserver() -> Result<()> {
    // The timeout is shorter than two hanging calls, but each call counts as progress.
    let mut scenario = Scenario::start_with(&["--controller-stuck-timeout=45s"], async |_| Ok(())).await?;
    begin(&mut scenario).await?;
    scenario.plane.apiserver().pause()?;
    // A hanging request ends with its timeout. Its worker then sends the next request, which hangs
    // too.
    for _ in 0..2 {
        scenario
            .daemon
            .wait_for_more(
                "rest_client_requests_total",
                &[r#"code="<error>""#, r#"method="GET""#],
                LIMIT,
            )
            .await?;
    }
    let (status, text) = scenario.daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");
    scenario.plane.apiserver().resume()?;
    scenario.proxy.heal();
    scenario
        .verify_with_failing_checks(|line| line.contains("stale"))
        .await?;
    scenario.finish().await
}

/// Tests a 410 of the real apiserver: etcd has compacted the versions from which the watches would
/// resume. The apiserver responds with 200 and reports the error as a watch event.
#[tokio::test]
async fn informers_relist_after_a_compaction_during_a_disconnect() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    // Dependents that are orphaned before the collector has observed them may be collected, as by
    // kube-controller-manager. The wave deletes owners of the previous wave, which the collector
    // observed before the disconnect. Count only lists of all namespaces, as informers send them; a
    // dependent scan lists one.
    let relists: Vec<_> = informers(Matcher::lists)
        .into_iter()
        .map(|(resource, lists)| (resource, scenario.proxy.count(lists)))
        .collect();
    scenario.proxy.cut();
    scenario.work.wave().await?;
    ServerFault::Compaction.inject(&scenario.plane).await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;
    for (resource, lists) in &relists {
        let listed = lists.wait_for_matched(1, LIMIT).await;
        listed.with_context(|| format!("{resource} was not listed again after the compaction"))?;
    }
    scenario.finish().await
}

#[tokio::test]
async fn work_completes_after_a_storm_of_429() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    let throttle = |requests: Matcher| {
        let rejection = CannedResponse::too_many_requests(1);
        scenario.proxy.respond(requests, rejection, Repeat::UntilHealed)
    };
    // Throttle the writes of each controller first: without working watches, the controllers would
    // write nothing.
    let storms: Vec<_> = registry::names()
        .map(|name| throttle(Matcher::writes().user_agent(name)))
        .collect();
    scenario.work.wave().await?;
    for storm in &storms {
        storm.wait_for_applied(STORM, LIMIT).await?;
    }
    let rest = throttle(Matcher::any());
    scenario.proxy.reset();
    rest.wait_for_applied(STORM, LIMIT).await?;
    scenario.proxy.heal();
    scenario.verify().await?;
    scenario.finish().await
}

#[tokio::test]
async fn work_completes_with_a_slow_apiserver_that_throttles_some_requests() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    scenario.proxy.slow(Duration::from_millis(250));
    let throttled = scenario.proxy.respond(
        Matcher::any(),
        CannedResponse::too_many_requests(1),
        Repeat::Chance { percent: 20, seed: 7 },
    );
    scenario.proxy.reset();
    scenario.work.wave().await?;
    throttled.wait_for_applied(20, LIMIT).await?;
    scenario.work.wait_until_done().await?;
    // The collector has to list each resource first, so garbage collection is verified later.
    scenario.proxy.heal();
    scenario.verify().await?;
    scenario.finish().await
}
