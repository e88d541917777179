//! Tests of the CRD and the types without an apiserver. `tests/crontab` contains those that need an
//! apiserver.

use kube::core::CustomResourceExt;
use serde_json::{Value, json};

use crate::api::CronTabPolicy;

use super::*;

/// Client-side `kubectl apply` stores the whole CRD in an annotation. All annotations of an object
/// may have 262,144 bytes in total.
const MAX_CRD_BYTES: usize = 200_000;
const TEMPLATE: &str = "/properties/spec/properties/jobTemplate";

fn schema() -> Value {
    schema_of_version(0)
}

fn schema_of_version(index: usize) -> Value {
    json!(CronTab::crd().spec.versions[index].schema)["openAPIV3Schema"].take()
}

/// Visits each nested schema with its path, including the items of lists and maps.
fn walk(path: &str, schema: &Value, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(&format!("{path}.{name}"), property, visit);
    }
    for inner in ["additionalProperties", "items"] {
        if let Some(inner) = schema.get(inner) {
            walk(&format!("{path}[]"), inner, visit);
        }
    }
}

#[test]
fn crd_is_small_enough_for_client_side_apply() {
    let size = serde_json::to_string(&CronTab::crd()).expect("serialises").len();
    assert!(size < MAX_CRD_BYTES, "{size} bytes");
}

#[test]
fn every_field_and_column_has_a_description_and_no_field_is_nullable() {
    for definition in [CronTab::crd(), CronTabPolicy::crd()] {
        let version = &definition.spec.versions[0];
        let schema = json!(version.schema)["openAPIV3Schema"].take();
        walk("", &schema, &mut |path, schema| {
            let description = schema["description"].as_str().unwrap_or_default();
            assert!(path.ends_with("[]") || !description.trim().is_empty(), "{path}");
            assert!(!description.contains('\n'), "{path}: {description}");
            assert!(schema.get("nullable").is_none(), "{path} is nullable");
        });
        for column in version.additional_printer_columns.iter().flatten() {
            assert!(column.description.is_some(), "{column:?}");
        }
    }
}

#[test]
fn schemas_are_structural() {
    check_is_structural(&schema());
    check_is_structural(&schema_of_version(1));
}

fn check_is_structural(schema: &Value) {
    walk("", schema, &mut |path, schema| {
        for absent in ["$ref", "allOf", "anyOf", "nullable", "oneOf", "title", "uniqueItems"] {
            assert!(schema.get(absent).is_none(), "{path} has {absent}");
        }
        assert_ne!(schema.get("default"), Some(&Value::Null), "{path}");
        let is_untyped = ["x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"]
            .iter()
            .any(|extension| schema[*extension] == true);
        assert!(is_untyped || schema["type"].is_string(), "{path} has no type");
        let formats = [Value::Null, "date-time".into(), "int32".into(), "int64".into()];
        assert!(formats.contains(&schema["format"]), "{path}: {}", schema["format"]);
    });
}

#[test]
fn ports_are_int_or_string_and_quantities_have_a_pattern() {
    let (mut ports, mut quantities) = (Vec::new(), Vec::new());
    walk(
        "",
        schema().pointer(TEMPLATE).expect("a template"),
        &mut |path, schema| {
            if schema["x-kubernetes-int-or-string"] == true {
                ports.push(path.to_owned());
            } else if schema.get("type").is_none() {
                assert!(schema["pattern"].is_string(), "{path}: {schema}");
                quantities.push(path.to_owned());
            }
        },
    );
    assert!(
        ports
            .iter()
            .all(|path| path.ends_with(".httpGet.port") || path.ends_with(".tcpSocket.port")),
        "{ports:?}"
    );
    assert_eq!(
        ports.len(),
        20,
        "two ports for each of five probes and hooks in two lists of containers"
    );
    let ends = ["limits[]", "requests[]", ".divisor", ".sizeLimit", ".overhead[]"];
    assert!(
        quantities.iter().all(|path| ends.iter().any(|end| path.ends_with(end))),
        "{quantities:?}"
    );
}

/// kubectl's client-side apply replaces a list as a whole if an item has a field that the manifest
/// lacks.
#[test]
fn no_item_of_a_list_has_a_default() {
    let definitions = [CronTab::crd(), CronTabPolicy::crd()];
    let versions = definitions.iter().flat_map(|definition| &definition.spec.versions);
    let mut lists = 0;
    for version in versions {
        let spec = json!(version.schema)["openAPIV3Schema"]["properties"]["spec"].take();
        walk("", &spec, &mut |path, schema| {
            let Some(items) = schema.get("items") else { return };
            lists += 1;
            walk("", items, &mut |field, item| {
                assert!(item.get("default").is_none(), "{path}[]{field} has a default");
            });
        });
    }
    assert!(lists > 5, "the test found only {lists} lists");
}

#[test]
fn example_survives_a_round_trip() {
    let example = json!({
        "apiVersion": "stable.example.com/v1",
        "kind": "CronTab",
        "metadata": {"name": "backup"},
        "spec": {
            "schedule": "@daily",
            "jobTemplate": {"containers": [{"image": "mybackupscript:v9", "name": "backup"}], "restartPolicy": "Never"},
        },
    });
    let crontab: CronTab = serde_json::from_value(example.clone()).expect("reads");
    let spec = crontab.spec.as_ref().expect("a spec");
    assert_eq!(
        (spec.run_policy.concurrency_policy, spec.timing.dst_policy),
        (ConcurrencyPolicy::Allow, None)
    );
    let mut expected = example;
    expected["spec"]["concurrencyPolicy"] = "Allow".into();
    assert_eq!(json!(crontab), expected);
    let empty = CronTab::default();
    assert_eq!(
        json!(empty),
        json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {}})
    );
}

#[test]
fn names_of_the_resource_are_consistent() {
    let definition = CronTab::crd();
    assert_eq!(definition.metadata.name.as_deref(), Some(&*CRONTABS.crd_name()));
    assert_eq!(CronTab::crd_name(), CRONTABS.crd_name());
    assert_eq!(API_VERSION, CRONTABS.api_version());
    let found = CronTab::api_resource();
    assert_eq!(
        (&*found.group, &*found.version, &*found.kind, &*found.plural),
        (GROUP, VERSION, KIND, PLURAL)
    );
    assert_eq!(
        <CronTab as kube::Resource>::url_path(&(), Some("a")),
        CRONTABS.collection_path(Some("a"))
    );
}
