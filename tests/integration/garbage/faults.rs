//! Servers and lines that fail in mid-cascade. At the end of each test nothing is left that should be gone, and nothing is gone that should
//! be left.

use anyhow::Result;
use portreeve_testing::{CannedResponse, Matcher, Repeat};

use super::{dynamic_client::Policy, fixtures::CollectorEnvironment, ownership_tree::OwnershipTree};
use crate::support::LIMIT;

#[tokio::test]
async fn an_apiserver_that_is_killed_in_mid_cascade_loses_nothing() -> Result<()> {
    let mut environment = CollectorEnvironment::start("apiserver").await?;
    let before = environment.cluster.delete_owners().await?;
    environment.cluster.plane.apiserver().kill().await?;
    environment.cluster.plane.apiserver().start().await?;
    environment.verify_after_restart().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn an_etcd_that_is_killed_in_mid_cascade_loses_nothing() -> Result<()> {
    let mut environment = CollectorEnvironment::start("etcd").await?;
    let before = environment.cluster.delete_owners().await?;
    environment.cluster.plane.etcd().kill().await?;
    environment.cluster.plane.etcd().start().await?;
    environment.verify().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

/// The collector hears of no deletion, and cannot hear of it later: it has to find out what is not there any more.
#[tokio::test]
async fn what_was_deleted_before_a_compaction_is_found_out_by_listing() -> Result<()> {
    let mut environment = CollectorEnvironment::start("compaction").await?;
    let cluster = &mut environment.cluster;
    cluster.proxy.cut();
    cluster.ownership_tree.delete_owners(&cluster.dynamic_client).await?;
    // Unseen when they are orphaned, dependents may be collected, by the original as well. So nobody orphans here.
    let unheard_of = [Policy::Background, Policy::Foreground];
    let mut second = OwnershipTree::build(&cluster.dynamic_client, "second", &unheard_of).await?;
    second.delete_owners(&cluster.dynamic_client).await?;
    cluster.plane.compact().await?;
    // Or else it answers from its watch cache.
    cluster.plane.apiserver().restart().await?;
    cluster.proxy.heal();
    environment.verify_after_restart().await?;
    second
        .expected_objects
        .verify(&environment.cluster.dynamic_client)
        .await
}

#[tokio::test]
async fn lines_that_are_cut_again_and_again_lose_nothing() -> Result<()> {
    let mut environment = CollectorEnvironment::start("cuts").await?;
    let cluster = &mut environment.cluster;
    let reconnections = cluster.proxy.count(Matcher::watches());
    let before = cluster.delete_owners().await?;
    for _ in 0..3 {
        // Deletions and watches that are under way are lost with their answers.
        let watches = reconnections.matched();
        cluster.cut();
        reconnections.wait_for_matched(watches + 20, LIMIT).await?;
    }
    environment.verify().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn storms_of_conflicts_and_of_refusals_to_serve_are_weathered() -> Result<()> {
    let mut environment = CollectorEnvironment::start("storms").await?;
    let cluster = &mut environment.cluster;
    // No deletion is slow here: of two rules the older would act alone.
    cluster.proxy.heal();
    let writes = || Matcher::any().method("DELETE").method("PATCH").method("PUT");
    let conflicts = cluster
        .proxy
        .respond(writes(), CannedResponse::conflict(), Repeat::Next(60));
    let refusals = cluster
        .proxy
        .respond(writes(), CannedResponse::too_many_requests(1), Repeat::Next(60));
    let overload = cluster
        .proxy
        .respond(writes(), CannedResponse::unavailable(), Repeat::Next(30));
    cluster.ownership_tree.delete_owners(&cluster.dynamic_client).await?;
    conflicts.wait_for_applied(60, LIMIT).await?;
    refusals.wait_for_applied(60, LIMIT).await?;
    overload.wait_for_applied(30, LIMIT).await?;
    environment.verify().await
}
