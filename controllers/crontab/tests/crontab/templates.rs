//! Compares `jobTemplate` with the Job API: both accept and reject the same templates.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use http::Method;
use kube::{
    CustomResourceExt,
    api::{Patch, PatchParams},
};
use portreeve_api::Resource;
use portreeve_crontab::api::CronTab;
use serde_json::{Value, json};

use crate::{fixture, spec};

const JOBS: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");

fn container(fields: Value) -> Value {
    let mut container = json!({"name": "a", "image": "a"});
    if let (Value::Object(container), Value::Object(fields)) = (&mut container, fields) {
        container.extend(fields);
    }
    json!({"containers": [container]})
}

fn cpu(quantity: &Value) -> Value {
    container(json!({"resources": {"limits": {"cpu": quantity}}}))
}

fn probe(port: &Value) -> Value {
    container(json!({"livenessProbe": {"httpGet": {"port": port}}, "ports": [{"name": "http", "containerPort": 80}]}))
}

fn env(variable: &Value) -> Value {
    container(json!({"env": [variable]}))
}

fn volume(volume: &Value) -> Value {
    let mut template = container(json!({}));
    template["volumes"] = json!([volume]);
    template
}

fn pull_secret(reference: &Value) -> Value {
    let mut template = container(json!({}));
    template["imagePullSecrets"] = json!([reference]);
    template
}

fn claim(metadata: &Value) -> Value {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1_000_000}}});
    volume(&json!({"name": "a", "ephemeral": {"volumeClaimTemplate": {"metadata": metadata, "spec": spec}}}))
}

/// Checks that both APIs accept each template that is valid and reject all others.
async fn check(prefix: &str, table: impl IntoIterator<Item = (bool, Value)>) -> Result<()> {
    let fixture = fixture(prefix).await?;
    for (index, (is_valid, template)) in table.into_iter().enumerate() {
        let fields = spec(json!({"jobTemplate": template}));
        let ours = is_accepted(fixture.create(&format!("case-{index}"), &fields).await)?;
        ensure!(ours == is_valid, "{template} as a CronTab");
        // The restart policy of a Pod defaults to Always, which a Job must not have.
        let mut pod = template.clone();
        if pod.get("restartPolicy").is_none() {
            pod["restartPolicy"] = "Never".into();
        }
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "a"},
            "spec": {"template": {"spec": pod}},
        });
        let theirs = is_accepted(fixture.post(&JOBS, "fieldValidation=Strict&dryRun=All", &job).await)?;
        ensure!(theirs == is_valid, "{template} as a Job");
    }
    Ok(())
}

fn is_accepted(result: Result<Value, kube::Error>) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if [400, 422].contains(&status.code) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn quantities_are_accepted_as_in_a_job() -> Result<()> {
    let good = json!([
        1, 0.5, "500m", "0.5", ".5", "5.", "1e3", "1E-3", "1E", "+1Ki", "100n", "1u"
    ]);
    let bad = json!(["half", "1 Gi", "1gb", "1KI", "1m1", "", true, false, {}, {"a": 1}, [], [1]]);
    let list = |values: Value, is_valid: bool| {
        values
            .as_array()
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .map(move |it| (is_valid, cpu(&it)))
    };
    check("quantities", list(good, true).chain(list(bad, false))).await
}

#[tokio::test]
async fn ports_are_accepted_as_in_a_job() -> Result<()> {
    let good = [json!(80), json!("http")].map(|port| (true, probe(&port)));
    let bad = [json!(0.5), json!(true), json!({}), json!([])].map(|port| (false, probe(&port)));
    check("ports", good.into_iter().chain(bad)).await
}

#[tokio::test]
async fn other_fields_are_accepted_as_in_a_job() -> Result<()> {
    let divided = json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}});
    let nothing = json!({"command": null, "env": null, "resources": {"limits": null}});
    let table = [
        (true, container(json!({}))),
        (true, container(nothing)),
        (false, container(json!({"ports": [{"name": "a"}]}))),
        (true, env(&json!({"name": "a", "value": null}))),
        (true, env(&json!({"name": "a", "valueFrom": divided}))),
        (false, env(&json!({"value": "a"}))),
        (false, env(&json!({"name": "a", "value": 1}))),
        (true, volume(&json!({"name": "a", "emptyDir": {}}))),
        (true, volume(&json!({"name": "a", "emptyDir": {"sizeLimit": "1Gi"}}))),
        (true, volume(&json!({"name": "a", "emptyDir": {"sizeLimit": null}}))),
        (false, volume(&json!({"emptyDir": {}}))),
        (false, volume(&json!({"name": "a", "configMap": {}}))),
        (
            false,
            env(&json!({"name": "a", "valueFrom": {"secretKeyRef": {"key": "a"}}})),
        ),
        (false, container(json!({"envFrom": [{"configMapRef": {}}]}))),
        (true, pull_secret(&json!({"name": "a"}))),
        (true, pull_secret(&json!({"name": null}))),
        (true, claim(&json!({}))),
        (true, claim(&json!({"labels": {"a": "b"}, "annotations": {"a": "b"}}))),
        (false, claim(&json!({"name": "a"}))),
    ];
    check("fields", table).await
}

