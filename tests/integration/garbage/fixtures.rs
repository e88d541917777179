//! A cluster with an ownership tree, a proxy that has faults, and a collector behind it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, FaultProxy, Matcher, Repeat, RequestCounter};

use super::{
    collector::{Collector, bound_kubeconfig},
    dynamic_client::{DynamicClient, Policy},
    ownership_tree::OwnershipTree,
};
use crate::support::LIMIT;

/// How long the answer to each of the collector's deletions is under way, so that a cascade takes a second or two.
const LAG: Duration = Duration::from_millis(200);
/// After so many of its deletions a cascade is under way, and far from its end.
const UNDER_WAY: u64 = 20;
/// One of each that differs.
const POLICIES: [Policy; 4] = [
    Policy::Background,
    Policy::Background,
    Policy::Foreground,
    Policy::Orphan,
];

pub(super) struct CollectorEnvironment {
    // Dropped in this order.
    pub(super) collector: Collector,
    pub(super) cluster: CollectorCluster,
}

/// The environment without its collector.
pub(super) struct CollectorCluster {
    pub(super) proxy: FaultProxy,
    pub(super) deletions: RequestCounter,
    pub(super) dynamic_client: DynamicClient,
    pub(super) ownership_tree: OwnershipTree,
    /// Of an account that has exactly the rights that `portreeve rbac` prints, through the proxy.
    pub(super) kubeconfig: PathBuf,
    pub(super) plane: ControlPlane,
}

impl CollectorEnvironment {
    /// A collector that has seen everything, and nothing to collect.
    pub(super) async fn start(name: &str) -> Result<Self> {
        let cluster = CollectorCluster::new(name).await?;
        let collector = cluster.collector().await?;
        Ok(Self { collector, cluster })
    }

    /// Waits until all is as it must be, and nothing was refused for want of a right.
    pub(super) async fn verify(&self) -> Result<()> {
        self.verify_after_restart().await?;
        self.collector.ensure_nothing_forbidden().await
    }

    /// The same for an apiserver that was restarted: until it has read the roles, it refuses what they allow.
    pub(super) async fn verify_after_restart(&self) -> Result<()> {
        let CollectorCluster {
            ownership_tree,
            dynamic_client,
            ..
        } = &self.cluster;
        let judged = ownership_tree.expected_objects.verify(dynamic_client).await;
        judged.with_context(|| format!("the collector was wrong{}", self.collector.daemon.process.log_tail()))
    }
}

impl CollectorCluster {
    pub(super) async fn new(name: &str) -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let dynamic_client = DynamicClient::new(&plane, name).await?;
        let ownership_tree = OwnershipTree::build(&dynamic_client, "first", &POLICIES).await?;
        let proxy = FaultProxy::start(&plane).await?;
        let deletions = slow_down(&proxy);
        let kubeconfig = proxy.kubeconfig(&bound_kubeconfig(&plane).await?, name)?;
        Ok(Self {
            proxy,
            deletions,
            dynamic_client,
            ownership_tree,
            kubeconfig,
            plane,
        })
    }

    /// Loses what is under way, and heals at once all but the slowness of the collector's deletions.
    pub(super) fn cut(&self) {
        self.proxy.cut();
        self.proxy.heal();
        slow_down(&self.proxy);
    }

    /// Starts a collector that is alone, and waits until it has seen everything.
    pub(super) async fn collector(&self) -> Result<Collector> {
        let collector = Collector::start_as(&self.plane, &self.kubeconfig, "collector", &[]).await?;
        collector.wait_until_synced().await?;
        Ok(collector)
    }

    /// Deletes what is doomed, and returns while the collector is at it. How many deletions it has sent by then is returned.
    pub(super) async fn delete_owners(&mut self) -> Result<u64> {
        let before = self.deletions.matched();
        self.ownership_tree.delete_owners(&self.dynamic_client).await?;
        self.deletions.wait_for_matched(before + UNDER_WAY, LIMIT).await?;
        Ok(self.deletions.matched())
    }

    /// Fails when the collector has sent no deletion since there were so many: then what happened since was no fault in mid-cascade.
    pub(super) fn ensure_more_deletions_than(&self, before: u64) -> Result<()> {
        let now = self.deletions.matched();
        println!("{before} deletions before the fault, {} after it", now - before);
        ensure!(now > before, "the cascade was over already");
        Ok(())
    }
}

/// Makes a cascade take a second or two.
fn slow_down(proxy: &FaultProxy) -> RequestCounter {
    proxy.delay_responses(Matcher::any().method("DELETE"), LAG, Repeat::UntilHealed)
}
