//! A control plane, and the controllers of `portreeve testenv` on it.

use std::path::Path;

use anyhow::{Result, ensure};
use kube::api::DynamicObject;
use portreeve_testing::{ControlPlane, PooledPlane, Testenv};
use tokio::sync::OnceCell;

use crate::fixtures::{daemon::PROGRAM, dynamic_client::DynamicClient};

/// Returns a client for a new namespace, and the controllers that the tests share.
pub(super) async fn client_and_testenv(prefix: &str) -> Result<(DynamicClient, &'static Testenv)> {
    static SHARED: OnceCell<(PooledPlane, Testenv)> = OnceCell::const_new();
    let shared = SHARED.get_or_try_init(|| async {
        let plane = ControlPlane::pooled().await?;
        let testenv = start(plane.kubeconfig(), &[]).await?;
        anyhow::Ok((plane, testenv))
    });
    let (plane, testenv) = shared.await?;
    Ok((DynamicClient::new(plane, prefix).await?, testenv))
}

/// Starts the executable under test.
pub(super) async fn start(kubeconfig: &Path, flags: &[&str]) -> Result<Testenv> {
    Testenv::start_program(Path::new(PROGRAM), kubeconfig, flags).await
}

/// Checks that these objects are gone, without waiting.
pub(super) async fn ensure_gone(client: &DynamicClient, objects: &[&DynamicObject]) -> Result<()> {
    for object in objects {
        let found = client.find(object).await?;
        ensure!(found.is_none(), "{found:?} is not gone");
    }
    Ok(())
}
