//! The collector's debug pages, events and metrics.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::{collector::Collector, graph::Graph, ownership_tree::OwnershipTree, shared};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    expected_objects::ExpectedObjects,
    object_builder::{config_map, pod, reference, replication_controller, secret},
};

/// Returns a reference to an owner that does not exist.
fn absent_owner() -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "11111111-2222-4333-8444-555555555555"})
}

fn uid(object: &DynamicObject) -> &str {
    object.metadata.uid.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn the_graph_of_an_object_has_all_connected_objects() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-graph").await?;
    let owner = dynamic_client.create(replication_controller("owner")).await?;
    let child = dynamic_client.create(pod("child").blocking(&owner, true)).await?;
    let grandchild = dynamic_client.create(config_map("grandchild").owned_by(&child)).await?;
    let stranger = dynamic_client.create(config_map("stranger")).await?;
    let other = dynamic_client.create(secret("other").owned_by(&stranger)).await?;
    collector
        .wait_until_observes(&[&owner, &child, &grandchild, &other])
        .await?;

    for from in [&owner, &child, &grandchild] {
        let graph = collector.graph_of(uid(from)).await?;
        let expected = [&owner, &child, &grandchild].map(|object| uid(object).to_owned());
        ensure!(
            graph.vertices.keys().collect::<Vec<_>>() == sorted(&expected),
            "{graph:?}"
        );
        let edges = [(&child, &owner), (&grandchild, &child)];
        let edges = edges.map(|(from, to)| (uid(from).to_owned(), uid(to).to_owned()));
        ensure!(graph.edges == edges.into(), "{graph:?}");
        let vertex = &graph.vertices[uid(&child)];
        let attributes =
            ["group", "version", "kind", "namespace", "name", "uid"].map(|attribute| vertex.text(attribute));
        ensure!(
            attributes == ["", "v1", "Pod", dynamic_client.name(), "child", uid(&child)],
            "{vertex:?}"
        );
        let label = format!(
            "uid={}\nnamespace={}\nPod.v1/child\n",
            uid(&child),
            dynamic_client.name()
        );
        ensure!(vertex.text("label") == label, "{vertex:?}");
        let states = ["missing", "beingDeleted", "deletingDependents", "virtual"];
        ensure!(states.iter().all(|state| vertex.text(state) == "false"), "{vertex:?}");
    }
    let of_two = collector
        .graph_of(&format!("{}&uid={}", uid(&child), uid(&other)))
        .await?;
    ensure!(of_two.vertices.len() == 5, "{of_two:?}");
    let lone = dynamic_client.create(config_map("lone")).await?;
    dynamic_client.catch_up().await?;
    let of_lone = collector.graph_of(uid(&lone)).await?;
    ensure!(
        of_lone == Graph::default(),
        "an object without owners and dependents has a graph: {of_lone:?}"
    );
    let (status, whole) = collector.page("graph").await?;
    let whole = Graph::parse(&whole)?;
    ensure!(status == StatusCode::OK, "{status}");
    ensure!(
        [&owner, &other]
            .iter()
            .all(|object| whole.vertices.contains_key(uid(object))),
        "{whole:?}"
    );
    Ok(())
}

fn sorted(uids: &[String; 3]) -> Vec<&String> {
    let mut uids: Vec<_> = uids.iter().collect();
    uids.sort();
    uids
}

#[tokio::test]
async fn an_unknown_object_has_an_empty_graph_and_no_explanation() -> Result<()> {
    let (_, collector) = shared::client_and_collector("gc-nothing").await?;
    let (status, text) = collector.page("graph?uid=no-such-uid").await?;
    ensure!(
        status == StatusCode::OK && text == "strict digraph full {\n}\n",
        "{status}: {text}"
    );
    let (status, text) = collector.page("explain?uid=no-such-uid").await?;
    ensure!(
        status == StatusCode::NOT_FOUND && text.contains("no-such-uid"),
        "{status}: {text}"
    );
    let (status, text) = collector.page("decisions?uid=no-such-uid").await?;
    ensure!(
        status == StatusCode::OK && !text.contains("no-such-uid\""),
        "{status}: {text}"
    );
    Ok(())
}

