//! Generates structural schemas for CRDs from types, and edits them.
//!
//! No field of them is nullable. The apiserver drops a null in an optional field, and nulls in a
//! patch remove fields.

use kube::core::schema::StructuralSchemaRewriter;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value};

/// The members of one schema.
pub(crate) type SchemaObject = Map<String, Value>;

/// Edits a schema and then all nested schemas. `edit` receives the name of a property, or an empty
/// name for the schema of items.
pub(crate) fn visit_schemas(name: &str, schema: &mut Value, edit: &mut dyn FnMut(&str, &mut SchemaObject)) {
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

/// Returns the schema of a type without `$ref`, without the `unwanted` keywords, and with each
/// description on one line.
pub(crate) fn schema_of<T: JsonSchema>(unwanted: &[&str]) -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings.with_transform(StructuralSchemaRewriter).into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    visit_schemas("", &mut schema, &mut |_, members| {
        members.retain(|keyword, _| !unwanted.contains(&&**keyword));
        // Joins the wrapped lines of doc comments.
        if let Some(Value::String(description)) = members.get_mut("description") {
            *description = description.replace('\n', " ");
        }
    });
    schema
}
