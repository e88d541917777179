//! Deletions that no watch event reports.

use anyhow::Result;

use super::{environment::CollectorEnvironment, ownership_tree::OwnershipTree};
use crate::{faults::servers::ServerFault, fixtures::dynamic_client::Policy};

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