#[tokio::test]
async fn the_graph_and_explanations_are_available_as_json() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-json").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let child = dynamic_client.create(secret("child").blocking(&owner, true)).await?;
    collector.wait_until_observes(&[&owner, &child]).await?;
    for page in ["graph", "explain"] {
        let (status, text) = collector
            .page(&format!("{page}?uid={}&format=json", uid(&child)))
            .await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        let texts = strings(&serde_json::from_str(&text)?);
        for object in [&owner, &child] {
            ensure!(
                texts.iter().any(|found| found.contains(uid(object))),
                "{page}: {texts:?}"
            );
        }
    }
    Ok(())
}

/// Returns every string value in a JSON document, without the keys.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn an_explanation_names_the_owners_and_the_blocking_dependents() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-explain").await?;
    let owner = dynamic_client.create(config_map("the-owner")).await?;
    let kept = dynamic_client
        .create(secret("the-child").blocking(&owner, true).finalizer("x/y"))
        .await?;
    collector.wait_until_observes(&[&owner, &kept]).await?;
    let (status, text) = collector.page(&format!("explain?uid={}", uid(&kept))).await?;
    let names = ["the-child", "the-owner", uid(&owner)];
    ensure!(
        status == StatusCode::OK && names.iter().all(|name| text.contains(name)),
        "{status}: {text}"
    );

    dynamic_client.delete(&owner, Policy::Foreground).await?;
    // The finalizer keeps the child, so the owner waits for the child.
    let page = format!("explain?uid={}", uid(&owner));
    eventually(LIMIT, "an explanation that names the blocking child", || async {
        let (status, text) = collector.page(&page).await?;
        ensure!(
            status == StatusCode::OK && text.contains("the-child"),
            "{status}: {text}"
        );
        anyhow::Ok(())
    })
    .await
}

#[tokio::test]
async fn observe_mode_records_decisions_and_writes_nothing() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-observe").await?;
    let mut ownership_tree = OwnershipTree::build(
        &dynamic_client,
        "seen",
        &[Policy::Background, Policy::Foreground, Policy::Orphan],
    )
    .await?;
    let observer = Collector::start_as(&plane, plane.kubeconfig(), "observer", &["--gc-mode=observe"]).await?;
    observer.wait_until_synced().await?;
    let orphan = dynamic_client.create(secret("child").owner(absent_owner())).await?;
    ownership_tree.delete_owners(&dynamic_client).await?;
    let before = all(&dynamic_client).await?;
    eventually(LIMIT, "a decision on the orphan", || async {
        let (status, text) = observer.page(&format!("decisions?uid={}", uid(&orphan))).await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        for expected in [uid(&orphan), "nobody", "11111111-2222-4333-8444-555555555555"] {
            ensure!(text.contains(expected), "{expected} is not in {text}");
        }
        anyhow::Ok(())
    })
    .await?;
    ensure_throughout(Duration::from_secs(1), || async {
        ensure!(all(&dynamic_client).await? == before, "the observer changed an object");
        Ok(())
    })
    .await?;
    let metrics = observer.daemon.admin.metrics().await?;
    for method in ["DELETE", "PATCH", "PUT"] {
        let sent = metrics.sum("rest_client_requests_total", &[&format!("method=\"{method}\"")]);
        ensure!(sent == 0.0, "the observer sent {sent} {method} requests");
    }
    drop(observer);

    let _collector = Collector::start(&plane, &[]).await?;
    dynamic_client.wait_until_gone(&orphan).await?;
    ownership_tree.expected_objects.verify(&dynamic_client).await
}

/// Returns the UIDs and versions of all ConfigMaps and Secrets.
async fn all(dynamic_client: &DynamicClient) -> Result<Vec<(Option<String>, Option<String>)>> {
    let mut found = dynamic_client.list("v1", "ConfigMap").await?;
    found.extend(dynamic_client.list("v1", "Secret").await?);
    Ok(found
        .iter()
        .map(|object| (object.uid(), object.resource_version()))
        .collect())
}

