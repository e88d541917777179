//! A controller for Foos on kube-runtime's `Controller`, written as its documentation recommends,
//! without a client-side rate limit.

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const FIELD_MANAGER: &str = "sample-controller";
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The desired state.
#[derive(Clone, CustomResource, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    namespaced,
    status = "FooStatus"
)]
#[serde(rename_all = "camelCase")]
struct FooSpec {
    deployment_name: String,
    replicas: i32,
}

/// The observed state.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FooStatus {
    #[serde(default)]
    available_replicas: i32,
    #[serde(default)]
    observed_generation: i64,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("a Foo has no namespace")]
    Namespace,
    #[error("failed to write")]
    Write(#[source] kube::Error),
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::new("info");
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .init();
    let workers = env::args().nth(1).context("give the number of workers")?.parse()?;
    let client = Client::try_default().await.context("failed to build a client")?;
    let foos = Api::<Foo>::all(client.clone());
    let deployments = Api::<Deployment>::all(client.clone());
    Controller::new(foos, watcher::Config::default())
        .owns(deployments, watcher::Config::default())
        .with_config(Config::default().concurrency(workers))
        .shutdown_on_signal()
        .run(reconcile, on_error, Arc::new(client))
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                tracing::warn!("{error}");
            }
        })
        .await;
    Ok(())
}

/// Applies the Deployment of a Foo, and updates the Foo's status.
async fn reconcile(foo: Arc<Foo>, client: Arc<Client>) -> Result<Action, Error> {
    let namespace = foo.namespace().ok_or(Error::Namespace)?;
    let deployments = Api::<Deployment>::namespaced(client.as_ref().clone(), &namespace);
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    let applied = deployments
        .patch(&foo.spec.deployment_name, &apply, &Patch::Apply(desired(&foo)))
        .await
        .map_err(Error::Write)?;
    let status = status(&foo, &applied);
    if foo.status.as_ref() != Some(&status) {
        let foos = Api::<Foo>::namespaced(client.as_ref().clone(), &namespace);
        let patch = Patch::Merge(json!({"status": status}));
        foos.patch_status(&foo.name_any(), &PatchParams::default(), &patch)
            .await
            .map_err(Error::Write)?;
    }
    Ok(Action::await_change())
}

fn on_error(_foo: Arc<Foo>, error: &Error, _client: Arc<Client>) -> Action {
    tracing::warn!("{error}");
    Action::requeue(RETRY_DELAY)
}

fn desired(foo: &Foo) -> Deployment {
    let labels = BTreeMap::from([
        ("app".to_owned(), "nginx".to_owned()),
        ("controller".to_owned(), foo.name_any()),
    ]);
    Deployment {
        metadata: ObjectMeta {
            name: Some(foo.spec.deployment_name.clone()),
            labels: Some(labels.clone()),
            owner_references: Some(foo.controller_owner_ref(&()).into_iter().collect()),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(foo.spec.replicas),
            selector: LabelSelector {
                match_labels: Some(labels.clone()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    containers: vec![Container {
                        name: "nginx".to_owned(),
                        image: Some("nginx:latest".to_owned()),
                        ..Container::default()
                    }],
                    ..PodSpec::default()
                }),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

/// Returns the desired status. An existing Ready condition is kept with its transition time.
fn status(foo: &Foo, deployment: &Deployment) -> FooStatus {
    let generation = foo.metadata.generation;
    let mut conditions = foo
        .status
        .as_ref()
        .map(|status| status.conditions.clone())
        .unwrap_or_default();
    if !conditions.iter().any(|condition| condition.type_ == "Ready") {
        conditions.push(Condition {
            last_transition_time: Time(Timestamp::now()),
            message: String::new(),
            observed_generation: generation,
            reason: "Synced".to_owned(),
            status: "True".to_owned(),
            type_: "Ready".to_owned(),
        });
    }
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
    FooStatus {
        available_replicas: available.unwrap_or_default(),
        observed_generation: generation.unwrap_or_default(),
        conditions,
    }
}
