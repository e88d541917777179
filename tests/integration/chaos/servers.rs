//! The servers fail, and the clock: each alone, in the middle of a wave of every controller's work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat};

use super::{
    credentials::is_forbidden,
    faults::{CONTROLLERS, informers},
    scenario::Scenario,
};
use crate::support::SETTLED;

/// How late writes are, so that what happens meanwhile happens in the middle.
const LATE: Duration = Duration::from_millis(200);

/// So many refusals are a storm. Each is tried again a second later at the soonest.
const STORM: u64 = 10;

/// Begins a wave, and returns when some of what it asks for is done.
async fn begin(scenario: &mut Scenario) -> Result<()> {
    let writes = scenario
        .proxy
        .fault(Matcher::writes(), Fault::DelayRequest(LATE), Repeat::UntilHealed);
    scenario.work.wave().await?;
    writes.wait_for_applied(3, SETTLED).await
}

/// What was asked for is done under what the proxy does, and not only after it. Collecting has a list of each resource to wait for, and is judged
/// after it.
async fn done_under_it(scenario: Scenario) -> Result<()> {
    scenario.work.settled().await?;
    scenario.proxy.heal();
    scenario.verify().await?;
    scenario.finish().await
}

/// An apiserver that has just been started allows nothing until it has read who may do what, and `/readyz` says so.
#[tokio::test]
async fn servers_that_are_killed_in_mid_work_lose_nothing() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    begin(&mut scenario).await?;
    scenario.plane.apiserver().kill().await?;
    // Nothing of it is the daemon's fault.
    let (status, text) = scenario.daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");
    scenario.plane.apiserver().start().await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;

    begin(&mut scenario).await?;
    scenario.plane.etcd().kill().await?;
    scenario.plane.etcd().start().await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;

    begin(&mut scenario).await?;
    scenario.plane.etcd().kill().await?;
    scenario.plane.apiserver().kill().await?;
    scenario.plane.etcd().start().await?;
    scenario.plane.apiserver().start().await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;
    scenario.finish().await
}

#[tokio::test]
async fn a_daemon_that_is_restarted_in_mid_work_goes_on() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    for _ in 0..3 {
        begin(&mut scenario).await?;
        scenario.proxy.heal();
        scenario = scenario.restart().await?;
        scenario.verify().await?;
    }
    scenario.finish().await
}

#[tokio::test]
async fn an_apiserver_that_hangs_is_waited_for() -> Result<()> {
    // Less than two calls that hang take: each of them is a step.
    let mut scenario = Scenario::start_with(&["--controller-stuck-timeout=45s"], async |_| Ok(())).await?;
    begin(&mut scenario).await?;
    scenario.plane.apiserver().pause()?;
    // What was asked hangs until it is given up, which frees the workers for what hangs next.
    for _ in 0..2 {
        scenario
            .daemon
            .wait_for_more(
                "rest_client_requests_total",
                &[r#"code="<error>""#, r#"method="GET""#],
                SETTLED,
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

/// The real 410: what the watches want to go on with is forgotten. The apiserver says so in an event of a watch that it has answered with 200.
#[tokio::test]
async fn a_compaction_that_was_slept_through_is_made_up_for_by_lists() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    // Whoever is orphaned unseen may be collected, by the original as well: so all is seen before, and the line is cut after it.
    // A census asks for one namespace. Who begins anew asks for all.
    let anew: Vec<_> = informers(Matcher::lists)
        .map(|(resource, lists)| (resource, scenario.proxy.count(lists)))
        .collect();
    scenario.proxy.cut();
    scenario.work.wave().await?;
    scenario.plane.compact().await?;
    // Or else it answers from its watch cache.
    scenario.plane.apiserver().restart().await?;
    scenario.proxy.heal();
    scenario.verify_with_failing_checks(is_forbidden).await?;
    for (resource, lists) in &anew {
        let listed = lists.wait_for_matched(1, SETTLED).await;
        listed.with_context(|| format!("{resource}: the past was not forgotten"))?;
    }
    scenario.finish().await
}

#[tokio::test]
async fn an_apiserver_that_serves_slowly_is_worked_with() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    scenario.proxy.slow(Duration::from_millis(500));
    scenario.proxy.reset();
    scenario.work.wave().await?;
    done_under_it(scenario).await
}

#[tokio::test]
async fn a_storm_of_429_is_waited_out() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    let all = |requests: Matcher| {
        let refusal = CannedResponse::too_many_requests(1);
        scenario.proxy.respond(requests, refusal, Repeat::UntilHealed)
    };
    // Writes of each, which nobody would send if there was no watch to hear by.
    let storms = CONTROLLERS.map(|name| all(Matcher::writes().user_agent(name)));
    scenario.work.wave().await?;
    for storm in &storms {
        storm.wait_for_applied(STORM, SETTLED).await?;
    }
    let rest = all(Matcher::any());
    scenario.proxy.reset();
    rest.wait_for_applied(STORM, SETTLED).await?;
    scenario.proxy.heal();
    scenario.verify().await?;
    scenario.finish().await
}

#[tokio::test]
async fn an_apiserver_that_serves_slowly_and_refuses_some_is_worked_with() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    scenario.proxy.slow(Duration::from_millis(250));
    let refused = scenario.proxy.respond(
        Matcher::any(),
        CannedResponse::too_many_requests(1),
        Repeat::Chance { percent: 20, seed: 7 },
    );
    scenario.proxy.reset();
    scenario.work.wave().await?;
    refused.wait_for_applied(20, SETTLED).await?;
    done_under_it(scenario).await
}

#[tokio::test]
async fn a_clock_that_is_set_back_and_forth_starts_nothing_twice() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    for _ in 0..3 {
        scenario.work.wave().await?;
        scenario.set_clock_back_and_forth().await?;
        scenario.verify().await?;
    }
    scenario.finish().await
}
