//! Foos, and the Deployments that they ask for: how they are made, and how one knows that a controller is done with them.

use std::collections::HashSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use kube::api::{DeleteParams, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, CustomResourceExt};
use portreeve_api::{CronTab, Foo};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::bench::Bench;
use crate::controller::{Controller, Limits, Role, START_LIMIT};
use crate::objects::{Created, NAMESPACE, post};
use crate::peers;
use crate::rows::{Subject, Task};

/// How many Foos everybody works on at once.
pub(crate) const WORKERS: u16 = 16;
const DEFINITION_LIMIT: Duration = Duration::from_secs(30);
/// How long thousands of objects may take to be gone.
const REMOVAL_LIMIT: Duration = Duration::from_mins(2);

/// Foos and CronTabs are served from now on.
pub(crate) async fn define(client: &Client) -> Result<()> {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
    for definition in [Foo::crd(), CronTab::crd()] {
        post(&definitions, serde_json::to_value(definition)?).await?;
    }
    let (foos, one) = (foos(client), ListParams::default().limit(1));
    eventually(DEFINITION_LIMIT, "Foos to be served", || foos.list_metadata(&one)).await?;
    Ok(())
}

/// Starts a controller for Foos, without limits and without waiting for it.
pub(crate) async fn start(bench: &Bench, subject: Subject, plane: &ControlPlane) -> Result<Controller> {
    let workers = workers(bench);
    if subject.is_built() {
        return Controller::spawn_built(subject, &peers(bench).await?, plane, workers);
    }
    let role = Role::Alone(Limits::Lifted(workers));
    Controller::spawn(Task::Foos, subject, bench.daemon.as_ref(), plane, role)
}

/// Where the peers are.
pub(crate) async fn peers(bench: &Bench) -> Result<PathBuf> {
    let folder = bench.peers.get_or_try_init(|| peers::build(&bench.progress)).await?;
    Ok(folder.clone())
}

pub(crate) fn workers(bench: &Bench) -> u16 {
    bench.options.concurrency.unwrap_or(WORKERS)
}

/// Waits until a controller has worked on a Foo that is made now. By then it has seen all that were made before, as both a watch and a
/// work queue keep their order.
pub(crate) async fn has_caught_up(controller: &Controller, client: &Client) -> Result<()> {
    let api = foos(client);
    let settled = ObjectWait::begin(&api, 1, is_settled).await?;
    post(&api, foo("probe")).await?;
    controller.guard(settled.reached(START_LIMIT)).await?;
    Ok(())
}

/// Removes every Foo and every Deployment: there is no garbage collector here.
pub(crate) async fn remove_all(client: &Client) -> Result<()> {
    for api in [foos(client), deployments(client)] {
        let deleted = api
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await;
        deleted.context("failed to delete a collection")?;
        let gone = || async {
            let left = api.list_metadata(&ListParams::default().limit(1)).await?;
            ensure!(left.items.is_empty(), "some are left");
            Ok(())
        };
        eventually(REMOVAL_LIMIT, "all objects to be gone", gone).await?;
    }
    Ok(())
}

pub(crate) fn foos(client: &Client) -> Api<DynamicObject> {
    api(client, "samplecontroller.k8s.io", "v1alpha1", "Foo")
}

pub(crate) fn deployments(client: &Client) -> Api<DynamicObject> {
    api(client, "apps", "v1", "Deployment")
}

pub(crate) fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

pub(crate) fn foo(name: &str) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1",
        "kind": "Foo",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"deploymentName": name, "replicas": 1},
    })
}

/// The Deployment that a controller would make of a Foo.
pub(crate) fn deployment(foo: &Created) -> Value {
    let labels = json!({"app": "nginx", "controller": foo.name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": foo.name,
            "namespace": NAMESPACE,
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "samplecontroller.k8s.io/v1alpha1",
                "kind": "Foo",
                "name": foo.name,
                "uid": foo.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]},
            },
        },
    })
}

/// A Deployment that nobody owns.
pub(crate) fn unowned_deployment(name: &str) -> Value {
    let nobody = Created {
        name: name.to_owned(),
        uid: String::new(),
        version: String::new(),
    };
    let mut deployment = deployment(&nobody);
    deployment["metadata"]["ownerReferences"] = Value::Null;
    deployment
}

