//! CronTabs from v1 to v2 and back, on one control plane with a real daemon.

mod hostile;

use anyhow::{Result, ensure};
use kube::{ResourceExt, core::DynamicObject};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, Namespace, PooledPlane};
use serde_json::json;

use crate::fixtures::{
    conversion::{CronTabs, v2},
    daemon::{Daemon, administer},
    dynamic_client::DynamicClient,
    object_builder::config_map,
    webhooks::{WebhookDaemon, install_definitions},
};

/// A control plane with a daemon whose webhooks the apiserver can call.
pub(crate) struct Upgrade {
    pub(crate) plane: PooledPlane,
    daemon: WebhookDaemon,
    namespace: Namespace,
}

impl Upgrade {
    pub(crate) async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        install_definitions(&plane.client()?).await?;
        let daemon = WebhookDaemon::start(&plane, "upgrade", &["--controllers=crontab"]).await?;
        let namespace = plane.namespace("upgrade").await?;
        Ok(Self {
            plane,
            daemon,
            namespace,
        })
    }

    pub(crate) async fn enable(&self) -> Result<()> {
        let ca = self.plane.folder().join("upgrade-ca.crt");
        std::fs::write(&ca, self.plane.authority().pem())?;
        let url = format!("--url=https://localhost:{}", self.daemon.webhooks.port);
        let ca = format!("--ca-file={}", ca.display());
        administer(&self.plane, &["conversion", "enable", &url, &ca]).await?;
        Ok(())
    }

    pub(crate) fn crontabs(&self) -> CronTabs {
        CronTabs::of(&self.namespace)
    }
}

/// A reference that somebody wrote by hand has the version that is withdrawn.
#[tokio::test]
async fn the_dependents_of_a_crontab_in_v2_are_collected_when_only_v1_is_served() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    upgrade.enable().await?;
    let crontabs = upgrade.crontabs();
    let owner = crontabs.create(&CRONTABS_V2, &v2("owner", json!({}))).await?;
    let owner: DynamicObject = serde_json::from_value(owner)?;
    let dynamic_client = DynamicClient::of(&upgrade.namespace);
    let child = dynamic_client.create(config_map("child").owned_by(&owner)).await?;
    let referenced = &child.owner_references()[0].api_version;
    ensure!(*referenced == CRONTABS_V2.api_version(), "{referenced}");
    administer(&upgrade.plane, &["conversion", "disable"]).await?;

    let collector = Daemon::start(&upgrade.plane, "collector", &["--controllers=garbagecollector"]).await?;
    collector.admin.wait_until_ready().await?;
    crontabs.delete(&CRONTABS, "owner").await?;
    dynamic_client.wait_until_gone(&child).await
}
