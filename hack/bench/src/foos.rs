//! Foos and their Deployments: their creation, and watches that detect that a controller has
//! reconciled them.

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

/// The number of Foos that each subject works on at a time.
pub(crate) const WORKERS: u16 = 16;
const CRD_LIMIT: Duration = Duration::from_secs(30);
/// How long the removal of thousands of objects may take.
const REMOVAL_LIMIT: Duration = Duration::from_mins(2);

/// Creates the CRDs of Foos and CronTabs, and waits until the apiserver serves Foos.
pub(crate) async fn create_crds(client: &Client) -> Result<()> {
    let gvk = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions = Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk));
    for definition in [Foo::crd(), CronTab::crd()] {
        post(&definitions, serde_json::to_value(definition)?).await?;
    }
    let (foos, one) = (foos(client), ListParams::default().limit(1));
    eventually(CRD_LIMIT, "Foos to be served", || foos.list_metadata(&one)).await?;
    Ok(())
}

/// Starts a controller for Foos with lifted limits, without waiting until it is healthy.
pub(crate) async fn start(bench: &Bench, subject: Subject, plane: &ControlPlane) -> Result<Controller> {
    let workers = workers(bench);
    if subject.is_built() {
        return Controller::spawn_built(subject, &peers(bench).await?, plane, workers);
    }
    let role = Role::Alone(Limits::Lifted(workers));
    Controller::spawn(Task::Foos, subject, bench.daemon.as_ref(), plane, role)
}

/// Returns the folder with the binaries of the peers, and builds them first if necessary.
pub(crate) async fn peers(bench: &Bench) -> Result<PathBuf> {
    let folder = bench.peers.get_or_try_init(|| peers::build(&bench.progress)).await?;
    Ok(folder.clone())
}

pub(crate) fn workers(bench: &Bench) -> u16 {
    bench.options.concurrency.unwrap_or(WORKERS)
}

/// Waits until a controller has reconciled a new Foo. By then the controller has observed all
/// earlier Foos, because watches and work queues keep their order.
pub(crate) async fn has_caught_up(controller: &Controller, client: &Client) -> Result<()> {
    let api = foos(client);
    let settled = ObjectWait::begin(&api, 1, is_settled).await?;
    post(&api, foo("probe")).await?;
    controller.guard(settled.reached(START_LIMIT)).await?;
    Ok(())
}

/// Removes every Foo and every Deployment, because no garbage collector runs.
pub(crate) async fn remove_all(client: &Client) -> Result<()> {
    for api in [foos(client), deployments(client)] {
        let deleted = api
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await;
        deleted.context("failed to delete a collection")?;
        let gone = || async {
            let left = api.list_metadata(&ListParams::default().limit(1)).await?;
            ensure!(left.items.is_empty(), "some objects are left");
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

/// Returns the Deployment that a controller creates for a Foo.
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

/// Returns a Deployment without an owner.
pub(crate) fn unowned_deployment(name: &str) -> Value {
    let no_owner = Created {
        name: name.to_owned(),
        uid: String::new(),
        version: String::new(),
    };
    let mut deployment = deployment(&no_owner);
    deployment["metadata"]["ownerReferences"] = Value::Null;
    deployment
}

/// Returns the status that a controller writes after it has created the Deployment.
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

/// Returns whether a Deployment is owned by a Foo.
pub(crate) fn is_owned(deployment: &DynamicObject) -> bool {
    let owners = deployment.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.kind == "Foo")
}

/// Returns whether the status of a Foo is up to date with its spec.
pub(crate) fn is_settled(foo: &DynamicObject) -> bool {
    let observed = foo.data["status"]["observedGeneration"].as_i64();
    observed.is_some() && observed == foo.metadata.generation
}

type Changes = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>;

/// A watch that counts the objects that satisfy a condition. When the apiserver ends the watch
/// because the client reads too slowly, it is restarted at the last received version.
pub(crate) struct ObjectWait {
    api: Api<DynamicObject>,
    /// The last version that was received.
    version: String,
    changes: Changes,
    is_done: fn(&DynamicObject) -> bool,
    done: HashSet<String>,
    count: usize,
}

impl ObjectWait {
    /// Starts the watch. Objects that already exist do not count unless they change.
    pub(crate) async fn begin(
        api: &Api<DynamicObject>,
        count: usize,
        is_done: fn(&DynamicObject) -> bool,
    ) -> Result<Self> {
        let now = api.list_metadata(&ListParams::default().limit(1)).await;
        let version = now
            .context("failed to list the objects to watch")?
            .metadata
            .resource_version;
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

    /// Waits until enough objects satisfy the condition, and returns when the watch received the
    /// last one.
    pub(crate) async fn reached(mut self, limit: Duration) -> Result<Instant> {
        let all = async {
            while self.done.len() < self.count {
                match self.changes.next().await {
                    Some(event) => self.handle_event(event.context("a watch failed")?)?,
                    None => self.changes = changes(&self.api, &self.version).await?,
                }
            }
            anyhow::Ok(Instant::now())
        };
        let outcome = timeout(limit, all).await;
        outcome.with_context(|| format!("only {} of {} were done after {limit:?}", self.done.len(), self.count))?
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
            WatchEvent::Error(status) => bail!("the apiserver rejected a watch: {}", status.message),
        }
        Ok(())
    }
}

async fn changes(api: &Api<DynamicObject>, version: &str) -> Result<Changes> {
    let changes = api.watch(&WatchParams::default(), version).await;
    Ok(Box::pin(changes.context("failed to start a watch")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_foo_is_settled_when_its_status_has_its_generation() {
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
    fn the_floor_creates_the_same_deployment_as_a_controller() {
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