/// The status that a controller would write once it has made that Deployment.
pub(crate) fn status(foo: &Created) -> Value {
    let condition = |kind, status| {
        json!({
            "type": kind,
            "status": status,
            "reason": "Synced",
            "message": "",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-11-22T00:00:00Z",
        })
    };
    json!({
        "metadata": {"uid": foo.uid, "resourceVersion": foo.version},
        "status": {
            "availableReplicas": 0,
            "observedGeneration": 1,
            "conditions": [condition("Ready", "True"), condition("Conflict", "False")],
        },
    })
}

/// Whether a Deployment is one that a Foo has asked for.
pub(crate) fn is_owned(deployment: &DynamicObject) -> bool {
    let owners = deployment.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.kind == "Foo")
}

/// Whether the status of a Foo is that of what it asks for.
pub(crate) fn is_settled(foo: &DynamicObject) -> bool {
    let observed = foo.data["status"]["observedGeneration"].as_i64();
    observed.is_some() && observed == foo.metadata.generation
}

type Changes = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>;

/// A watch that counts how many objects are as they are waited for. The apiserver ends a watch that is not read fast enough on a busy
/// machine; then it goes on from where it was.
pub(crate) struct ObjectWait {
    api: Api<DynamicObject>,
    /// The version last heard of.
    version: String,
    changes: Changes,
    is_done: fn(&DynamicObject) -> bool,
    done: HashSet<String>,
    count: usize,
}

impl ObjectWait {
    /// Begins before anything has happened: what is there already does not count.
    pub(crate) async fn begin(
        api: &Api<DynamicObject>,
        count: usize,
        is_done: fn(&DynamicObject) -> bool,
    ) -> Result<Self> {
        let now = api.list_metadata(&ListParams::default().limit(1)).await;
        let version = now.context("failed to list what is watched")?.metadata.resource_version;
        let version = version.context("a list has no version")?;
        Ok(Self {
            changes: changes(api, &version).await?,
            api: api.clone(),
            version,
            is_done,
            done: HashSet::with_capacity(count),
            count,
        })
    }

    /// Waits for the last of them, and says when it was heard of.
    pub(crate) async fn reached(mut self, limit: Duration) -> Result<Instant> {
        let heard = async {
            while self.done.len() < self.count {
                match self.changes.next().await {
                    Some(event) => self.handle_event(event.context("a watch broke")?)?,
                    None => self.changes = changes(&self.api, &self.version).await?,
                }
            }
            anyhow::Ok(Instant::now())
        };
        let heard = timeout(limit, heard).await;
        heard.with_context(|| format!("only {} of {} were done after {limit:?}", self.done.len(), self.count))?
    }

    fn handle_event(&mut self, event: WatchEvent<DynamicObject>) -> Result<()> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                if (self.is_done)(&object) {
                    self.done.insert(name);
                }
                self.version = object.metadata.resource_version.unwrap_or_default();
            }
            WatchEvent::Deleted(object) => self.version = object.metadata.resource_version.unwrap_or_default(),
            WatchEvent::Bookmark(bookmark) => self.version = bookmark.metadata.resource_version,
            WatchEvent::Error(status) => bail!("a watch was refused: {}", status.message),
        }
        Ok(())
    }
}

async fn changes(api: &Api<DynamicObject>, version: &str) -> Result<Changes> {
    let changes = api.watch(&WatchParams::default(), version).await;
    Ok(Box::pin(changes.context("failed to watch")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_foo_is_settled_once_its_status_is_of_its_generation() {
        for (status, expected) in [
            (Value::Null, false),
            (json!({"observedGeneration": 1}), false),
            (json!({"observedGeneration": 2}), true),
        ] {
            let foo = object(json!({"metadata": {"name": "a", "generation": 2}, "status": status}));
            assert_eq!(is_settled(&foo), expected, "{status}");
        }
    }

    #[test]
    fn the_floor_makes_the_deployment_that_a_controller_would() {
        let foo = Created {
            name: "one".to_owned(),
            uid: "u-1".to_owned(),
            version: "7".to_owned(),
        };
        let deployment = object(deployment(&foo));
        assert!(is_owned(&deployment));
        assert_eq!(deployment.data["spec"]["selector"]["matchLabels"]["controller"], "one");
        assert_eq!(status(&foo)["metadata"]["resourceVersion"], "7");
    }
}
