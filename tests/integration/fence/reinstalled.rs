//! A fence that is deleted and created again. Each test starts its own control plane: an apiserver
//! that has stopped watching Leases never begins again, and reads those that it did not see until
//! then.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, CustomResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, eventually};

use super::{UUID, environment::FenceEnvironment};
use crate::fixtures::{
    LIMIT,
    admin::OPEN,
    daemon::{Daemon, LONG_LEASE, printed},
    namespace::NamespaceFixture,
    rbac,
    tokens::pod_kubeconfig,
};

const CONTROLLERS: [&str; 2] = ["foo-controller", "garbage-collector-controller"];

#[tokio::test]
async fn a_fence_with_an_anchor_follows_the_lease_after_it_was_deleted() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let environment = FenceEnvironment::on(&plane, "anchored").await?;
    environment.anchor().await?;
    environment.fence().await?;
    let (first, second) = (environment.replica("web-a").await?, environment.replica("web-b").await?);
    environment.set_leader(&format!("web-a_{UUID}"), &first).await?;
    environment.delete_fence().await?;
    environment.set_holder(&format!("web-b_{UUID}")).await?;
    environment.fence().await?;
    environment.set_leader(&format!("web-b_{UUID}"), &second).await?;
    environment.ensure_fenced(&first, "the former leader").await
}

#[tokio::test]
async fn a_leader_reports_that_the_fence_rejects_its_writes_until_it_admits_them() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let environment = FenceEnvironment::on(&plane, "stale").await?;
    // Without an anchor, the apiserver stops watching Leases. In its last state, nobody leads.
    environment.fence().await?;
    environment.delete_fence().await?;
    let daemon = start_leader(&plane, &environment).await?;
    let fixture = NamespaceFixture {
        namespace: environment.namespace.clone(),
    };
    fixture.ready_foo("old", 1).await?;
    fixture.ready_foo("lost", 1).await?;
    let fenced = ["--controllers=foo,garbagecollector"];
    environment.fence_with(&fenced).await?;
    daemon.admin.ensure_passing("/readyz").await?;

    // The Foo needs only another status.
    fixture.set_available("old", 1).await?;
    // The Deployment becomes garbage.
    fixture.foos().delete("lost", &DeleteParams::default()).await?;
    for controller in CONTROLLERS {
        let check = format!("fence/{controller}");
        daemon.admin.wait_until_failing("/readyz", &check, &["/lease"]).await?;
        let label = format!("controller=\"{controller}\"");
        let rejected = daemon
            .admin
            .metrics()
            .await?
            .sum("portreeve_fenced_writes_total", &[&label, r#"fence="apiserver""#]);
        ensure!(rejected > 1.0, "{controller}: {rejected} rejected writes");
        wait_for_event(&environment, controller).await?;
    }

    environment
        .apply(&environment.account, &[&fenced[..], &["--action=Audit"]].concat())
        .await?;
    daemon.admin.wait_until_passing("/readyz").await?;
    fixture.wait_for_no_deployment("lost").await?;
    let log = daemon.log()?;
    for controller in CONTROLLERS {
        for message in [
            "rejected by the apiserver's fence",
            "admitted again by the apiserver's fence",
        ] {
            let lines = log
                .lines()
                .filter(|line| line.contains(message) && line.contains(controller));
            ensure!(lines.count() == 1, "{controller}: {message}: {log}");
        }
    }
    Ok(())
}

/// Starts a daemon as a Pod of the environment's account, and waits until it leads.
async fn start_leader(plane: &ControlPlane, environment: &FenceEnvironment<'_>) -> Result<Daemon> {
    let crds = Api::all(plane.client()?);
    crds.create(&PostParams::default(), &Foo::crd()).await?;
    let lease = environment.lease_flags();
    let flags = ["--controllers=foo,garbagecollector", &*lease[0], &*lease[1]];
    let account = format!("--service-account={}", environment.account);
    let namespace = environment.namespace.name();
    let printed = printed(&[&["rbac", &*account, "--namespace", namespace], &flags[..]].concat())?;
    rbac::apply_and_wait_for(
        environment.namespace.client(),
        namespace,
        &environment.account,
        &printed,
    )
    .await?;
    let kubeconfig = pod_kubeconfig(plane, &environment.namespace, &environment.account, "leader").await?;
    let flags = [&flags[..], &LONG_LEASE, &[OPEN]].concat();
    let daemon = Daemon::start_with(plane, &kubeconfig, "leader", &flags, &[("POD_NAME", "leader")]).await?;
    daemon.wait_for_line(&["acquired the lease"]).await?;
    daemon.admin.wait_until_ready().await?;
    Ok(daemon)
}

/// Waits for the event on the Lease that a controller reports.
async fn wait_for_event(environment: &FenceEnvironment<'_>, controller: &str) -> Result<()> {
    let events: Api<Event> = environment.namespace.api();
    eventually(LIMIT, &format!("an event of {controller} on the Lease"), || async {
        let found = events.list(&ListParams::default()).await?.items;
        let ours = found.into_iter().find(|event| {
            event.reason.as_deref() == Some("LeaderFenced") && event.reporting_controller.as_deref() == Some(controller)
        });
        let regarding = ours
            .context("no event")?
            .regarding
            .context("the event names no object")?;
        ensure!(
            (regarding.kind.as_deref(), regarding.name.as_deref()) == (Some("Lease"), Some("lease")),
            "{regarding:?}"
        );
        anyhow::Ok(())
    })
    .await
}
