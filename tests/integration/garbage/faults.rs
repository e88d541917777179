//! Servers and lines that fail in mid-cascade. At the end of each test nothing is left that should be gone, and nothing is gone that should
//! be left.

use anyhow::Result;
use portreeve_testing::{Canned, Matcher, Times};

use super::{estate::Estate, stage::Stage, yard::Policy};
use crate::support::LIMIT;

#[tokio::test]
async fn an_apiserver_that_is_killed_in_mid_cascade_loses_nothing() -> Result<()> {
    let mut stage = Stage::start("apiserver").await?;
    let before = stage.scenery.bring_down().await?;
    stage.scenery.plane.apiserver().kill().await?;
    stage.scenery.plane.apiserver().start().await?;
    stage.judge_after_a_restart().await?;
    stage.scenery.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn an_etcd_that_is_killed_in_mid_cascade_loses_nothing() -> Result<()> {
    let mut stage = Stage::start("etcd").await?;
    let before = stage.scenery.bring_down().await?;
    stage.scenery.plane.etcd().kill().await?;
    stage.scenery.plane.etcd().start().await?;
    stage.judge().await?;
    stage.scenery.ensure_more_deletions_than(before)
}

/// The collector hears of no deletion, and cannot hear of it later: it has to find out what is not there any more.
#[tokio::test]
async fn what_was_deleted_before_a_compaction_is_found_out_by_listing() -> Result<()> {
    let mut stage = Stage::start("compaction").await?;
    let scenery = &mut stage.scenery;
    scenery.proxy.cut();
    scenery.estate.bring_down(&scenery.yard).await?;
    // Unseen when they are orphaned, dependents may be collected, by the original as well. So nobody orphans here.
    let unheard_of = [Policy::Background, Policy::Foreground];
    let mut second = Estate::build(&scenery.yard, "second", &unheard_of).await?;
    second.bring_down(&scenery.yard).await?;
    scenery.plane.compact().await?;
    // Or else it answers from its watch cache.
    scenery.plane.apiserver().restart().await?;
    scenery.proxy.heal();
    stage.judge_after_a_restart().await?;
    second.ledger.judge(&stage.scenery.yard).await
}

#[tokio::test]
async fn lines_that_are_cut_again_and_again_lose_nothing() -> Result<()> {
    let mut stage = Stage::start("cuts").await?;
    let scenery = &mut stage.scenery;
    let reconnections = scenery.proxy.count(Matcher::watches());
    let before = scenery.bring_down().await?;
    for _ in 0..3 {
        // Deletions and watches that are under way are lost with their answers.
        let watches = reconnections.seen();
        scenery.cut();
        reconnections.until_seen(watches + 20, LIMIT).await?;
    }
    stage.judge().await?;
    stage.scenery.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn storms_of_conflicts_and_of_refusals_to_serve_are_weathered() -> Result<()> {
    let mut stage = Stage::start("storms").await?;
    let scenery = &mut stage.scenery;
    // No deletion is slow here: of two rules the older would act alone.
    scenery.proxy.heal();
    let writes = || Matcher::any().method("DELETE").method("PATCH").method("PUT");
    let conflicts = scenery.proxy.answer(writes(), Canned::conflict(), Times::Next(60));
    let refusals = scenery
        .proxy
        .answer(writes(), Canned::too_many_requests(1), Times::Next(60));
    let overload = scenery.proxy.answer(writes(), Canned::unavailable(), Times::Next(30));
    scenery.estate.bring_down(&scenery.yard).await?;
    conflicts.until_answered(60, LIMIT).await?;
    refusals.until_answered(60, LIMIT).await?;
    overload.until_answered(30, LIMIT).await?;
    stage.judge().await
}
