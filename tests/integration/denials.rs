//! Denials of an admission webhook whose codes look like conflicts.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use portreeve_api::conditions::ConditionStatus;
use portreeve_crontab::api::RUN_NOW;
use portreeve_testing::{ControlPlane, WebhookServer, eventually};
use serde_json::{Value, json};

use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    dynamic_client::DynamicClient,
    in_process::InProcess,
    jobs::Jobs,
    namespace::NamespaceFixture,
    object_builder::{config_map, reference},
    schedules::{Kind, next_minute},
};

const CONTROLLERS: &str = "--controllers=crontab,cronjob,foo,ttl-after-finished,garbagecollector";
const DENIED: &str = "admission webhook \"denials.example.com\" denied the request: frozen";

/// Returns the code of the denial of a request.
fn code(request: &Value) -> u16 {
    match (request["resource"]["resource"].as_str(), request["operation"].as_str()) {
        (Some("deployments"), _) => 410,
        (Some("configmaps"), _) if request["name"] == "invalid" => 422,
        _ => 409,
    }
}

/// Returns the rule of a webhook.
fn rule(group: &str, resource: &str, operations: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": operations})
}

/// Denies the creation of Jobs and Deployments, and the deletion of Jobs and ConfigMaps, in one
/// namespace.
struct Denials {
    /// The number of denied deletions of ConfigMaps.
    deletions: Arc<AtomicU64>,
    _server: WebhookServer,
}

impl Denials {
    async fn start(plane: &ControlPlane, fixture: &NamespaceFixture) -> Result<Self> {
        let deletions = Arc::<AtomicU64>::default();
        let counter = Arc::clone(&deletions);
        let server = WebhookServer::start(plane.authority(), move |review| {
            let request = &review["request"];
            if request["resource"]["resource"] == "configmaps" {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            let status = json!({"code": code(request), "message": "frozen"});
            let response = json!({"uid": request["uid"], "allowed": false, "status": status});
            Some(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
        })
        .await?;
        let ca = data_encoding::BASE64.encode(plane.authority().pem().as_bytes());
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": fixture.name()},
            "webhooks": [{
                "name": "denials.example.com",
                "clientConfig": {"url": server.url(), "caBundle": ca},
                "rules": [
                    rule("batch", "jobs", &["CREATE", "DELETE"]),
                    rule("apps", "deployments", &["CREATE"]),
                    rule("", "configmaps", &["DELETE"]),
                ],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.name()}},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        }))?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(plane.client()?);
        configurations.create(&PostParams::default(), &configuration).await?;
        let jobs = Jobs::of(fixture);
        eventually(LIMIT, "the webhook to deny the creation of a Job", || async {
            let created = jobs.create("probe", json!({"suspend": true})).await;
            let error = created.err().context("the probe was created")?;
            ensure!(format!("{error:#}").contains("frozen"), "{error:#}");
            anyhow::Ok(())
        })
        .await?;
        Ok(Self {
            deletions,
            _server: server,
        })
    }
}

/// Waits for the event about a denial.
async fn wait_for_event(fixture: &NamespaceFixture, object: &str, reason: &str) -> Result<()> {
    eventually(LIMIT, &format!("the event {reason} on {object}"), || async {
        let events = fixture.events_on(object).await?;
        let is_it = |note: Option<&str>| note.is_some_and(|note| note.contains(DENIED));
        let found = events
            .iter()
            .any(|event| event.reason.as_deref() == Some(reason) && is_it(event.note.as_deref()));
        ensure!(found, "{events:#?}");
        anyhow::Ok(())
    })
    .await
}

