use portreeve_api::Metadata;
use portreeve_reconcile::Effect;
use serde_json::{Value, json};

use super::*;

const CREATE: &str = "create ConfigMap n/kube-root-ca.crt";
const REPLACE: &str = "replace ConfigMap n/kube-root-ca.crt";

fn namespace(deletion: Option<&str>) -> Arc<MetadataOnly> {
    let metadata = Metadata {
        name: "n".into(),
        deletion_timestamp: deletion.map(|time| time.parse().unwrap()),
        ..Metadata::default()
    };
    Arc::new(MetadataOnly { metadata })
}

/// Returns the plan for a ConfigMap with these annotations and this data.
fn plan_for(annotations: &Value, data: &Value) -> Plan {
    let metadata = json!({
        "name": "kube-root-ca.crt", "namespace": "n", "uid": "u", "resourceVersion": "7", "annotations": annotations});
    let map = serde_json::from_value(json!({"metadata": metadata, "data": data})).unwrap();
    decide(&Observed {
        namespace: namespace(None),
        map: Some(Arc::new(map)),
        ca: "CA".into(),
    })
}

/// The table of Kubernetes' `TestConfigMapCreation`. Its cases with other ConfigMaps are missing:
/// the informer reads only those with the name.
#[test]
fn test_config_map_creation() {
    let described = json!({"kubernetes.io/description": "a text"});
    let right = json!({"ca.crt": "CA"});
    let create = |namespace| {
        let (map, ca) = (None, "CA".into());
        decide(&Observed { namespace, map, ca }).to_string()
    };
    // A new namespace, and a deleted ConfigMap.
    assert_eq!(create(namespace(None)), CREATE);
    assert_eq!(create(namespace(Some("2026-01-02T03:04:05Z"))), "nothing");
    let table = [
        ("added field", json!({"ca.crt": "CA", "test": "test"}), REPLACE),
        ("modified field", json!({"ca.crt": "abc"}), REPLACE),
        ("no field", json!(null), REPLACE),
        ("another field", json!({"other": "CA"}), REPLACE),
        ("unchanged", right, "nothing"),
    ];
    for (name, data, expected) in table {
        assert_eq!(plan_for(&described, &data).to_string(), expected, "{name}");
    }
}

/// The table of Kubernetes' `TestConfigMapUpdateNoHotLoop`: any description will do.
#[test]
fn test_config_map_update_no_hot_loop() {
    let right = json!({"ca.crt": "CA"});
    let table = [
        ("no annotations", json!(null), REPLACE),
        (
            "an empty description",
            json!({"kubernetes.io/description": ""}),
            REPLACE,
        ),
        ("another annotation", json!({"other": "a text"}), REPLACE),
        (
            "another description",
            json!({"kubernetes.io/description": "a text"}),
            "nothing",
        ),
    ];
    for (name, annotations, expected) in table {
        assert_eq!(plan_for(&annotations, &right).to_string(), expected, "{name}");
    }
}

/// kube-controller-manager replaces a description when it replaces the data.
#[test]
fn a_replacement_removes_all_other_data_and_keeps_a_description() {
    let changes = |plan: Plan| match plan.effects.into_iter().next() {
        Some(Effect::Replace { changes, target, .. }) => {
            assert_eq!((&*target.uid, &*target.version), ("u", "7"));
            changes
        }
        other => panic!("{other:?}"),
    };
    let described = json!({"kubernetes.io/description": "a text"});
    let data = json!({"ca.crt": "old", "a": "b"});
    let expected = json!({"data": {"ca.crt": "CA", "a": null}});
    assert_eq!(changes(plan_for(&described, &data)), expected);
    let added = changes(plan_for(&json!(null), &data));
    assert!(added["metadata"]["annotations"]["kubernetes.io/description"].is_string());
    assert_eq!(added["data"], expected["data"]);
}
