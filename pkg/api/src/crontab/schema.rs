//! The structural schema of CronTabs, from the types and from what the apiserver wants of schemas.
//!
//! Nothing is nullable: the apiserver drops a null where it may, and a status is patched with nulls that remove.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use kube::core::schema::StructuralSchemaRewriter;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{CronTabSpec, CronTabStatus, pod};

/// The members of one schema.
pub(super) type SchemaObject = Map<String, Value>;

/// The schema of a whole CronTab.
#[expect(
    clippy::expect_used,
    reason = "the value is the same in every call, and the tests of this crate make it"
)]
pub(super) fn root() -> JSONSchemaProps {
    serde_json::from_value(value()).expect("what schemars writes is a JSON schema")
}

fn value() -> Value {
    let mut spec = schema_of::<CronTabSpec>(&["nullable", "title"]);
    if let Some(template) = spec.pointer_mut("/properties/jobTemplate") {
        pod::adapt_to_job_template(template);
    }
    // The controller writes every field of a status, so that a default would only hide that it has not yet.
    let status = schema_of::<CronTabStatus>(&["default", "nullable", "title"]);
    let mut schema = json!({
        "description": "A CronTab runs a pod on a schedule, with one Job a run.",
        "type": "object",
        "properties": {"spec": spec, "status": status},
        "x-kubernetes-validations": [{
            "rule": "size(self.metadata.name) <= 52",
            "message": "metadata.name can have at most 52 characters, as the names of the Jobs made from it have 11 more: choose a shorter one",
        }],
    });
    // A doc comment's lines end where a file is wide enough.
    visit_schemas("", &mut schema, &mut |_, members| {
        if let Some(Value::String(description)) = members.get_mut("description") {
            *description = description.replace('\n', " ");
        }
    });
    schema
}

/// The schema of a type without `$ref`, and without the keywords that are `unwanted` here.
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

/// Edits a schema and, after it, all schemas within. Those of properties come with their names, those of items without one.
pub(super) fn visit_schemas(name: &str, schema: &mut Value, edit: &mut dyn FnMut(&str, &mut SchemaObject)) {
    let Some(members) = schema.as_object_mut() else {
        return;
    };
    edit(name, members);
    if let Some(properties) = members.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, property) in properties {
            visit_schemas(name, property, edit);
        }
    }
    for unnamed in ["additionalProperties", "items"] {
        if let Some(inner) = members.get_mut(unnamed) {
            visit_schemas("", inner, edit);
        }
    }
}
