//! Tests of faults of servers and connections in the middle of a cascade. At the end of each test,
//! exactly the expected objects remain.

use anyhow::Result;
use portreeve_testing::{CannedResponse, Matcher, Repeat};

use super::{environment::CollectorEnvironment, ownership_tree::OwnershipTree};
use crate::{
    faults::servers::ServerFault,
    fixtures::{LIMIT, dynamic_client::Policy},
};

#[tokio::test]
async fn a_cascade_completes_after_the_apiserver_is_killed() -> Result<()> {
    let mut environment = CollectorEnvironment::start("apiserver").await?;
    let before = environment.cluster.delete_owners().await?;
    ServerFault::ApiserverKilled.inject(&environment.cluster.plane).await?;
    environment.verify_after_restart().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn a_cascade_completes_after_etcd_is_killed() -> Result<()> {
    let mut environment = CollectorEnvironment::start("etcd").await?;
    let before = environment.cluster.delete_owners().await?;
    ServerFault::EtcdKilled.inject(&environment.cluster.plane).await?;
    environment.verify().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

/// The collector never receives the watch events of the deletions, so it has to detect the absent
/// objects by listing.
#[tokio::test]
async fn deletions_before_a_compaction_are_detected_by_listing() -> Result<()> {
    let mut environment = CollectorEnvironment::start("compaction").await?;
    let cluster = &mut environment.cluster;
    cluster.proxy.cut();
    cluster.ownership_tree.delete_owners(&cluster.dynamic_client).await?;
    // Like kube-controller-manager, the collector may collect dependents that are orphaned before
    // it observes them. So this test orphans none.
    let not_orphaning = [Policy::Background, Policy::Foreground];
    let mut second = OwnershipTree::build(&cluster.dynamic_client, "second", &not_orphaning).await?;
    second.delete_owners(&cluster.dynamic_client).await?;
    ServerFault::Compaction.inject(&cluster.plane).await?;
    cluster.proxy.heal();
    environment.verify_after_restart().await?;
    second
        .expected_objects
        .verify(&environment.cluster.dynamic_client)
        .await
}

#[tokio::test]
async fn a_cascade_completes_although_connections_are_cut_repeatedly() -> Result<()> {
    let mut environment = CollectorEnvironment::start("cuts").await?;
    let cluster = &mut environment.cluster;
    let reconnections = cluster.proxy.count(Matcher::watches());
    let before = cluster.delete_owners().await?;
    for _ in 0..3 {
        // The cut drops the responses of deletions and watches in flight.
        let watches = reconnections.matched();
        cluster.cut();
        reconnections.wait_for_matched(watches + 20, LIMIT).await?;
    }
    environment.verify().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn a_cascade_completes_after_storms_of_conflicts_and_overload_responses() -> Result<()> {
    let mut environment = CollectorEnvironment::start("storms").await?;
    let cluster = &mut environment.cluster;
    // Remove the delay of deletions, because of two matching rules the proxy applies only the
    // older.
    cluster.proxy.heal();
    let writes = || Matcher::any().method("DELETE").method("PATCH").method("PUT");
    let conflicts = cluster
        .proxy
        .respond(writes(), CannedResponse::conflict(), Repeat::Next(60));
    let throttled = cluster
        .proxy
        .respond(writes(), CannedResponse::too_many_requests(1), Repeat::Next(60));
    let overload = cluster
        .proxy
        .respond(writes(), CannedResponse::unavailable(), Repeat::Next(30));
    cluster.ownership_tree.delete_owners(&cluster.dynamic_client).await?;
    conflicts.wait_for_applied(60, LIMIT).await?;
    throttled.wait_for_applied(60, LIMIT).await?;
    overload.wait_for_applied(30, LIMIT).await?;
    environment.verify().await
}
