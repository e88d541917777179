//! One watch per resource: all readers share it, whatever they decode.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use k8s_openapi::api::{autoscaling::v1::HorizontalPodAutoscaler, core::v1::ConfigMap};
use kube::{Api, api::PostParams};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{
    audit::{AuditLog, Event, event::Stage, policy},
    controllers,
    fixtures::{LIMIT, daemon::Daemon, in_process::InProcess},
    requests::daemon_requests,
};

/// Returns how many watches on all objects of each resource are open, by path.
fn open_watches(plane: &ControlPlane) -> Result<BTreeMap<String, usize>> {
    let events = AuditLog::of(plane)?.events_since(0)?;
    let ended: BTreeSet<_> = events
        .iter()
        .filter(|event| event.stage == Stage::ResponseComplete)
        .map(|event| &event.audit_id)
        .collect();
    let is_open = |event: &&Event| {
        event.is_of_daemon()
            && event.verb == "watch"
            && event.stage == Stage::ResponseStarted
            && !event.request_uri.contains("fieldSelector")
            && !ended.contains(&event.audit_id)
    };
    let mut open = BTreeMap::new();
    for event in events.iter().filter(is_open) {
        *open.entry(path(event)).or_default() += 1;
    }
    Ok(open)
}

fn path(event: &Event) -> String {
    let uri = &event.request_uri;
    uri.split_once('?').map_or(&**uri, |(path, _)| path).to_owned()
}

/// Schedules, the TTL controller and the collector read Jobs, each with a projection of its own.
#[tokio::test]
async fn every_resource_has_one_watch_and_its_readers_share_the_first_list() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::REQUESTS).pooled().await?;
    let names: Vec<_> = portreeve_cli::CONTROLLERS.iter().map(|known| known.name).collect();
    let all = format!("--controllers={}", names.join(","));
    let flags = ["--install-crds", "--leader-elect=false", &*all];
    let daemon = Daemon::start(&plane, "shared", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let open = eventually(LIMIT, "one open watch on each resource", || async {
        let open = open_watches(&plane)?;
        for path in ["/apis/batch/v1/jobs", "/api/v1/configmaps"] {
            ensure!(open.contains_key(path), "{path} is not watched: {open:?}");
        }
        ensure!(open.values().all(|count| *count == 1), "{open:?}");
        anyhow::Ok(open)
    })
    .await?;
    let lists: Vec<_> = daemon_requests(&plane)?
        .iter()
        .filter(|request| request.verb == "list" && request.is_success())
        .map(path)
        .collect();
    for path in [
        "/apis/batch/v1/jobs",
        "/apis/batch/v1/cronjobs",
        "/apis/apps/v1/deployments",
    ] {
        let count = lists.iter().filter(|listed| **listed == path).count();
        ensure!(count == 1, "{path} was listed {count} times: {open:?}");
    }
    // `/readyz` has one line per resource.
    let (_, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(text.matches("informer/jobs.v1.batch").count() == 1, "{text}");
    Ok(())
}

/// The preferred version of autoscalers is v2, but an informer reads v1.
#[tokio::test]
async fn the_collector_reads_the_version_that_an_informer_reads() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::REQUESTS).pooled().await?;
    let daemon = InProcess::start(&plane, controllers::AUTOSCALERS_AND_COLLECTOR, &[]).await?;
    let namespace = plane.namespace("versions").await?;
    let maps: Api<ConfigMap> = namespace.api();
    let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "owner"}}))?;
    let owner = maps.create(&PostParams::default(), &owner).await?;
    let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": {"name": "owned", "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]},
        "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    }))?;
    let autoscalers: Api<HorizontalPodAutoscaler> = namespace.api();
    autoscalers.create(&PostParams::default(), &autoscaler).await?;
    maps.delete("owner", &kube::api::DeleteParams::background()).await?;
    eventually(LIMIT, "the autoscaler to be collected", || async {
        ensure!(autoscalers.get_opt("owned").await?.is_none(), "it still exists");
        anyhow::Ok(())
    })
    .await?;
    let open = open_watches(&plane)?;
    let versions: Vec<_> = open
        .keys()
        .filter(|path| path.starts_with("/apis/autoscaling/"))
        .collect();
    ensure!(
        versions == ["/apis/autoscaling/v1/horizontalpodautoscalers"],
        "{versions:?}"
    );
    daemon.stop().await
}
