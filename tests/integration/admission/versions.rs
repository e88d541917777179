//! The definition and the policies of v2. Every object is sent in a dry run, which needs no
//! conversion.

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, eventually};
use serde_json::{Value, json};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::{
    environment::{Written, create, dry_run, install_definitions, install_policies, post_to},
    rows,
};
use crate::fixtures::{LIMIT, object_builder::with_fields};

/// Serves and stores v2, so that a response without a conversion has all fields of v2.
async fn store_v2(plane: &ControlPlane) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let stored = Patch::Json::<()>(serde_json::from_value(json!([
        {"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true},
        {"op": "replace", "path": "/spec/versions/1/served", "value": true},
    ]))?);
    definitions
        .patch(&CRONTABS.crd_name(), &PatchParams::default(), &stored)
        .await?;
    Ok(())
}

/// Starts a control plane that stores v2, with a namespace.
async fn control_plane(prefix: &str) -> Result<(PooledPlane, Namespace)> {
    let plane = ControlPlane::pooled().await?;
    install_definitions(&plane.client()?).await?;
    store_v2(&plane).await?;
    let namespace = plane.namespace(prefix).await?;
    eventually(LIMIT, "v2 to be served", || async {
        send(&namespace, &v2(&json!({}))).await??;
        anyhow::Ok(())
    })
    .await?;
    Ok((plane, namespace))
}

/// Returns a CronTab of v2 with these fields of the spec.
pub(super) fn v2(spec: &Value) -> Value {
    let base = json!({
        "schedules": [{"name": "default", "schedule": "@daily"}],
        "template": {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "example.com/a:1"}]}}}},
    });
    let spec = with_fields(base, spec.clone());
    json!({"apiVersion": "stable.example.com/v2", "kind": "CronTab", "metadata": {"name": "a"}, "spec": spec})
}

async fn send(namespace: &Namespace, object: &Value) -> Result<Written> {
    let path = CRONTABS_V2.collection_path(Some(namespace.name()));
    post_to(namespace.client(), &path, object, "dryRun=All&fieldValidation=Strict").await
}

/// Sends an object, and returns the message of the rejection.
async fn rejection(namespace: &Namespace, object: &Value) -> Result<String> {
    let status = send(namespace, object).await?.err();
    Ok(status.with_context(|| format!("accepted: {object}"))?.message)
}

/// Returns fields that the definition rejects, with a part of the message.
pub(super) fn rejected() -> Vec<(Value, &'static str)> {
    let entry = |fields: Value| json!([{"name": "default", "schedule": "@daily"}, fields]);
    vec![
        (json!({"schedules": []}), "spec.schedules: Invalid value"),
        (
            json!({"schedules": [{"name": "a", "schedule": "@daily"}]}),
            "with the name default",
        ),
        (
            json!({"schedules": entry(json!({"name": "default", "schedule": "@hourly"}))}),
            "spec.schedules[1]: Duplicate value",
        ),
        (
            json!({"schedules": entry(json!({"name": "A_", "schedule": "@hourly"}))}),
            "spec.schedules[1].name: Invalid value",
        ),
        (
            json!({"schedules": entry(json!({"name": "a"}))}),
            "spec.schedules[1].schedule: Required value",
        ),
        (
            json!({"schedules": entry(json!({"name": "a", "schedule": "TZ=UTC @daily"}))}),
            "use timeZone field instead",
        ),
        (
            json!({"schedules": entry(json!({"name": "a", "schedule": "@daily", "dstPolicy": "x"}))}),
            "spec.schedules[1].dstPolicy: Unsupported value",
        ),
        (
            json!({"runPolicy": {"concurrencyPolicy": "x"}}),
            "spec.runPolicy.concurrencyPolicy: Unsupported value",
        ),
        (
            json!({"runPolicy": {"startingDeadlineSeconds": -1}}),
            "spec.runPolicy.startingDeadlineSeconds: Invalid value",
        ),
        (
            json!({"template": {"spec": {}}}),
            "spec.template.spec.template: Required value",
        ),
        (
            json!({"template": {"spec": {"template": {"spec": {"containers": []}}}}}),
            "spec.template.spec.template.spec.containers",
        ),
        (
            json!({"template": {"spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "a"}]}}}}}),
            "unknown field",
        ),
        (json!({"schedule": "@daily"}), "unknown field"),
    ]
}

#[tokio::test]
async fn the_definition_of_v2_rejects_what_can_never_work() -> Result<()> {
    let (_plane, namespace) = control_plane("bad").await?;
    for (spec, expected) in rejected() {
        let message = rejection(&namespace, &v2(&spec)).await?;
        ensure!(message.contains(expected), "{spec}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn limits_and_defaults_apply_to_every_schedule_of_v2() -> Result<()> {
    let (plane, namespace) = control_plane("limits").await?;
    install_policies(&plane.client()?).await?;
    let limits = json!({"images": ["example.com/"], "timeZones": ["UTC", "Europe/Zurich"], "allowEvery": false});
    let defaults = json!({"timeZone": "Europe/Zurich", "backoffLimit": 2, "startingDeadlineSeconds": 60});
    let policy = rows::policy("team", &json!({"limits": limits, "defaults": defaults}));
    create(namespace.client(), namespace.name(), &policy).await??;

    let schedules = |fields: Value| {
        let other = with_fields(json!({"name": "other", "schedule": "@hourly"}), fields);
        v2(&json!({"schedules": [{"name": "default", "schedule": "@daily", "timeZone": "UTC"}, other]}))
    };
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "evil:1"}]}}}});
    for (object, expected) in [
        (
            schedules(json!({"timeZone": "Europe/Berlin"})),
            "spec.schedules[other].timeZone: the time zone \"Europe/Berlin\" is not allowed by CronTabPolicy",
        ),
        (
            schedules(json!({"schedule": "@every 90m"})),
            "spec.schedules[other].schedule: \"@every 90m\" is not allowed by CronTabPolicy",
        ),
        (
            v2(&json!({"template": image})),
            "spec.template.spec.template.spec.containers[0].image: the image \"evil:1\" is not allowed",
        ),
    ] {
        eventually(LIMIT, "the limit to be enforced", || async {
            let message = rejection(&namespace, &object).await?;
            ensure!(message.contains(expected), "{message}");
            anyhow::Ok(())
        })
        .await?;
    }
    eventually(LIMIT, "the defaults to be set", || async {
        let created = send(&namespace, &schedules(json!({}))).await??;
        let spec = &created["spec"];
        ensure!(spec["schedules"][0]["timeZone"] == "UTC", "{created:#}");
        ensure!(spec["schedules"][1]["timeZone"] == "Europe/Zurich", "{created:#}");
        ensure!(spec["schedules"][1]["schedule"] == "@hourly", "{created:#}");
        ensure!(spec["runPolicy"]["startingDeadlineSeconds"] == 60, "{created:#}");
        ensure!(spec["template"]["spec"]["backoffLimit"] == 2, "{created:#}");
        anyhow::Ok(())
    })
    .await?;
    // The annotation of v1 cannot evade the limits.
    let mut hidden = rows::crontab("hidden", json!({"timeZone": "UTC"}));
    let others = json!({"spec": {"schedules": [{"name": "x", "schedule": "@every 1m"}]}}).to_string();
    hidden["metadata"]["annotations"] = json!({"stable.example.com/v2": others});
    let status = dry_run(namespace.client(), namespace.name(), &hidden).await?.err();
    let message = status.context("the annotation was accepted")?.message;
    ensure!(
        message.contains("metadata.annotations[stable.example.com/v2]"),
        "{message}"
    );
    Ok(())
}
