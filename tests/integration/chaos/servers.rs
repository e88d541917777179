//! The servers fail, and the clock: each alone, in the middle of a wave of every controller's work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{Canned, Fault, Matcher, Times};

use super::{
    course::Course,
    credentials::is_forbidden,
    weather::{CONTROLLERS, informers},
};
use crate::support::SETTLED;

/// How late writes are, so that what happens meanwhile happens in the middle.
const LATE: Duration = Duration::from_millis(200);

/// So many refusals are a storm. Each is tried again a second later at the soonest.
const STORM: u64 = 10;

/// Begins a wave, and returns when some of what it asks for is done.
async fn begin(course: &mut Course) -> Result<()> {
    let writes = course
        .proxy
        .fault(Matcher::writes(), Fault::Delay(LATE), Times::UntilHealed);
    course.work.wave().await?;
    writes.until_answered(3, SETTLED).await
}

/// What was asked for is done under what the proxy does, and not only after it. Collecting has a list of each resource to wait for, and is judged
/// after it.
async fn done_under_it(course: Course) -> Result<()> {
    course.work.settled().await?;
    course.proxy.heal();
    course.judge().await?;
    course.finish().await
}

/// An apiserver that has just been started allows nothing until it has read who may do what, and `/readyz` says so.
#[tokio::test]
async fn servers_that_are_killed_in_mid_work_lose_nothing() -> Result<()> {
    let mut course = Course::start().await?;
    begin(&mut course).await?;
    course.plane.apiserver().kill().await?;
    // Nothing of it is the daemon's fault.
    let (status, text) = course.daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");
    course.plane.apiserver().start().await?;
    course.proxy.heal();
    course.judge_red(is_forbidden).await?;

    begin(&mut course).await?;
    course.plane.etcd().kill().await?;
    course.plane.etcd().start().await?;
    course.proxy.heal();
    course.judge_red(is_forbidden).await?;

    begin(&mut course).await?;
    course.plane.etcd().kill().await?;
    course.plane.apiserver().kill().await?;
    course.plane.etcd().start().await?;
    course.plane.apiserver().start().await?;
    course.proxy.heal();
    course.judge_red(is_forbidden).await?;
    course.finish().await
}

#[tokio::test]
async fn a_daemon_that_is_restarted_in_mid_work_goes_on() -> Result<()> {
    let mut course = Course::start().await?;
    for _ in 0..3 {
        begin(&mut course).await?;
        course.proxy.heal();
        course = course.restart().await?;
        course.judge().await?;
    }
    course.finish().await
}

#[tokio::test]
async fn an_apiserver_that_hangs_is_waited_for() -> Result<()> {
    // Less than two calls that hang take: each of them is a step.
    let mut course = Course::start_with(&["--controller-stuck-timeout=45s"], async |_| Ok(())).await?;
    begin(&mut course).await?;
    course.plane.apiserver().pause()?;
    // What was asked hangs until it is given up, which frees the workers for what hangs next.
    for _ in 0..2 {
        course
            .daemon
            .wait_for_more(
                "rest_client_requests_total",
                &[r#"code="<error>""#, r#"method="GET""#],
                SETTLED,
            )
            .await?;
    }
    let (status, text) = course.daemon.admin.get("/livez").await?;
    ensure!(status == StatusCode::OK, "{text}");
    course.plane.apiserver().resume()?;
    course.proxy.heal();
    course.judge_red(|line| line.contains("stale")).await?;
    course.finish().await
}

/// The real 410: what the watches want to go on with is forgotten. The apiserver says so in an event of a watch that it has answered with 200.
#[tokio::test]
async fn a_compaction_that_was_slept_through_is_made_up_for_by_lists() -> Result<()> {
    let mut course = Course::start().await?;
    // Whoever is orphaned unseen may be collected, by the original as well: so all is seen before, and the line is cut after it.
    // A census asks for one namespace. Who begins anew asks for all.
    let anew: Vec<_> = informers(Matcher::lists)
        .map(|(resource, lists)| (resource, course.proxy.count(lists)))
        .collect();
    course.proxy.cut();
    course.work.wave().await?;
    course.plane.compact().await?;
    // Or else it answers from its watch cache.
    course.plane.apiserver().restart().await?;
    course.proxy.heal();
    course.judge_red(is_forbidden).await?;
    for (resource, lists) in &anew {
        let listed = lists.until_seen(1, SETTLED).await;
        listed.with_context(|| format!("{resource}: the past was not forgotten"))?;
    }
    course.finish().await
}

#[tokio::test]
async fn an_apiserver_that_serves_slowly_is_worked_with() -> Result<()> {
    let mut course = Course::start().await?;
    course.proxy.slow(Duration::from_millis(500));
    course.proxy.reset();
    course.work.wave().await?;
    done_under_it(course).await
}

#[tokio::test]
async fn a_storm_of_429_is_waited_out() -> Result<()> {
    let mut course = Course::start().await?;
    let all = |requests: Matcher| {
        let refusal = Canned::too_many_requests(1);
        course.proxy.answer(requests, refusal, Times::UntilHealed)
    };
    // Writes of each, which nobody would send if there was no watch to hear by.
    let storms = CONTROLLERS.map(|name| all(Matcher::writes().user_agent(name)));
    course.work.wave().await?;
    for storm in &storms {
        storm.until_answered(STORM, SETTLED).await?;
    }
    let rest = all(Matcher::any());
    course.proxy.reset();
    rest.until_answered(STORM, SETTLED).await?;
    course.proxy.heal();
    course.judge().await?;
    course.finish().await
}

#[tokio::test]
async fn an_apiserver_that_serves_slowly_and_refuses_some_is_worked_with() -> Result<()> {
    let mut course = Course::start().await?;
    course.proxy.slow(Duration::from_millis(250));
    let refused = course.proxy.answer(
        Matcher::any(),
        Canned::too_many_requests(1),
        Times::Chance { percent: 20, seed: 7 },
    );
    course.proxy.reset();
    course.work.wave().await?;
    refused.until_answered(20, SETTLED).await?;
    done_under_it(course).await
}

#[tokio::test]
async fn a_clock_that_is_set_back_and_forth_starts_nothing_twice() -> Result<()> {
    let mut course = Course::start().await?;
    for _ in 0..3 {
        course.work.wave().await?;
        course.turn_back_and_on().await?;
        course.judge().await?;
    }
    course.finish().await
}
