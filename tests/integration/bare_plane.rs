//! A control plane without nodes, and a daemon with the small controllers that Kubernetes expects
//! there. Their tests share both and use a namespace each.
//!
//! The daemon has exactly the permissions that `portreeve rbac` prints. Unlike on other control
//! planes of the tests, Pods need a ServiceAccount.

use anyhow::Result;
use portreeve_testing::{ControlPlane, PooledPlane};
use tokio::sync::OnceCell;

use crate::fixtures::{daemon::Daemon, dynamic_client::DynamicClient, rbac::restricted_kubeconfig};

const CONTROLLERS: &str =
    "--controllers=clusterrole-aggregation,pv-protection,pvc-protection,root-ca-cert-publisher,serviceaccount";

/// The control plane and the daemon.
pub(crate) struct BarePlane {
    _daemon: Daemon,
    pub(crate) plane: PooledPlane,
}

/// Returns the control plane and the daemon, once it is ready.
pub(crate) async fn bare_plane() -> Result<&'static BarePlane> {
    static PLANE: OnceCell<BarePlane> = OnceCell::const_new();
    PLANE.get_or_try_init(start).await
}

/// Creates a namespace on the control plane.
pub(crate) async fn tenant(prefix: &str) -> Result<DynamicClient> {
    DynamicClient::new(&bare_plane().await?.plane, prefix).await
}

async fn start() -> Result<BarePlane> {
    let options = ControlPlane::builder().apiserver_arg("--disable-admission-plugins=");
    let plane = options.pooled().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "bare-plane", &[CONTROLLERS]).await?;
    daemon.admin.wait_until_ready().await?;
    Ok(BarePlane { _daemon: daemon, plane })
}
