//! The servers fail, and the clock: each alone, in the middle of a wave of every controller's work.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_testing::{Canned, Fault, Matcher, Times};

use super::{course::Course, credentials::is_forbidden};
use crate::support::SETTLED;

/// How late writes are, so that what happens meanwhile happens in the middle.
const LATE: Duration = Duration::from_millis(200);

/// Begins a wave, and returns when some of what it asks for is done.
async fn begin(course: &mut Course) -> Result<()> {
    let writes = course
        .proxy
        .fault(Matcher::writes(), Fault::Delay(LATE), Times::UntilHealed);
    course.work.wave().await?;
    writes.until_answered(3, SETTLED).await
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
    let mut course = Course::start_with(&["--controller-stuck-timeout=45s"], |_| Ok(())).await?;
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
    let anew = [
        "/api/v1/configmaps",
        "/api/v1/secrets",
        "/apis/batch/v1/jobs",
        "/apis/apps/v1/deployments",
    ];
    let anew = anew.map(|path| course.proxy.count(Matcher::lists().path_prefix(path)));
    course.proxy.cut();
    course.work.wave().await?;
    course.plane.compact().await?;
    // Or else it answers from its watch cache.
    course.plane.apiserver().restart().await?;
    course.proxy.heal();
    course.judge_red(is_forbidden).await?;
    for lists in &anew {
        ensure!(lists.seen() > 0, "one was not listed: the past was not forgotten");
    }
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
    // It is done under it, and not only after it. Collecting has a list of each resource to wait for, and is judged after it.
    course.work.settled().await?;
    course.proxy.heal();
    course.judge().await?;
    course.finish().await
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
