//! The structural schema of CronTabs, generated from the types and adapted to the apiserver's
//! requirements.
//!
//! No field is nullable. The apiserver drops a null in an optional field, and nulls in a patch of
//! the status remove fields.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::core::schema::StructuralSchemaRewriter;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::{CronTabSpec, CronTabStatus, pod, visit::visit_schemas};

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
    let mut schema = json!({
        "description": "CronTab runs a pod on a schedule, with one Job per run.",
        "type": "object",
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": [{
            "rule": "size(self.metadata.name) <= 52",
            "message": "metadata.name can have at most 52 characters, because it is part of the names of its Jobs: choose a shorter one",
        }],
    });
    // Joins the wrapped lines of doc comments.
    visit_schemas("", &mut schema, &mut |_, members| {
        if let Some(Value::String(description)) = members.get_mut("description") {
            *description = description.replace('\n', " ");
        }
    });
    schema
}

/// Returns the schema of a type without `$ref` and without the `unwanted` keywords.
fn schema_of<T: JsonSchema>(unwanted: &[&str]) -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings.with_transform(StructuralSchemaRewriter).into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    visit_schemas("", &mut schema, &mut |_, members| {
        members.retain(|keyword, _| !unwanted.contains(&&**keyword));
    });
    schema
}