#[tokio::test]
async fn fractional_quantity_is_accepted_by_server_side_apply() -> Result<()> {
    let fixture = fixture("applied").await?;
    let manifest = |quantity: &Value| {
        json!({
            "apiVersion": "stable.example.com/v1",
            "kind": "CronTab",
            "metadata": {"name": "a"},
            "spec": spec(json!({"jobTemplate": cpu(quantity)})),
        })
    };
    let options = PatchParams::apply("a-user");
    for quantity in [json!(0.5), json!("250m"), json!(2)] {
        let patch = Patch::Apply(manifest(&quantity));
        let applied = json!(fixture.crontabs().patch("a", &options, &patch).await?);
        let stored = &applied["spec"]["jobTemplate"]["containers"][0]["resources"]["limits"]["cpu"];
        let text = quantity
            .as_str()
            .map_or_else(|| quantity.to_string(), ToOwned::to_owned);
        ensure!(stored == &json!(text), "{applied:#}");
    }
    Ok(())
}

#[tokio::test]
async fn restart_policy_defaults_to_never() -> Result<()> {
    let fixture = fixture("restarts").await?;
    let mut nothing = container(json!({}));
    nothing["restartPolicy"] = Value::Null;
    for (name, template) in [("a", container(json!({}))), ("null", nothing)] {
        let created = fixture.create(name, &spec(json!({"jobTemplate": template}))).await?;
        ensure!(
            created["spec"]["jobTemplate"]["restartPolicy"] == "Never",
            "{created:#}"
        );
    }
    let mut sidecar = container(json!({}));
    sidecar["restartPolicy"] = "OnFailure".into();
    sidecar["initContainers"] = json!([{"name": "b", "image": "b", "restartPolicy": "Always"}]);
    let created = fixture.create("b", &spec(json!({"jobTemplate": sidecar}))).await?;
    ensure!(created["spec"]["jobTemplate"] == sidecar, "{created:#}");
    Ok(())
}

/// Collects path, type, format and required fields of all nested schemas. `schemas` resolves the
/// references in the apiserver's schema.
fn outline(schema: &Value, schemas: &Value, path: &str, found: &mut BTreeMap<String, String>) {
    let referred = schema["allOf"][0]["$ref"].as_str().or(schema["$ref"].as_str());
    if let Some(name) = referred.and_then(|reference| reference.rsplit('/').next()) {
        return outline(&schemas[name], schemas, path, found);
    }
    let is_untyped = schema.get("x-kubernetes-int-or-string").is_some()
        || schema.get("x-kubernetes-preserve-unknown-fields").is_some()
        || schema.get("oneOf").is_some();
    let list = schema["required"].as_array().into_iter().flatten();
    let mut required: BTreeSet<&str> = list.filter_map(Value::as_str).collect();
    // The name of a reference is required, except for image pull secrets. The apiserver checks this
    // in its validation and not by its schema.
    if schema["properties"]["name"]["default"] == "" && path != ".imagePullSecrets[]" {
        required.insert("name");
    }
    let what = if is_untyped {
        "either".to_owned()
    } else {
        format!("{} {} {required:?}", schema["type"], schema["format"])
    };
    found.insert(path.to_owned(), what);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        outline(property, schemas, &format!("{path}.{name}"), found);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(inner) {
            outline(inner, schemas, &format!("{path}[]"), found);
        }
    }
}

/// The fields that Kubernetes 1.37 has added. The definition follows `k8s-openapi`, which has those
/// of 1.36.
const NEWER: [&str; 7] = [
    ".bindMountOptions",
    ".defaultUser",
    ".emptyDir.mode",
    ".evictionResponders",
    ".grpc.mode",
    ".httpGet.protocol",
    ".user",
];

/// Returns which of [`NEWER`] this is, or contains it.
fn newer(path: &str) -> Option<&'static str> {
    let is_it = |field: &&str| path.split("[]").any(|part| part.ends_with(*field));
    NEWER.into_iter().find(is_it)
}

#[tokio::test]
async fn fields_match_the_pod_spec_of_the_apiserver() -> Result<()> {
    let fixture = fixture("outline").await?;
    let document = fixture
        .request(Method::GET, "/openapi/v3/api/v1", "application/json", None)
        .await?;
    let schemas = &document["components"]["schemas"];
    let pod = schemas
        .get("io.k8s.api.core.v1.PodSpec")
        .context("no schema of PodSpec")?;
    let mut theirs = BTreeMap::new();
    outline(pod, schemas, "", &mut theirs);
    let definition = json!(CronTab::crd());
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/jobTemplate";
    let mut ours = BTreeMap::new();
    outline(
        definition.pointer(path).context("no template")?,
        &Value::Null,
        "",
        &mut ours,
    );

    // The two kinds of fields that no template may set.
    let left_out = |path: &str| {
        path.starts_with(".ephemeralContainers[]")
            || path.starts_with(".volumes[].ephemeral.volumeClaimTemplate.metadata.")
    };
    ours.retain(|path, _| !left_out(path));
    theirs.retain(|path, _| !left_out(path));
    let mut left_out = BTreeSet::new();
    theirs.retain(|path, _| {
        let newer = newer(path).filter(|_| !ours.contains_key(path));
        left_out.extend(newer);
        newer.is_none()
    });
    ensure!(left_out.len() == NEWER.len(), "only {left_out:?} are missing");
    let differences = theirs.iter().filter(|(path, what)| ours.get(*path) != Some(what));
    let differences: Vec<String> = differences
        .map(|(path, what)| format!("{path}: {:?} instead of {what}", ours.get(path)))
        .collect();
    ensure!(differences.is_empty(), "{differences:#?}");
    ensure!(ours.len() == theirs.len(), "there are more fields than a PodSpec has");
    Ok(())
}