/// Creates a `CronJob` that replaces its Job, and the Job.
async fn create_schedule_with_running_job(fixture: &NamespaceFixture, jobs: &Jobs) -> Result<()> {
    let policy = json!({"concurrencyPolicy": "Replace"});
    let created = Kind::CronJob
        .create(&fixture.namespace, "replacing", "* * * * *", &policy)
        .await?;
    let mut owner = reference(&created);
    owner["controller"] = true.into();
    let uid = jobs.create("replaced", json!({})).await?.metadata.uid;
    let controlled = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    jobs.0.patch("replaced", &PatchParams::default(), &controlled).await?;
    let active = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "replaced",
        "namespace": fixture.name(), "uid": uid}]);
    let running = Patch::Merge(json!({"status": {"active": active}}));
    let schedules = Kind::CronJob.objects(&fixture.namespace);
    schedules
        .patch_status("replacing", &PatchParams::default(), &running)
        .await?;
    Ok(())
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the steps depend on each other")]
async fn denials_that_look_like_conflicts_are_reported_by_every_controller() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let fixture = NamespaceFixture::new(&plane, "denials").await?;
    let jobs = Jobs::of(&fixture);
    for name in ["expired", "probe"] {
        jobs.create(name, json!({"ttlSecondsAfterFinished": 0})).await?;
    }
    jobs.0.delete("probe", &kube::api::DeleteParams::background()).await?;
    let objects = DynamicClient::of(&fixture.namespace);
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "absent"});
    for name in ["conflict", "invalid"] {
        objects.create(config_map(name).owner(absent.clone())).await?;
    }
    create_schedule_with_running_job(&fixture, &jobs).await?;
    let denials = Denials::start(&plane, &fixture).await?;
    let clock = OffsetClock::new();
    jobs.end("expired", jiff::Timestamp::now(), true).await?;
    let flags = [CONTROLLERS, "--install-crds"];
    let daemon = InProcess::start_as(
        plane.kubeconfig(),
        Arc::new(clock.clone()),
        portreeve_cli::CONTROLLERS,
        &flags,
    )
    .await?;

    for name in ["conflict", "invalid"] {
        wait_for_event(&fixture, name, "GarbageCollectionRefused").await?;
    }
    // A conflict is tried again at once, ten times. A denial waits for its backoff.
    let deletions = denials.deletions.load(Ordering::Relaxed);
    let metrics = daemon.admin.metrics().await?;
    let conflicts = metrics.sum("gc_attempts_total", &[r#"result="conflict""#]);
    ensure!(conflicts == 0.0, "{conflicts} of {deletions} deletions");
    wait_for_event(&fixture, "expired", "FailedDelete").await?;

    fixture.create_foo("web", "web", 1).await?;
    let foo = fixture
        .wait_for_condition("web", "Ready", ConditionStatus::False)
        .await?;
    let status = json!(foo.status);
    ensure!(status["conditions"].to_string().contains("FailedCreate"), "{status}");
    wait_for_event(&fixture, "web", "FailedCreate").await?;

    let tab = Kind::CronTab
        .create(&fixture.namespace, "tab", "@yearly", &json!({}))
        .await?;
    let run_now = Patch::Merge(json!({"metadata": {"annotations": {RUN_NOW: "now"}}}));
    let tabs = Kind::CronTab.objects(&fixture.namespace);
    // The first status records the annotation as done, so the annotation comes after it.
    eventually(LIMIT, "the first status", || async {
        let found = tabs.get(&tab.name_any()).await?;
        found.data["status"]["conditions"]
            .is_array()
            .then_some(())
            .context("none")
    })
    .await?;
    tabs.patch("tab", &PatchParams::default(), &run_now).await?;
    let job = Kind::CronJob
        .create(&fixture.namespace, "job", "* * * * *", &json!({}))
        .await?;
    let created = job.metadata.creation_timestamp.context("no creation timestamp")?.0;
    clock.set(next_minute(created, 1));
    for name in ["tab", "job"] {
        wait_for_event(&fixture, name, "FailedCreate").await?;
    }
    wait_for_event(&fixture, "replacing", "FailedDelete").await?;
    eventually(LIMIT, "the CronTab not to be ready", || async {
        let found = tabs.get("tab").await?;
        let conditions = found.data["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        let is_false = ready.is_some_and(|ready| ready["status"] == "False" && ready["reason"] == "FailedCreate");
        ensure!(is_false, "{conditions:?}");
        anyhow::Ok(())
    })
    .await?;
    daemon.stop().await
}
