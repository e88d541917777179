//! What the apiserver checks of a structural schema, and JSON Schema does not: unknown fields,
//! nulls, and lists with unique items.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path::FieldPath;

/// The longest name of an object.
const MAX_NAME: usize = 253;
/// The length to which the apiserver shortens a `generateName`.
const MAX_PREFIX: usize = 58;
/// Represents the five random letters and digits that the apiserver appends.
const SUFFIX: &str = "xxxxx";

/// Returns a message for each field that the schema does not have.
pub(super) fn unknown_fields(schema: &Value, object: &Value) -> Vec<String> {
    let mut messages = Vec::new();
    visit(schema, object, &FieldPath::default(), &mut |schema, value, path| {
        let is_open =
            schema["x-kubernetes-preserve-unknown-fields"] == true || !schema["additionalProperties"].is_null();
        // A schema without a type, such as that of a quantity, has no fields.
        if is_open || schema["type"] != "object" {
            return;
        }
        let names = value.as_object().into_iter().flatten().map(|(name, _)| name);
        let unknown = names.filter(|name| schema["properties"].get(name.as_str()).is_none());
        messages.extend(unknown.map(|name| format!("{}: unknown field", path.field(name))));
    });
    messages
}

/// Returns a message for each item that repeats another one in a list that is a set or a map.
pub(super) fn duplicates(schema: &Value, object: &Value) -> Vec<String> {
    let mut messages = Vec::new();
    visit(schema, object, &FieldPath::default(), &mut |schema, value, path| {
        let keys: Option<Vec<_>> = match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => None,
            Some("map") => schema["x-kubernetes-list-map-keys"].as_array().cloned(),
            _ => return,
        };
        let mut seen = BTreeSet::new();
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            let key = match &keys {
                None => item.clone(),
                Some(keys) => keys.iter().filter_map(|key| item.get(key.as_str()?).cloned()).collect(),
            };
            if !seen.insert(key.to_string()) {
                messages.push(format!("{}: duplicate value {key}", path.item(index)));
            }
        }
    });
    messages
}

/// Calls `found` for a value and all values in it, with their schemas.
fn visit(schema: &Value, value: &Value, path: &FieldPath, found: &mut dyn FnMut(&Value, &Value, &FieldPath)) {
    found(schema, value, path);
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(schema) = member_schema(schema, name) {
                    visit(schema, member, &path.field(name), found);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit(&schema["items"], item, &path.item(index), found);
            }
        }
        _ => {}
    }
}

fn member_schema<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let own = schema["properties"].get(name);
    own.or_else(|| schema.get("additionalProperties").filter(|schema| schema.is_object()))
}

/// Removes the nulls in fields that are not nullable, as the apiserver does before it sets
/// defaults.
pub(super) fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, member| {
                let schema = member_schema(schema, name);
                !member.is_null() || schema.is_none_or(|schema| schema["nullable"] == true)
            });
            for (name, member) in members {
                if let Some(schema) = member_schema(schema, name) {
                    drop_nulls(schema, member);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                drop_nulls(&schema["items"], item);
            }
        }
        _ => {}
    }
}

/// Sets the name of an object that has only a `generateName`, as the apiserver does before it
/// validates the object.
pub(super) fn generate_name(metadata: &mut Value) {
    let has_name = metadata["name"].as_str().is_some_and(|name| !name.is_empty());
    let prefix = metadata["generateName"].as_str().filter(|prefix| !prefix.is_empty());
    let name = prefix.map(|prefix| format!("{}{SUFFIX}", &prefix[..prefix.floor_char_boundary(MAX_PREFIX)]));
    if let Some(name) = name
        && !has_name
    {
        metadata["name"] = name.into();
    }
}

/// Returns the errors of the name of an object, which is a DNS subdomain.
pub(super) fn name_errors(metadata: &Value) -> Option<String> {
    let Some(name) = metadata["name"].as_str() else {
        return Some("metadata.name: required value, unless there is a generateName".to_owned());
    };
    if name.len() > MAX_NAME {
        return Some(format!("metadata.name: must have at most {MAX_NAME} characters"));
    }
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter().all(|byte| byte.is_some_and(|byte| is_alphanumeric(*byte)))
            && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
    };
    let is_valid = name.split('.').all(is_label);
    (!is_valid).then(|| {
        format!("metadata.name: {name:?} must consist of lower case letters, digits, `-` and `.`, and begin and end with a letter or a digit")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nulls_are_dropped_unless_the_field_is_nullable() {
        let schema = json!({"properties": {
            "a": {"type": "string"},
            "b": {"type": "string", "nullable": true},
            "c": {"type": "object", "additionalProperties": {"type": "string"}},
            "d": {"type": "array", "items": {"properties": {"a": {"type": "string"}}}},
        }});
        let mut value = json!({"a": null, "b": null, "c": {"a": null, "b": "b"}, "d": [{"a": null}, null], "e": null});
        drop_nulls(&schema, &mut value);
        assert_eq!(value, json!({"b": null, "c": {"b": "b"}, "d": [{}, null], "e": null}));
    }

    #[test]
    fn names_are_dns_subdomains() {
        for (mut metadata, is_valid) in [
            (json!({"name": "a"}), true),
            (json!({"name": "a-1.b"}), true),
            (json!({"generateName": "a-"}), true),
            (json!({"generateName": "a".repeat(300)}), true),
            (json!({"generateName": "ä".repeat(30)}), false),
            (json!({"generateName": ""}), false),
            (json!({"name": "", "generateName": "a-"}), true),
            (json!({"name": "a".repeat(253)}), true),
            (json!({"name": "a".repeat(254)}), false),
            (json!({"name": "A"}), false),
            (json!({"name": "a."}), false),
            (json!({"name": "-a"}), false),
            (json!({"name": ""}), false),
            (json!({}), false),
        ] {
            generate_name(&mut metadata);
            assert_eq!(name_errors(&metadata).is_none(), is_valid, "{metadata}");
        }
    }

    #[test]
    fn a_name_is_generated_unless_there_is_one() {
        for (mut metadata, name) in [
            (json!({"generateName": "a-"}), json!("a-xxxxx")),
            (json!({"generateName": "a".repeat(60)}), json!("a".repeat(58) + "xxxxx")),
            (json!({"generateName": "a-", "name": "b"}), json!("b")),
            (json!({}), Value::Null),
        ] {
            generate_name(&mut metadata);
            assert_eq!(metadata["name"], name, "{metadata}");
        }
    }
}
