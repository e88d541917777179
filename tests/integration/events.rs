//! The writer of events with a real apiserver.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use portreeve_api::{ObjectKey, Resource};
use portreeve_metrics::Registry;
use portreeve_reconcile::{EventContent, Events, Shutdown, Target};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use prometheus::TextEncoder;
use tokio::task::JoinSet;

use crate::fixtures::{LIMIT, object_builder::CONFIG_MAPS};

const CLUSTER_ROLES: Resource = Resource::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");

/// A running writer of events, and the namespace of the test.
struct Writer {
    namespace: Namespace,
    events: Events,
    registry: Registry,
    stop: Shutdown,
    task: JoinSet<()>,
}

impl Writer {
    async fn start() -> Result<Self> {
        let namespace = ControlPlane::shared().await.namespace("events").await?;
        let (registry, stop, mut task) = (Registry::new(), Shutdown::new(), JoinSet::new());
        let (events, writer) = Events::channel(namespace.client().clone(), "replica", &registry)?;
        task.spawn(writer.run(stop.clone()));
        Ok(Self {
            namespace,
            events,
            registry,
            stop,
            task,
        })
    }

    /// Returns an object that exists only in events.
    fn target(&self, resource: &Resource, name: &str) -> Target {
        let is_namespaced = *resource == CONFIG_MAPS;
        let key = if is_namespaced {
            ObjectKey::namespaced(self.namespace.name(), name)
        } else {
            ObjectKey::cluster(name)
        };
        Target {
            resource: resource.clone(),
            key,
            // The events of cluster-scoped objects of all tests are in one namespace.
            uid: format!("{}-{name}", self.namespace.name()).into(),
            version: "1".into(),
        }
    }

    fn send(&self, target: &Target) {
        let content = EventContent::normal("Tested", "Test", "an event of a test");
        assert!(
            self.events.send("test-controller", target, &content),
            "the queue is full"
        );
    }

    /// Waits for the only event about an object, with this number of occurrences.
    async fn wait_for_event(&self, target: &Target, occurrences: i32) -> Result<Event> {
        let namespace = target.key.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.namespace.client().clone(), namespace);
        eventually(LIMIT, &format!("an event about {}", target.key), || async {
            let mut found = events.list(&ListParams::default()).await?.items;
            found.retain(|event| {
                let regarding = event.regarding.as_ref();
                regarding.and_then(|regarding| regarding.uid.as_deref()) == Some(&*target.uid)
            });
            let event = found.pop().context("there is none")?;
            ensure!(found.is_empty(), "more than one: {found:?}");
            let count = event.series.as_ref().map_or(1, |series| series.count);
            ensure!(count == occurrences, "{count} occurrences");
            anyhow::Ok(event)
        })
        .await
    }

    /// Stops the writer. Returns an error if it has dropped an event.
    async fn finish(mut self) -> Result<()> {
        self.stop.request();
        self.task.join_next().await.context("the writer is gone")??;
        let metrics = TextEncoder::new().encode_to_string(&self.registry.gather())?;
        ensure!(metrics.contains("portreeve_events_dropped_total 0\n"), "{metrics}");
        Ok(())
    }
}

#[tokio::test]
async fn objects_of_every_name_get_events() -> Result<()> {
    let writer = Writer::start().await?;
    let long = "x".repeat(253);
    for (resource, name) in [
        (CLUSTER_ROLES, "acme:child"),
        (CLUSTER_ROLES, "System:Node_1"),
        (CONFIG_MAPS, &*long),
    ] {
        let target = writer.target(&resource, name);
        writer.send(&target);
        let event = writer.wait_for_event(&target, 1).await?;
        let regarding = event.regarding.and_then(|regarding| regarding.name);
        ensure!(regarding.as_deref() == Some(name), "{regarding:?}");
    }
    writer.finish().await
}

#[tokio::test]
async fn a_repetition_after_the_deletion_of_all_events_starts_a_new_one() -> Result<()> {
    let writer = Writer::start().await?;
    let target = writer.target(&CONFIG_MAPS, "a");
    for _ in 0..3 {
        writer.send(&target);
    }
    let first = writer.wait_for_event(&target, 3).await?;
    let events: Api<Event> = writer.namespace.api();
    events
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    writer.send(&target);
    let second = writer.wait_for_event(&target, 1).await?;
    ensure!(first.metadata.uid != second.metadata.uid);
    writer.finish().await
}
