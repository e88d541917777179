//! Edits a JSON schema and the schemas in it.

use serde_json::{Map, Value};

/// The members of one schema.
pub(super) type SchemaObject = Map<String, Value>;

/// Edits a schema and then all nested schemas. `edit` receives the name of a property, or an empty
/// name for the schema of items.
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
