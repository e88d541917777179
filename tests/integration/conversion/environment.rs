//! Control planes that store CronTabs in v1 and in v2, each with a daemon that converts them.

use anyhow::{Context, Result};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, PooledPlane};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::fixtures::{
    conversion::{CronTabs, by_daemon, serve_both},
    webhooks::{WebhookDaemon, install_definitions},
};

pub(super) const BOTH: [&Resource; 2] = [&CRONTABS, &CRONTABS_V2];

/// A control plane, and a daemon that converts CronTabs for it.
pub(super) struct Environment {
    // The daemon is dropped before the control plane.
    pub(super) daemon: WebhookDaemon,
    pub(super) plane: PooledPlane,
}

impl Environment {
    /// Starts both. CronTabs are stored in this version. The daemon has these additional flags.
    pub(super) async fn start(plane: PooledPlane, stored: &Resource, flags: &[&str]) -> Result<Self> {
        install_definitions(&plane.client()?).await?;
        let flags: Vec<_> = ["--controllers=crontab"].iter().chain(flags).copied().collect();
        let daemon = WebhookDaemon::start(&plane, "converter", &flags).await?;
        serve_both(&plane, &by_daemon(&plane, daemon.webhooks.port), stored).await?;
        Ok(Self { daemon, plane })
    }
}

/// Returns the environment with this storage version that tests share which do not disturb it. Its
/// daemon writes nothing, so that only the test changes its objects.
pub(super) async fn shared(stored: &Resource) -> Result<&'static Environment> {
    static V1: OnceCell<Environment> = OnceCell::const_new();
    static V2: OnceCell<Environment> = OnceCell::const_new();
    let cell = if *stored == CRONTABS { &V1 } else { &V2 };
    cell.get_or_try_init(async || Environment::start(ControlPlane::pooled().await?, stored, &["--dry-run"]).await)
        .await
}

/// Runs a test twice, with CronTabs that are stored in v1 and in v2.
pub(super) async fn with_either_storage(prefix: &str, test: impl AsyncFn(&CronTabs) -> Result<()>) -> Result<()> {
    for stored in BOTH {
        let namespace = shared(stored).await?.plane.namespace(prefix).await?;
        let tested = test(&CronTabs::of(&namespace)).await;
        tested.with_context(|| format!("stored in {}", stored.version))?;
    }
    Ok(())
}

/// Returns what a test compares: the object without what each write changes.
pub(super) fn content(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["managedFields", "resourceVersion", "generation"] {
            metadata.remove(field);
        }
    }
    object
}