#[tokio::test]
async fn ignored_resources_are_neither_watched_nor_collected() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-ignored").await?;
    let ignored = "--gc-ignore-resources=events,events.events.k8s.io,secrets";
    let collector = Collector::start(&plane, &[ignored]).await?;
    let mut expected_objects = ExpectedObjects::default();
    // The collector does not watch the owner, and must still keep the dependent.
    let owner = expected_objects.create_one(&dynamic_client, secret("owner")).await?;
    expected_objects
        .create_one(&dynamic_client, config_map("of-ignored").owned_by(&owner))
        .await?;
    let doomed = dynamic_client.create(config_map("child").owner(absent_owner())).await?;
    let left = dynamic_client.create(secret("child").owner(absent_owner())).await?;
    dynamic_client.wait_until_gone(&doomed).await?;
    dynamic_client.catch_up().await?;
    dynamic_client.get(&left).await?;
    expected_objects.verify(&dynamic_client).await?;
    let metrics = collector.daemon.admin.metrics().await?;
    let watched = |resource: &str| metrics.0.contains(&format!("gc_monitor_synced{{gvr=\"{resource}\"}}"));
    ensure!(watched("configmaps.v1") && !watched("secrets.v1"), "{}", metrics.0);
    Ok(())
}

#[tokio::test]
async fn a_cross_namespace_reference_is_reported_by_an_event() -> Result<()> {
    let (other_namespace, collector) = shared::client_and_collector("gc-elsewhere").await?;
    let (own_namespace, _) = shared::client_and_collector("gc-here").await?;
    let parent = other_namespace.create(config_map("parent")).await?;
    let valid = other_namespace.create(secret("valid").owned_by(&parent)).await?;
    collector.wait_until_observes(&[&parent, &valid]).await?;
    let child = own_namespace
        .create(secret("child").finalizer("x/y").owner(reference(&parent)))
        .await?;

    let event = own_namespace
        .wait_for_event(&[&child], "OwnerRefInvalidNamespace", &[])
        .await?;
    let note = format!(
        r#"ownerRef [v1/ConfigMap, namespace: {0}, name: parent, uid: {1}] does not exist in namespace "{0}""#,
        own_namespace.name(),
        uid(&parent),
    );
    ensure!(event.note.as_deref() == Some(&*note), "{event:?}");
    ensure!(event.type_.as_deref() == Some("Warning"), "{event:?}");
    ensure!(
        event.reporting_controller.as_deref() == Some("garbage-collector-controller"),
        "{event:?}"
    );
    other_namespace.get(&valid).await?;
    let metrics = collector.daemon.admin.metrics().await?;
    let counted = metrics.sum("gc_invalid_owner_refs", &["reason="]);
    ensure!(counted >= 1.0, "gc_invalid_owner_refs is {counted}");
    Ok(())
}

#[tokio::test]
async fn every_metric_is_exposed_after_a_collection() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-metrics").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let child = dynamic_client.create(secret("child").blocking(&owner, true)).await?;
    collector.wait_until_observes(&[&owner, &child]).await?;
    dynamic_client.delete(&owner, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    dynamic_client.catch_up().await?;

    let metrics = collector.daemon.admin.metrics().await?;
    let names = metrics.names();
    for name in [
        "garbagecollector_controller_resources_sync_error_total",
        "gc_graph_nodes",
        "gc_graph_edges",
        "gc_graph_bytes",
        "gc_absent_owner_cache_size",
        "gc_absent_owner_cache_hits_total",
        "gc_absent_owner_cache_misses_total",
        "gc_attempts_total",
        "gc_blocked_owners",
        "gc_oldest_pending_seconds",
        "gc_monitor_synced",
        "gc_cascade_duration_seconds",
        "gc_breaker_tripped",
    ] {
        ensure!(names.contains(name), "{name} is not in {names:?}");
    }
    for queue in ["graph_changes", "attempt_to_delete", "attempt_to_orphan"] {
        let label = format!("name=\"garbage_collector_{queue}\"");
        ensure!(
            metrics.0.lines().any(|line| line.contains(&label)),
            "{label} is not in {}",
            metrics.0
        );
    }
    let nodes = metrics.sum("gc_graph_nodes", &[r#"gvr="configmaps.v1""#, r#"state="observed""#]);
    let deletions = metrics.sum("gc_attempts_total", &[r#"action="delete""#]);
    ensure!(nodes >= 1.0 && deletions >= 1.0, "{nodes} nodes, {deletions} deletions");
    Ok(())
}
