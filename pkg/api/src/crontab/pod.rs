//! The schema of a pod, made fit for a CustomResourceDefinition: short enough, as tolerant as the Pod API, and for Jobs.

use serde_json::{Value, json};

use super::schema::{SchemaObject, visit_schemas};

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const CLAIM_METADATA: &str =
    "/volumes/items/properties/ephemeral/properties/volumeClaimTemplate/properties/metadata/properties";
/// What Kubernetes reads as a quantity.
const QUANTITY: &str = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";

/// Turns the schema of a pod's spec into that of `jobTemplate`.
pub(super) fn adapt_to_job_template(template: &mut Value) {
    visit_schemas("", template, &mut |name, members| {
        describe(name, members);
        // The ports of probes and hooks are the only others of the kind.
        if members.contains_key(INT_OR_STRING) && name != "port" {
            quantity(members);
        }
    });
    template["description"] =
        "The pod of each run: the spec of a Pod, without a template or metadata around it.".into();
    let properties = &mut template["properties"];
    properties["containers"]["minItems"] = 1.into();
    properties["restartPolicy"] = json!({
        "description": "What happens when a container ends: Never starts it again, OnFailure does if it failed; Never when it is not said.",
        "type": "string",
        "default": "Never",
        "enum": ["Never", "OnFailure"],
    });
    properties["ephemeralContainers"] = json!({
        "description": "Not for templates: ephemeral containers are added to Pods that run.",
        "type": "array",
        "maxItems": 0,
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    });
    // Alone among references, those may be empty.
    if let Some(secret) = properties["imagePullSecrets"]["items"].as_object_mut() {
        secret.remove("required");
    }
    // The rest of a metadata is refused in a template of claims, and would be long.
    if let Some(Value::Object(metadata)) = properties.pointer_mut(CLAIM_METADATA) {
        metadata.retain(|name, _| ["annotations", "labels"].contains(&&**name));
    }
}

/// Keeps the first sentence for people, and nothing on the items of a list, whose field says it already.
fn describe(name: &str, members: &mut SchemaObject) {
    if name.is_empty() {
        members.remove("description");
    } else if let Some(Value::String(description)) = members.get_mut("description") {
        *description = first_sentence(description).to_owned();
    }
}

/// One of a single word, such as `Required.`, does not count.
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

/// Integers, fractions and strings, as the Pod API takes them. `x-kubernetes-int-or-string` would refuse `cpu: 0.5`, and a schema
/// that takes both cannot have a type; so the types that are none of them are refused one by one.
fn quantity(members: &mut SchemaObject) {
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
    fn first_sentence_is_one_that_says_something() {
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
