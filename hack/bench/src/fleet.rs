//! Many Deployments without owners: the memory of a controller that watches them, and the time to
//! list them.

use std::time::Instant;

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bench::Bench;
use crate::controller::START_LIMIT;
use crate::due;
use crate::foos::{self, ObjectWait, deployments, foos};
use crate::idle::{kibibytes, settled};
use crate::objects::{NAMESPACE, create_all, post};
use crate::plan::Step;
use crate::quiesce::wait_until_idle;
use crate::rows::{Measure, Row, Sample};

/// A control plane with many Deployments, which all subjects of a round share.
pub(crate) struct Fleet {
    round: u16,
    plane: ControlPlane,
}

impl Fleet {
    async fn create(bench: &Bench, round: u16) -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let client = due::client(&plane)?;
        foos::create_crds(&client).await?;
        let objects = (0..bench.options.count(Row::Deployments50000)).map(deployment);
        create_all(&deployments(&client), objects, &bench.progress).await?;
        Ok(Self { round, plane })
    }
}

/// Measures memory, and the time until a Foo gets its Deployment. A controller lists all
/// Deployments first, because one of them may already have the name that the Foo gives.
pub(crate) async fn measure(bench: &Bench, step: &Step, fleet: &mut Option<Fleet>) -> Result<Vec<Sample>> {
    if fleet.as_ref().is_none_or(|fleet| fleet.round != step.round) {
        *fleet = None;
        *fleet = Some(Fleet::create(bench, step.round).await?);
    }
    let Fleet { plane, round: _ } = fleet.as_ref().context("the fleet was not created")?;
    let client = due::client(plane)?;
    if step.subject.is_built() {
        // The subject may have to be built first.
        foos::peers(bench).await?;
    }
    let name = format!("waiting-for-{}", step.subject.name());
    post(&foos(&client), foos::foo(&name)).await?;
    wait_until_idle(plane, None).await?;
    let made = ObjectWait::begin(&deployments(&client), 1, foos::is_owned).await?;
    let mut watching = JoinSet::new();
    watching.spawn(made.reached(START_LIMIT));
    let started = Instant::now();
    let controller = foos::start(bench, step.subject, plane).await?;
    let reached = async { watching.join_next().await.context("no watch was started")?? };
    let took = controller.guard(reached).await?.saturating_duration_since(started);
    let memory = settled(controller.pid(), started + bench.options.rest());
    let memory = controller.guard(memory).await?;
    drop(controller);
    for api in [foos(&client), deployments(&client)] {
        let deleted = api.delete(&name, &kube::api::DeleteParams::default()).await;
        deleted.with_context(|| format!("failed to delete {name}"))?;
    }
    let values = [
        (Measure::StartToWork, took.as_secs_f64()),
        (Measure::Resident, kibibytes(memory.resident)),
        (Measure::Peak, kibibytes(memory.peak)),
    ];
    let sample = |(measure, value)| Sample {
        row: Row::Deployments50000,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}

/// Returns a typical Deployment: labels, annotations, two containers with probes, environment
/// variables and limits.
fn deployment(index: usize) -> Value {
    let name = format!("application-{index:05}");
    let labels = json!({
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/version": "1.2.3",
        "team": format!("team-{:03}", index % 100),
    });
    let probe =
        |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 5, "failureThreshold": 3});
    let setting =
        |index: usize| json!({"name": format!("SETTING_{index}"), "value": format!("the value of setting {index}")});
    let container = |name: &str, settings: usize| {
        json!({
            "name": name,
            "image": format!("registry.example.com/team/{name}:1.2.3"),
            "ports": [{"name": "http", "containerPort": 8080}],
            "env": (0..settings).map(setting).collect::<Vec<_>>(),
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "livenessProbe": probe("/livez"),
            "readinessProbe": probe("/readyz"),
            "volumeMounts": [{"name": "settings", "mountPath": "/etc/settings"}],
        })
    };
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": labels,
            "annotations": {
                "meta.helm.sh/release-name": name,
                "meta.helm.sh/release-namespace": NAMESPACE,
                "deployment.kubernetes.io/revision": "1",
            },
        },
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container("web", 8), container("proxy", 3)],
                    "volumes": [{"name": "settings", "configMap": {"name": name}}],
                },
            },
        },
    })
}
