//! Adapts the schema of a CRD, which is a dialect of OpenAPI, to JSON Schema.

use jsonschema::{Draft, ValidationError, Validator};
use serde_json::{Map, Value, json};

/// Keywords whose values are numbers or texts, which JSON Schema has too.
const COPIED: [&str; 12] = [
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
];

/// Returns the schema of a CRD with the fields that every object has. The apiserver checks them
/// independently of the CRD.
pub(super) fn with_metadata(schema: &Value) -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut schema = schema.clone();
    schema["properties"]["apiVersion"] = text.clone();
    schema["properties"]["kind"] = text.clone();
    schema["properties"]["metadata"] = json!({
        "type": "object",
        "properties": {
            "annotations": texts,
            "creationTimestamp": text,
            "deletionGracePeriodSeconds": {"type": "integer"},
            "deletionTimestamp": text,
            "finalizers": {"type": "array", "items": text},
            "generateName": text,
            "generation": {"type": "integer"},
            "labels": texts,
            "managedFields": {"type": "array", "items": open},
            "name": text,
            "namespace": text,
            "ownerReferences": {"type": "array", "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    "apiVersion": text,
                    "blockOwnerDeletion": {"type": "boolean"},
                    "controller": {"type": "boolean"},
                    "kind": text,
                    "name": text,
                    "uid": text,
                },
            }},
            "resourceVersion": text,
            "selfLink": text,
            "uid": text,
        },
    });
    schema
}

/// Returns a validator of types and bounds.
pub(super) fn validator(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    jsonschema::options()
        .with_draft(Draft::Draft7)
        .should_validate_formats(true)
        .build(&adapted(schema))
}

fn adapted(schema: &Value) -> Value {
    let Value::Object(members) = schema else {
        return schema.clone();
    };
    let mut adapted = Map::new();
    for keyword in COPIED {
        if let Some(value) = members.get(keyword) {
            adapted.insert(keyword.to_owned(), without_fraction(value));
        }
    }
    for (own, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        if schema[exclusive] == true
            && let Some(bound) = adapted.remove(own)
        {
            adapted.insert(exclusive.to_owned(), bound);
        }
    }
    for keyword in ["items", "not", "additionalProperties"] {
        if let Some(inner) = members.get(keyword) {
            adapted.insert(keyword.to_owned(), self::adapted(inner));
        }
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(schemas)) = members.get(keyword) {
            adapted.insert(keyword.to_owned(), schemas.iter().map(self::adapted).collect());
        }
    }
    if let Some(Value::Object(properties)) = members.get("properties") {
        let properties = properties.iter();
        let properties: Map<_, _> = properties.map(|(name, it)| (name.clone(), self::adapted(it))).collect();
        adapted.insert("properties".to_owned(), properties.into());
    }
    add_types(schema, &mut adapted);
    add_range(schema, &mut adapted);
    adapted.into()
}

/// Returns an integer for a number such as 1.0, which messages contain.
fn without_fraction(value: &Value) -> Value {
    let whole = value.as_f64().filter(|number| number.fract() == 0.0);
    let text = whole.map(|number| format!("{number:.0}"));
    let integer = text.and_then(|text| text.parse::<i64>().ok());
    integer.map_or_else(|| value.clone(), Value::from)
}

fn add_types(schema: &Value, adapted: &mut Map<String, Value>) {
    let mut types: Vec<Value> = if schema["x-kubernetes-int-or-string"] == true {
        vec!["integer".into(), "string".into()]
    } else {
        schema.get("type").cloned().into_iter().collect()
    };
    let mut values = schema["enum"].as_array().cloned();
    if schema["nullable"] == true {
        if !types.is_empty() {
            types.push("null".into());
        }
        values = values.map(|values| values.into_iter().chain([Value::Null]).collect());
    }
    if !types.is_empty() {
        adapted.insert("type".to_owned(), types.into());
    }
    if let Some(values) = values {
        adapted.insert("enum".to_owned(), values.into());
    }
}

/// Adds the bounds of the formats of integers, which JSON Schema does not have.
fn add_range(schema: &Value, adapted: &mut Map<String, Value>) {
    let (least, greatest) = match schema["format"].as_str() {
        Some("int32") => (json!(i32::MIN), json!(i32::MAX)),
        Some("int64") => (json!(i64::MIN), json!(i64::MAX)),
        _ => return,
    };
    adapted.remove("format");
    adapted.entry("minimum").or_insert(least);
    adapted.entry("maximum").or_insert(greatest);
}
