//! Tests of what a release ships, with programs that take minutes to build: the image's binary, the
//! chart and the overlays, the alert rules, and the update from a former version. `make test`
//! leaves this module out, and `make test-all` runs it.

mod beside_kubernetes;
mod cert_manager;
mod definition;
mod image;
mod manifests;
mod monitoring;
mod policies;
mod probes;
mod rolling_update;

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use portreeve_testing::Namespace;
use serde_json::json;

use crate::fixtures::{daemon::printed, manifests::apply_all};

/// Installs the definitions, and creates the objects of the serving certificate, empty as deploy/
/// ships them.
async fn install(system: &Namespace) -> Result<()> {
    apply_all(system.client(), &printed(&["crds"])?).await?;
    let secret = serde_json::from_value(json!({"metadata": {"name": "portreeve-serving"}}))?;
    system.api::<Secret>().create(&PostParams::default(), &secret).await?;
    let map = serde_json::from_value(json!({"metadata": {"name": "portreeve-serving-ca"}}))?;
    system.api::<ConfigMap>().create(&PostParams::default(), &map).await?;
    Ok(())
}
