//! Adapts the schema of a `PodSpec` for a CRD: it becomes shorter, accepts quantities in all forms
//! of the Pod API, and rejects what Jobs do not support.

use serde_json::{Value, json};

use crate::api::structural::{SchemaObject, visit_schemas};

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const CLAIM_METADATA: &str =
    "/volumes/items/properties/ephemeral/properties/volumeClaimTemplate/properties/metadata/properties";
/// The lists whose items have unique names, as in the Pod API. No Job can be created from a
/// template that repeats a name.
const LISTS_BY_NAME: [&str; 3] = ["containers", "initContainers", "volumes"];
/// The pattern of Kubernetes' quantities.
const QUANTITY: &str = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Turns the schema of a `PodSpec` into that of `jobTemplate`.
pub(super) fn adapt_to_job_template(template: &mut Value) {
    visit_schemas("", template, &mut |name, members| {
        shorten_description(name, members);
        // All other int-or-string fields are ports of probes and hooks.
        if members.contains_key(INT_OR_STRING) && name != "port" {
            make_quantity(members);
        }
    });
    template["description"] =
        "Specifies the pod that each run creates. This is the spec of a Pod, without a template or metadata around it."
            .into();
    let properties = &mut template["properties"];
    properties["containers"]["minItems"] = 1.into();
    for list in LISTS_BY_NAME {
        properties[list]["x-kubernetes-list-type"] = "map".into();
        properties[list]["x-kubernetes-list-map-keys"] = json!(["name"]);
    }
    properties["restartPolicy"] = json!({
        "description": "Restart policy for all containers within the pod. One of OnFailure, Never. Default to Never.",
        "type": "string",
        "default": "Never",
        "enum": ["Never", "OnFailure"],
    });
    properties["ephemeralContainers"] = json!({
        "description": "Ephemeral containers are not allowed in a template. They can only be added to running Pods.",
        "type": "array",
        "maxItems": 0,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    });
    // Unlike all other references, image pull secrets may have an empty name.
    if let Some(secret) = properties["imagePullSecrets"]["items"].as_object_mut() {
        secret.remove("required");
    }
    // The apiserver rejects all other metadata in a claim template, and their schema would be long.
    if let Some(Value::Object(metadata)) = properties.pointer_mut(CLAIM_METADATA) {
        metadata.retain(|name, _| ["annotations", "labels"].contains(&&**name));
    }
}

/// Shortens all descriptions below a schema.
pub(super) fn shorten_descriptions(schema: &mut Value) {
    visit_schemas("", schema, &mut shorten_description);
}

/// Keeps only the first sentence of a description, and none for list items, because their field
/// already has one.
fn shorten_description(name: &str, members: &mut SchemaObject) {
    if name.is_empty() {
        members.remove("description");
    } else if let Some(Value::String(description)) = members.get_mut("description") {
        *description = first_sentence(description).to_owned();
    }
}

/// Returns the first sentence of a text. A single word, such as `Required.`, does not count as a
/// sentence.
fn first_sentence(text: &str) -> &str {
    const ABBREVIATIONS: &[&str] = &["e.g.", "etc.", "i.e."];
    let line = text.lines().next().unwrap_or_default();
    let ends = line.match_indices(". ").map(|(dot, _)| line.split_at(dot + 1));
    let mut sentences = ends.filter(|(head, tail)| {
        head.contains(' ')
            && tail.trim_start().starts_with(char::is_uppercase)
            && !ABBREVIATIONS.iter().any(|abbreviation| head.ends_with(abbreviation))
    });
    sentences.next().map_or(line, |(head, _)| head).trim_end()
}

/// Makes a field accept integers, fractions and strings, like the Pod API.
///
/// `x-kubernetes-int-or-string` would reject `cpu: 0.5`, and a schema that accepts both numbers and
/// strings cannot have a type. So the other types are excluded one by one.
fn make_quantity(members: &mut SchemaObject) {
    members.remove(INT_OR_STRING);
    members.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    members.insert("pattern".into(), QUANTITY.into());
    members.insert("maxItems".into(), 0.into());
    members.insert("maxProperties".into(), 0.into());
    members.insert("not".into(), json!({"enum": [true, false, [], {}]}));
}

#[cfg(test)]
mod tests {
    use super::first_sentence;

    #[test]
    fn first_sentence_has_more_than_one_word() {
        let table = [
            ("One. Two.", "One. Two."),
            ("It is one. It is two.", "It is one."),
            ("It is one, e.g. Two. Three.", "It is one, e.g. Two."),
            ("Required. It is one. It is two.", "Required. It is one."),
            (
                "It is v1.2 of it. it goes on.  It ends.",
                "It is v1.2 of it. it goes on.",
            ),
            ("It is a list:\n- one\n- two", "It is a list:"),
            ("", ""),
        ];
        for (text, first) in table {
            assert_eq!(first_sentence(text), first);
        }
    }
}
