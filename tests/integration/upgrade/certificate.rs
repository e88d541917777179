//! v2 with a serving certificate: the leader sets the CA of the conversion webhook.

use anyhow::{Result, ensure};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, free_port};
use serde_json::json;

use super::Upgrade;
use crate::{
    certificates::webhooks::Bundles,
    fixtures::{
        admin::Admin,
        conversion::two_schedules,
        daemon::{Daemon, administer},
        rbac::restricted_kubeconfig,
        webhooks::{WebhookDaemon, install_definitions},
    },
};

const DEFINITION: &str = "customresourcedefinitions/crontabs.stable.example.com";

/// The daemon has the permissions that `portreeve rbac` prints and no others.
#[tokio::test]
async fn the_leader_sets_the_ca_of_v2() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    install_definitions(&plane.client()?).await?;
    let system = plane.namespace("certificate").await?;
    let port = free_port()?;
    let flags = [
        "--controllers=crontab".to_owned(),
        format!("--tls-secret={}/serving", system.name()),
        "--tls-issue-names=localhost".to_owned(),
        format!("--tls-ca-bundles={DEFINITION}"),
    ];
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let kubeconfig = restricted_kubeconfig(&plane, &flags).await?;
    let webhooks = Admin { port };
    let serve = format!("--webhook-port={port}");
    let flags = [&flags[..], &[&*serve]].concat();
    let daemon = Daemon::start_as(&plane, &kubeconfig, "leader", &flags).await?;
    webhooks.wait_until_ready().await?;
    let namespace = plane.namespace("upgrade").await?;
    let upgrade = Upgrade {
        plane,
        daemon: WebhookDaemon { daemon, webhooks },
        namespace,
    };
    // Without a webhook, the definition has no bundle, and nobody writes one.
    let bundles = Bundles::new(upgrade.plane.client()?);
    let unconverted = json!({"strategy": "None"});
    ensure!(bundles.get(DEFINITION).await?["spec"]["conversion"] == unconverted);

    let url = format!("--url=https://localhost:{port}");
    administer(&upgrade.plane, &["conversion", "enable", &url]).await?;
    let crontabs = upgrade.crontabs();
    crontabs.create(&CRONTABS_V2, &two_schedules("two")).await?;
    let in_v1 = crontabs.get(&CRONTABS, "two").await?;
    ensure!(in_v1["spec"]["schedule"] == "@daily", "{in_v1}");
    ensure!(bundles.read(DEFINITION).await?[0].contains("BEGIN CERTIFICATE"));

    crontabs.delete(&CRONTABS, "two").await?;
    administer(&upgrade.plane, &["conversion", "disable"]).await?;
    ensure!(bundles.get(DEFINITION).await?["spec"]["conversion"] == unconverted);
    let log = upgrade.daemon.daemon.log()?;
    ensure!(!log.contains("cannot patch resource"), "{log}");
    Ok(())
}
