//! The cluster and the collector that are shared by all tests that do not disturb them.

use anyhow::Result;
use portreeve_testing::{ControlPlane, PooledPlane};
use tokio::sync::OnceCell;

use super::collector::{CONTROLLER, Collector};
use crate::fixtures::{dynamic_client::DynamicClient, rbac::restricted_kubeconfig};

/// Returns a client for a new namespace, and the shared collector, which has exactly the
/// permissions that `portreeve rbac` prints.
pub(super) async fn client_and_collector(prefix: &str) -> Result<(DynamicClient, &'static Collector)> {
    let (plane, collector) = plane_and_collector().await?;
    Ok((DynamicClient::new(plane, prefix).await?, collector))
}

/// Returns the shared cluster, for collectors in observe mode.
pub(super) async fn plane() -> Result<&'static ControlPlane> {
    let (plane, _) = plane_and_collector().await?;
    Ok(plane)
}

async fn plane_and_collector() -> Result<&'static (PooledPlane, Collector)> {
    static SHARED: OnceCell<(PooledPlane, Collector)> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let plane = ControlPlane::pooled().await?;
            let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLER]).await?;
            let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
            Ok((plane, collector))
        })
        .await
}
