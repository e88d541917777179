//! The structural schema of CronTabs, generated from the types and adapted to the apiserver's
//! requirements.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Value, json};

use crate::api::structural::{schema_of, visit_schemas};

use super::{
    CronTabSpec, CronTabStatus, pod,
    v2::{CronTabV2Spec, CronTabV2Status},
};

/// The fields of a Job template's `spec` that the Jobs of a CronTab cannot have: the apiserver
/// generates the selector.
const UNSUPPORTED_JOB_FIELDS: [&str; 2] = ["manualSelector", "selector"];

/// Returns the schema of a whole CronTab in v1.
#[expect(
    clippy::expect_used,
    reason = "the value is constant, and the tests of this crate call this function"
)]
pub(super) fn root() -> JSONSchemaProps {
    serde_json::from_value(root_value()).expect("schemars generates a JSON schema")
}

/// Returns the schema of a whole CronTab in v2.
#[expect(
    clippy::expect_used,
    reason = "the value is constant, and the tests of this crate call this function"
)]
pub(super) fn root_2() -> JSONSchemaProps {
    let mut spec = schema_of::<CronTabV2Spec>(&["nullable", "title"]);
    if let Some(template) = spec.pointer_mut("/properties/template") {
        adapt_job_template(template);
    }
    let root = object(
        "CronTab runs a Job on one or more schedules, with one Job per run.",
        &spec,
        &schema_of::<CronTabV2Status>(&["default", "nullable", "title"]),
    );
    serde_json::from_value(root).expect("schemars generates a JSON schema")
}

/// Adapts the schema of a Job template, with its metadata and that of its Pods.
fn adapt_job_template(template: &mut Value) {
    pod::shorten_descriptions(template);
    template["description"] = "Specifies the Job that each run creates.".into();
    template["required"] = json!(["spec"]);
    keep_labels_and_annotations(&mut template["properties"]["metadata"]);
    let job = &mut template["properties"]["spec"]["properties"];
    if let Some(fields) = job.as_object_mut() {
        fields.retain(|name, _| !UNSUPPORTED_JOB_FIELDS.contains(&&**name));
    }
    for (field, min) in [
        ("backoffLimit", 0),
        ("activeDeadlineSeconds", 1),
        ("ttlSecondsAfterFinished", 0),
    ] {
        job[field]["minimum"] = min.into();
    }
    keep_labels_and_annotations(&mut job["template"]["properties"]["metadata"]);
    job["template"]["required"] = json!(["spec"]);
    let pod = &mut job["template"]["properties"]["spec"];
    pod::adapt_to_job_template(pod);
    // The schema of v1 describes the same fields, and client-side apply limits the size of the CRD.
    visit_schemas("", pod, &mut |_, members| drop(members.remove("description")));
    pod["description"] = "Specifies the pod, with the fields of .spec.jobTemplate in v1.".into();
}

/// Keeps the metadata that a template may have.
fn keep_labels_and_annotations(metadata: &mut Value) {
    if let Some(fields) = metadata["properties"].as_object_mut() {
        fields.retain(|name, _| ["annotations", "labels"].contains(&&**name));
    }
}

fn root_value() -> Value {
    let mut spec = schema_of::<CronTabSpec>(&["nullable", "title"]);
    if let Some(template) = spec.pointer_mut("/properties/jobTemplate") {
        pod::adapt_to_job_template(template);
    }
    // The controller writes every field of the status. With defaults, a status that the controller
    // has not written yet would look complete.
    let status = schema_of::<CronTabStatus>(&["default", "nullable", "title"]);
    object(
        "CronTab runs a pod on a schedule, with one Job per run.",
        &spec,
        &status,
    )
}

fn object(description: &str, spec: &Value, status: &Value) -> Value {
    json!({
        "description": description,
        "type": "object",
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": [{
            "rule": "size(self.metadata.name) <= 52",
            "message": "metadata.name can have at most 52 characters, because it is part of the names of its Jobs: choose a shorter one",
        }],
    })
}
