//! kube-controller-manager beside this daemon, both with a namespace controller.
//!
//! A pass of kube-controller-manager goes on when this daemon has finalized the namespace, and its
//! deletions name no UID. So a successor is created only when no pass is in progress.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use portreeve_testing::{ControlPlane, Process, eventually, free_port, server_binary};
use serde_json::json;

use crate::fixtures::{LIMIT, admin::Admin, in_process::InProcess};

const NAMESPACES: [&str; 4] = ["beside-a", "beside-b", "beside-c", "beside-d"];
/// More objects than are deleted one by one.
const MANY: usize = 12;

async fn start_peer(plane: &ControlPlane) -> Result<(Process, Admin)> {
    let port = free_port()?;
    let kubeconfig = plane.kubeconfig().display();
    let args = [
        "--controllers=namespace-controller".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--authorization-always-allow-paths=/healthz,/metrics".to_owned(),
        format!("--cert-dir={}", plane.folder().join("peer").display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ];
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let peer = plane.spawn(
        "kube-controller-manager",
        &server_binary("kube-controller-manager")?,
        &args,
        &[],
    )?;
    let admin = Admin { port };
    eventually(LIMIT, "kube-controller-manager to be healthy", || async {
        let (status, body) = admin.get("/healthz").await?;
        ensure!(status == 200, "{status}: {body}");
        anyhow::Ok(())
    })
    .await
    .with_context(|| peer.log_tail())?;
    Ok((peer, admin))
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

#[tokio::test]
async fn two_namespace_controllers_do_no_harm() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let flags = ["--controllers=namespace"];
    let daemon = InProcess::start(&plane, portreeve_cli::CONTROLLERS, &flags).await?;
    let (peer, admin) = start_peer(&plane).await?;
    for name in NAMESPACES {
        create(&client, name).await?;
    }
    for _ in 0..2 {
        for name in NAMESPACES {
            for number in 0..MANY {
                create_map(&client, name, &format!("many-{number}")).await?;
            }
            namespaces.delete(name, &DeleteParams::default()).await?;
        }
        for name in NAMESPACES {
            eventually(LIMIT, &format!("namespace {name} to be gone"), || async {
                ensure!(namespaces.get_opt(name).await?.is_none(), "it still exists");
                anyhow::Ok(())
            })
            .await?;
        }
        eventually(LIMIT, "kube-controller-manager to be idle", || async {
            let busy = admin
                .metrics()
                .await?
                .sum("workqueue_unfinished_work_seconds", &[r#"name="namespace""#]);
            ensure!(busy == 0.0, "it has been busy for {busy} s");
            anyhow::Ok(())
        })
        .await?;
        for name in NAMESPACES {
            create(&client, name).await?;
        }
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            for name in NAMESPACES {
                let count = count(&client, name).await?;
                ensure!(count == 1, "namespace {name} has {count} ConfigMaps");
            }
        }
    }
    drop(peer);
    daemon.finish().await
}
