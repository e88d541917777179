//! The Foos, Deployments and Events of a namespace.

use std::{future::Future, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use portreeve_api::{
    Foo, FooSpec,
    conditions::{self, ConditionStatus},
};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::LIMIT;

/// A namespace, with the rights of an administrator.
#[derive(Clone)]
pub(crate) struct NamespaceFixture {
    pub(crate) namespace: Namespace,
}

impl NamespaceFixture {
    pub(crate) async fn new(plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        Ok(Self { namespace })
    }

    pub(crate) fn name(&self) -> &str {
        self.namespace.name()
    }

    pub(crate) fn foos(&self) -> Api<Foo> {
        self.namespace.api()
    }

    pub(crate) fn deployments(&self) -> Api<Deployment> {
        self.namespace.api()
    }

    /// Creates a Foo for a Deployment with this name and number of replicas.
    pub(crate) async fn create_foo(&self, name: &str, deployment: &str, replicas: i32) -> Result<Foo> {
        let spec = FooSpec {
            deployment_name: deployment.to_owned(),
            replicas,
        };
        let created = self.foos().create(&PostParams::default(), &Foo::new(name, spec)).await;
        created.with_context(|| format!("failed to create Foo {name}"))
    }

    /// Creates a Foo whose Deployment has the same name, and waits until the Foo is ready.
    pub(crate) async fn ready_foo(&self, name: &str, replicas: i32) -> Result<(Foo, Deployment)> {
        self.create_foo(name, name, replicas).await?;
        let foo = self.wait_for_condition(name, "Ready", ConditionStatus::True).await?;
        let deployment = self.deployments().get(name).await?;
        Ok((foo, deployment))
    }

    pub(crate) async fn merge_foo(&self, name: &str, patch: Value) -> Result<Foo> {
        let patched = self
            .foos()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("failed to patch Foo {name}"))
    }

    pub(crate) async fn merge_deployment(&self, name: &str, patch: Value) -> Result<Deployment> {
        let patched = self
            .deployments()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        patched.with_context(|| format!("failed to patch Deployment {name}"))
    }

    /// Creates a Deployment that belongs to no Foo.
    pub(crate) async fn create_foreign(&self, name: &str) -> Result<Deployment> {
        let deployment = serde_json::from_value(unrelated_deployment(name))?;
        let created = self.deployments().create(&PostParams::default(), &deployment).await;
        created.with_context(|| format!("failed to create Deployment {name}"))
    }

    pub(crate) async fn delete_deployment(&self, name: &str) -> Result<()> {
        let deleted = self
            .deployments()
            .delete(name, &kube::api::DeleteParams::default())
            .await;
        deleted.with_context(|| format!("failed to delete Deployment {name}"))?;
        Ok(())
    }

    /// Waits until a Deployment satisfies `is_wanted`, and returns it.
    pub(crate) async fn wait_for_deployment(
        &self,
        name: &str,
        what: &str,
        is_wanted: impl Fn(&Deployment) -> bool,
    ) -> Result<Deployment> {
        let deployments = self.deployments();
        eventually(LIMIT, &format!("Deployment {name}: {what}"), || async {
            let found = deployments.get_opt(name).await?.context("it does not exist")?;
            ensure!(is_wanted(&found), "it is {}", json!(found.spec));
            anyhow::Ok(found)
        })
        .await
    }

    /// Waits until a Deployment does not exist any more.
    pub(crate) async fn wait_for_no_deployment(&self, name: &str) -> Result<()> {
        let deployments = self.deployments();
        eventually(LIMIT, &format!("Deployment {name} to be gone"), || async {
            ensure!(deployments.get_opt(name).await?.is_none(), "it still exists");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until a Foo satisfies `is_wanted`, and returns it.
    pub(crate) async fn wait_for_foo(&self, name: &str, what: &str, is_wanted: impl Fn(&Foo) -> bool) -> Result<Foo> {
        let foos = self.foos();
        eventually(LIMIT, &format!("Foo {name}: {what}"), || async {
            let found = foos.get(name).await?;
            ensure!(is_wanted(&found), "its status is {}", json!(found.status));
            anyhow::Ok(found)
        })
        .await
    }

    /// Waits until the status of a Foo has a condition with this status for the current generation.
    pub(crate) async fn wait_for_condition(&self, name: &str, type_: &str, truth: ConditionStatus) -> Result<Foo> {
        let what = format!("its condition {type_} to be {truth:?}");
        self.wait_for_foo(name, &what, |foo| {
            let status = foo
                .status
                .as_ref()
                .filter(|status| Some(status.observed_generation) == foo.metadata.generation);
            status
                .and_then(|status| conditions::find_status_condition(&status.conditions, type_))
                .is_some_and(|found| found.status == truth)
        })
        .await
    }

    /// Returns the Events on a Foo, in the order in which they were written.
    pub(crate) async fn events_on(&self, foo: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = self.namespace.api();
        let mut found = events.list(&ListParams::default()).await?.items;
        found.retain(|event| {
            let regarding = event.regarding.as_ref();
            regarding.and_then(|regarding| regarding.name.as_deref()) == Some(foo)
        });
        found.sort_by_key(|event| event.resource_version().and_then(|version| version.parse::<u64>().ok()));
        Ok(found)
    }

    /// Waits until the Events on a Foo have exactly these reasons, without repetitions.
    ///
    /// Events are written in the order of the decisions. When the last event exists, all earlier
    /// events exist too.
    pub(crate) async fn wait_for_events(&self, foo: &str, reasons: &[&str]) -> Result<Vec<Event>> {
        eventually(LIMIT, &format!("the events {reasons:?} on Foo {foo}"), || async {
            let events = self.events_on(foo).await?;
            let found: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
            ensure!(found == reasons, "{found:?}");
            let repeated = events.iter().find(|event| event.series.is_some());
            ensure!(repeated.is_none(), "repeated: {repeated:?}");
            Ok(events)
        })
        .await
    }
}

/// Returns the manifest of a Deployment that matches no Foo's spec.
pub(crate) fn unrelated_deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 7,
            "selector": {"matchLabels": {"whose": "not-foos"}},
            "template": {
                "metadata": {"labels": {"whose": "not-foos"}},
                "spec": {"containers": [{"name": "web", "image": "other:1"}]},
            },
        },
    })
}

/// Returns the number of replicas in a Deployment's spec.
pub(crate) fn replicas(deployment: &Deployment) -> Option<i32> {
    deployment.spec.as_ref().and_then(|spec| spec.replicas)
}

/// Returns the image of a Deployment's first container.
pub(crate) fn image(deployment: &Deployment) -> Option<&str> {
    let template = deployment.spec.as_ref()?.template.spec.as_ref()?;
    template.containers.first()?.image.as_deref()
}

/// Awaits `repair`, prints its duration, and ensures that it took less than 15 s.
///
/// The target is one second. The limit is larger because tests run on busy machines.
pub(crate) async fn in_time<T>(what: &str, repair: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    let done = repair.await?;
    let took = started.elapsed();
    println!("{what}: {} ms", took.as_millis());
    ensure!(took < Duration::from_secs(15), "{what} took {took:?}");
    Ok(done)
}
