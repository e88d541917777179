//! A worker runtime that runs no task: `tests/blocking` shows the takeover and the exit code.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use portreeve_reconcile::SystemClock;
use portreeve_testing::eventually;
use serde_json::json;
use tokio::runtime::Builder;

use super::ElectionEnvironment;
use crate::{
    controllers,
    fixtures::{LIMIT, in_process::InProcess},
};

impl ElectionEnvironment {
    /// Waits for the next renewal of a Lease.
    async fn wait_for_renewal(&self, lease: &str) -> Result<()> {
        let before = self.leases.get(lease).await?.metadata.resource_version;
        eventually(LIMIT, "a renewal", || async {
            let now = self.leases.get(lease).await?.metadata.resource_version;
            ensure!(now != before, "the Lease has not changed");
            anyhow::Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn a_blocked_runtime_keeps_its_lease_only_until_the_renew_deadline() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    let namespace = environment.plane.namespace("blocked").await?;
    // The test waits until the Lease is lost.
    let flags = [
        "--leader-elect-lease-duration=12s",
        "--leader-elect-renew-deadline=10s",
        "--leader-elect-retry-period=500ms",
        "--controller-stuck-timeout=1s",
    ];
    let scope = controllers::in_namespace(namespace.name());
    // As in the binary, other threads run the elections and serve the health endpoints.
    let thread = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let kubeconfig = environment.plane.kubeconfig().to_owned();
    let started = async move {
        let flags: Vec<_> = flags.into_iter().chain([&*scope]).collect();
        InProcess::start_as(&kubeconfig, Arc::new(SystemClock), controllers::BLOCKED, &flags).await
    };
    let daemon = thread.spawn(started).await??;
    let holder = environment.next_holder("portreeve", "").await?;
    let maps: Api<ConfigMap> = namespace.api();
    let map = serde_json::from_value(json!({"metadata": {"name": "trap"}}))?;
    maps.create(&PostParams::default(), &map).await?;
    for (check, words) in [("blocked-controller", "trap"), ("runtime", "no task has run for")] {
        daemon.admin.wait_until_failing("/livez", check, &[words]).await?;
    }
    for _ in 0..3 {
        environment.wait_for_renewal("portreeve").await?;
    }

    let reason = "lost Lease kube-system/portreeve, shutting down: no task of the worker runtime has run for 10s";
    eventually(LIMIT, "the daemon to give up its Lease", || async {
        let (_, text) = daemon.admin.get("/livez?verbose").await?;
        ensure!(text.contains(reason), "{text}");
        anyhow::Ok(())
    })
    .await?;
    // The fence is closed when the reconcile wakes.
    controllers::BARRIER.open();
    let end = daemon.stop().await.err().context("the daemon did not lose its Lease")?;
    ensure!(format!("{end:#}").contains("leaderelection lost"), "{end:#}");
    let names: Vec<_> = maps
        .list(&ListParams::default())
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    ensure!(names == ["trap"], "{names:?}");
    ensure!(
        environment.holder("portreeve").await? == holder,
        "the daemon released the Lease"
    );
    thread.shutdown_background();
    Ok(())
}
