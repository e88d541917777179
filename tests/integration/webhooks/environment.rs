//! A control plane whose apiserver calls the webhooks of one daemon.

use anyhow::Result;
use portreeve_testing::{Namespace, PooledPlane};
use tokio::sync::OnceCell;

use crate::fixtures::{
    definitions::plane_with_definitions,
    webhooks::{CONTROLLERS, WebhookDaemon, configurations, install},
};

/// A control plane, and a daemon that serves its webhooks.
pub(super) struct Environment {
    pub(super) plane: PooledPlane,
    pub(super) daemon: WebhookDaemon,
}

impl Environment {
    /// Starts the daemon on a control plane with the CRDs. It has these additional flags.
    pub(super) async fn start(plane: PooledPlane, flags: &[&str]) -> Result<Self> {
        let client = plane.client()?;
        let flags: Vec<_> = [CONTROLLERS].iter().chain(flags).copied().collect();
        let daemon = WebhookDaemon::start(&plane, "webhooks", &flags).await?;
        let configurations = configurations(daemon.webhooks.port, Some(&plane.authority().pem()))?;
        install(&client, &configurations).await?;
        Ok(Self { plane, daemon })
    }
}

/// Returns the environment that tests share which do not disturb it.
pub(super) async fn shared() -> Result<&'static Environment> {
    static SHARED: OnceCell<Environment> = OnceCell::const_new();
    let start = async || Environment::start(plane_with_definitions().await?, &[]).await;
    SHARED.get_or_try_init(start).await
}

/// Creates a namespace in the shared environment.
pub(super) async fn fixture(prefix: &str) -> Result<Namespace> {
    shared().await?.plane.namespace(prefix).await
}
