//! kube-controller-manager beside this daemon, both with a namespace controller.
//!
//! A pass of kube-controller-manager would go on when this daemon has finalized the namespace, and
//! its deletions name no UID. So this daemon leaves namespaces to it while it holds its Lease.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Namespace},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use portreeve_testing::{ControlPlane, Process, eventually, free_port, server_binary};
use serde_json::json;

use crate::fixtures::{LIMIT, in_process::InProcess};

const NAMESPACES: [&str; 4] = ["beside-a", "beside-b", "beside-c", "beside-d"];
/// More objects than are deleted one by one.
const MANY: usize = 12;

/// Starts kube-controller-manager, and waits until it leads.
async fn start_peer(plane: &ControlPlane) -> Result<Process> {
    let kubeconfig = plane.kubeconfig().display();
    let args = [
        "--controllers=namespace-controller".to_owned(),
        "--leader-elect-lease-duration=5s".to_owned(),
        "--leader-elect-renew-deadline=4s".to_owned(),
        "--leader-elect-retry-period=1s".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--cert-dir={}", plane.folder().join("peer").display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={}", free_port()?),
    ];
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let peer = plane.spawn(
        "kube-controller-manager",
        &server_binary("kube-controller-manager")?,
        &args,
        &[],
    )?;
    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    eventually(LIMIT, "kube-controller-manager to lead", || async {
        let lease = leases.get_opt("kube-controller-manager").await?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        holder.context("nobody holds its Lease")
    })
    .await
    .with_context(|| peer.log_tail())?;
    Ok(peer)
}

async fn create(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    create_map(client, name, "kept").await
}

async fn create_map(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}

async fn count(client: &Client, namespace: &str) -> Result<usize> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    Ok(maps.list_metadata(&ListParams::default()).await?.items.len())
}

async fn wait_until_gone(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    eventually(LIMIT, &format!("namespace {name} to be gone"), || async {
        ensure!(namespaces.get_opt(name).await?.is_none(), "it still exists");
        anyhow::Ok(())
    })
    .await
}

/// Deletes the namespaces with many objects, and creates each again as soon as it is gone. The new
/// ones lose nothing.
async fn replace_all(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    for name in NAMESPACES {
        for number in 0..MANY {
            create_map(client, name, &format!("many-{number}")).await?;
        }
        namespaces.delete(name, &DeleteParams::default()).await?;
    }
    for name in NAMESPACES {
        wait_until_gone(client, name).await?;
        create(client, name).await?;
    }
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        for name in NAMESPACES {
            let count = count(client, name).await?;
            ensure!(count == 1, "namespace {name} has {count} ConfigMaps");
        }
    }
    Ok(())
}

#[tokio::test]
async fn two_namespace_controllers_do_no_harm() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let peer = start_peer(&plane).await?;
    // The peer's deletions end with it: the apiserver has no proxy in front of it.
    let flags = ["--controllers=namespace", "--namespace-request-timeout=1s"];
    let daemon = InProcess::start(&plane, portreeve_cli::CONTROLLERS, &flags).await?;
    for name in NAMESPACES {
        create(&client, name).await?;
    }
    for _ in 0..2 {
        replace_all(&client).await?;
    }
    // Nobody releases the Lease of a process that was killed.
    drop(peer);
    for name in NAMESPACES {
        namespaces.delete(name, &DeleteParams::default()).await?;
    }
    for name in NAMESPACES {
        wait_until_gone(&client, name).await?;
    }
    daemon.finish().await
}
