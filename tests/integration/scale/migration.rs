//! A migration of many CronTabs to v2, which is killed, and which survives a restart of the
//! apiserver.
//!
//! The full size is 10,000 CronTabs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, Process, Signal, eventually};
use serde_json::{Value, json};

use super::is_full_size;
use crate::{
    fixtures::{
        LIMIT,
        conversion::{Definition, v1},
        daemon::PLUGIN,
    },
    upgrade::Upgrade,
};

/// The time limit of a migration, with a debug build.
const MIGRATION: Duration = Duration::from_mins(10);

fn objects() -> usize {
    if is_full_size() { 10_000 } else { 200 }
}

/// Returns the number of CronTabs that are stored in v2.
async fn migrated(plane: &ControlPlane) -> Result<usize> {
    let stored = plane.stored("stable.example.com/crontabs/").await?;
    ensure!(stored.len() == objects(), "{} CronTabs", stored.len());
    let is_migrated = |object: &&Value| object["apiVersion"] == *CRONTABS_V2.api_version();
    Ok(stored.iter().filter(is_migrated).count())
}

/// Starts a migration, and waits until it has begun to write, and more than this number of CronTabs
/// are stored in v2.
async fn migrate(plane: &ControlPlane, name: &str, beyond: usize) -> Result<Process> {
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
    let flags = ["migrate", "--switch-delay=0s", "--page-size=50", &kubeconfig];
    let process = plane.spawn(name, &PLUGIN, &flags, &[])?;
    process
        .wait_for_log(MIGRATION, |line| line.starts_with("storing "))
        .await?;
    eventually(MIGRATION, "some CronTabs to be written", || async {
        ensure!(migrated(plane).await? > beyond, "{}", process.log_tail());
        anyhow::Ok(())
    })
    .await?;
    Ok(process)
}

#[tokio::test]
async fn many_crontabs_are_migrated_once() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    let plane = &upgrade.plane;
    let crontabs = upgrade.crontabs();
    let creates = (0..objects()).map(|number| {
        let crontabs = &crontabs;
        async move {
            crontabs
                .create(&CRONTABS, &v1(&format!("c-{number:05}"), json!({})))
                .await
        }
    });
    stream::iter(creates)
        .buffer_unordered(16)
        .try_collect::<Vec<Value>>()
        .await?;
    upgrade.enable().await?;

    let killed = migrate(plane, "killed", 0).await?;
    killed.signal(Signal::KILL)?;
    killed.wait(LIMIT).await?;
    let first = migrated(plane).await?;

    let restarted = migrate(plane, "restarted", first).await?;
    plane.apiserver().stop().await?;
    plane.apiserver().start().await?;
    let status = restarted.wait(MIGRATION).await?;
    let log = restarted.log_tail();
    ensure!(status.success(), "{status}: {log}");
    ensure!(migrated(plane).await? == objects(), "{log}");
    let definition = Definition::of(&plane.client()?, &CRONTABS.crd_name()).get().await?;
    for version in definition["spec"]["versions"].as_array().context("no versions")? {
        ensure!(version["served"] == true, "{version}");
        ensure!(
            version["storage"] == (version["name"] == *CRONTABS_V2.version),
            "{version}"
        );
    }
    ensure!(
        definition["status"]["storedVersions"] == json!([CRONTABS_V2.version]),
        "{definition}"
    );
    ensure!(
        log.contains(" 0 failed") && log.contains("status.storedVersions of crontabs.stable.example.com is [v2]"),
        "{log}"
    );
    Ok(())
}
