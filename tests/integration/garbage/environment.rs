//! A cluster with an ownership tree, a fault proxy, and a collector behind the proxy.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, FaultProxy, Matcher, PooledPlane, Repeat, RequestCounter};

use super::{
    collector::{CONTROLLER, Collector},
    ownership_tree::OwnershipTree,
};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    rbac::restricted_kubeconfig,
};

/// The delay of the response to each of the collector's deletions, so that a cascade takes a second
/// or two.
const DELETION_DELAY: Duration = Duration::from_millis(200);
/// The number of deletions after which a cascade is running and far from its end.
const RUNNING_CASCADE: u64 = 20;
/// The policies of the doomed owners.
const POLICIES: [Policy; 4] = [
    Policy::Background,
    Policy::Background,
    Policy::Foreground,
    Policy::Orphan,
];

pub(super) struct CollectorEnvironment {
    // The fields are dropped in this order.
    pub(super) collector: Collector,
    pub(super) cluster: CollectorCluster,
}

/// The environment without its collector.
pub(super) struct CollectorCluster {
    pub(super) proxy: FaultProxy,
    pub(super) deletions: RequestCounter,
    pub(super) dynamic_client: DynamicClient,
    pub(super) ownership_tree: OwnershipTree,
    /// A kubeconfig through the proxy, for an account with exactly the permissions that
    /// `portreeve rbac` prints.
    pub(super) kubeconfig: PathBuf,
    pub(super) plane: PooledPlane,
}

impl CollectorEnvironment {
    /// Waits for the expected state of the cluster, and checks that no request was
    /// forbidden.
    pub(super) async fn verify(&self) -> Result<()> {
        let (cluster, collector) = (&self.cluster, &self.collector);
        let expected_objects = &cluster.ownership_tree.expected_objects;
        collector.verify(expected_objects, &cluster.dynamic_client).await?;
        collector.ensure_nothing_forbidden().await
    }
}

impl CollectorCluster {
    pub(super) async fn new(name: &str) -> Result<Self> {
        Self::on(ControlPlane::pooled().await?, name).await
    }

    /// Creates the cluster on a control plane.
    pub(super) async fn on(plane: PooledPlane, name: &str) -> Result<Self> {
        let dynamic_client = DynamicClient::new(&plane, name).await?;
        let ownership_tree = OwnershipTree::build(&dynamic_client, "first", &POLICIES).await?;
        let proxy = FaultProxy::start(&plane).await?;
        let deletions = Matcher::any().method("DELETE");
        let deletions = proxy.delay_responses(deletions, DELETION_DELAY, Repeat::UntilHealed);
        let kubeconfig = proxy.kubeconfig(&restricted_kubeconfig(&plane, &[CONTROLLER]).await?, name)?;
        Ok(Self {
            proxy,
            deletions,
            dynamic_client,
            ownership_tree,
            kubeconfig,
            plane,
        })
    }

    /// Deletes the doomed owners, and returns the number of deletions that the collector has sent,
    /// while the cascade is still running.
    pub(super) async fn delete_owners(&mut self) -> Result<u64> {
        let before = self.deletions.matched();
        self.ownership_tree.delete_owners(&self.dynamic_client).await?;
        self.deletions.wait_for_matched(before + RUNNING_CASCADE, LIMIT).await?;
        Ok(self.deletions.matched())
    }

    /// Returns an error when the collector has sent no more than `before` deletions. In that case
    /// the cascade had ended before the fault.
    pub(super) fn ensure_more_deletions_than(&self, before: u64) -> Result<()> {
        let now = self.deletions.matched();
        ensure!(now > before, "the cascade had ended before the fault");
        Ok(())
    }
}
