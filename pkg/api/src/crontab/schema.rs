//! The structural schema of CronTabs, generated from the types and adapted to the apiserver's
//! requirements.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Value, json};

use super::{CronTabSpec, CronTabStatus, pod};
use crate::structural::schema_of;

/// Returns the schema of a whole CronTab.
#[expect(
    clippy::expect_used,
    reason = "the value is constant, and the tests of this crate call this function"
)]
pub(super) fn root() -> JSONSchemaProps {
    serde_json::from_value(root_value()).expect("schemars generates a JSON schema")
}

fn root_value() -> Value {
    let mut spec = schema_of::<CronTabSpec>(&["nullable", "title"]);
    if let Some(template) = spec.pointer_mut("/properties/jobTemplate") {
        pod::adapt_to_job_template(template);
    }
    // The controller writes every field of the status. With defaults, a status that the controller
    // has not written yet would look complete.
    let status = schema_of::<CronTabStatus>(&["default", "nullable", "title"]);
    json!({
        "description": "CronTab runs a pod on a schedule, with one Job per run.",
        "type": "object",
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": [{
            "rule": "size(self.metadata.name) <= 52",
            "message": "metadata.name can have at most 52 characters, because it is part of the names of its Jobs: choose a shorter one",
        }],
    })
}
