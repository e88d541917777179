mod corpus;

use portreeve_api::PART_OF;
use serde_json::json;

use super::*;

fn definition(versions: &[&str], more: &Value) -> Definition {
    let versions: Vec<_> = versions
        .iter()
        .map(|name| json!({"name": name, "served": true, "storage": true}))
        .collect();
    let mut body = json!({
        "metadata": {
            "name": "foos.example.com", "uid": "u", "resourceVersion": "1", "labels": {PART_OF: "portreeve"},
        },
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": versions},
    });
    for (field, value) in more.as_object().unwrap() {
        for (key, value) in value.as_object().unwrap() {
            body[field][key] = value.clone();
        }
    }
    serde_json::from_value(body).unwrap()
}

fn step(present: Option<&Definition>, written: bool) -> String {
    match decide(&definition(&["v1"], &json!({})), present, written) {
        Step::Write(plan) => plan.to_string(),
        step => format!("{step:?}"),
    }
}

/// Returns what an apply would write.
fn applied(wanted: &Definition, present: &Definition) -> Value {
    match decide(wanted, Some(present), false) {
        Step::Write(plan) => match &plan.effects[..] {
            [Effect::Apply { object, .. }] => object.body.clone(),
            effects => panic!("{effects:?}"),
        },
        step => panic!("{step:?}"),
    }
}

#[test]
fn the_versions_and_the_conversion_of_the_cluster_stay() {
    let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
    let with = |versions: Value, conversion: Value, scope: &str| {
        definition(
            &[],
            &json!({"spec": {"versions": versions, "conversion": conversion, "scope": scope}}),
        )
    };
    let none = json!({"strategy": "None"});
    let webhook = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
    let wanted = with(
        json!([version("v1", true, true), version("v2", false, false)]),
        none.clone(),
        "Namespaced",
    );
    let migrated = json!([version("v1", true, false), version("v2", true, true)]);
    let present = with(migrated.clone(), webhook, "Cluster");
    let body = applied(&wanted, &present);
    assert_eq!(body["spec"]["versions"], migrated);
    assert_eq!(body["spec"]["conversion"], Value::Null);
    // A new version is served as wanted.
    let present = with(json!([version("v1", true, true)]), none.clone(), "Namespaced");
    let body = applied(&wanted, &present);
    assert_eq!(body["spec"]["versions"], wanted.spec["versions"]);
    assert_eq!(body["spec"]["conversion"], none);
}

#[test]
fn definition_is_written_once_and_then_awaited() {
    let condition = |type_: &str, status: &str| {
        let condition = json!({"type": type_, "status": status, "message": "taken"});
        definition(&["v1"], &json!({"status": {"conditions": [condition]}}))
    };
    let plain = definition(&["v1"], &json!({}));
    let outdated = definition(&["v1"], &json!({"spec": {"scope": "Cluster"}}));
    let terminating = definition(
        &["v1"],
        &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    );
    let create = "apply CustomResourceDefinition foos.example.com";
    let apply = "apply CustomResourceDefinition foos.example.com";
    let table = [
        (None, false, create),
        (None, true, create),
        (Some(outdated), false, apply),
        (Some(plain.clone()), false, r#"Wait("the apiserver gave no reason")"#),
        (Some(plain), true, r#"Wait("the apiserver gave no reason")"#),
        (Some(condition("Established", "True")), false, "Done"),
        (Some(condition("Established", "True")), true, "Done"),
        (
            Some(condition("NamesAccepted", "False")),
            true,
            r#"Blocked(NotEstablished("taken"))"#,
        ),
        (Some(terminating), false, "Blocked(Terminating)"),
        (
            Some(definition(&["v1", "v2", "v3"], &json!({}))),
            false,
            r#"Leave("v2, v3")"#,
        ),
    ];
    for (present, written, expected) in table {
        assert_eq!(step(present.as_ref(), written), expected, "{present:?}");
    }
}

#[test]
fn a_crd_without_our_label_is_written_only_if_it_is_ours_but_for_the_label() {
    let labelled = |label: Value, spec: Value| {
        let labels = json!({PART_OF: label});
        definition(&["v1"], &json!({"metadata": {"labels": labels}, "spec": spec}))
    };
    let unlabelled = |spec: Value| definition(&["v1"], &json!({"metadata": {"labels": null}, "spec": spec}));
    let other = json!({"scope": "Cluster"});
    let newer = definition(&["v1", "v2"], &json!({"metadata": {"labels": null}}));
    let mut terminating = unlabelled(other.clone());
    terminating.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let apply = "apply CustomResourceDefinition foos.example.com";
    let not_ours = r#"Blocked(NotOurs { program: "portreeve" })"#;
    let table = [
        ("different", labelled("portreeve".into(), other.clone()), apply),
        ("equal without a label", unlabelled(json!({})), apply),
        ("equal with another label", labelled("acme".into(), json!({})), apply),
        ("different without a label", unlabelled(other.clone()), not_ours),
        ("different with another label", labelled("acme".into(), other), not_ours),
        ("another version without a label", newer, not_ours),
        ("terminating without a label", terminating, "Blocked(Terminating)"),
    ];
    for (case, present, expected) in table {
        for written in [false, true] {
            let expected = if written && expected == apply {
                r#"Wait("the apiserver gave no reason")"#
            } else {
                expected
            };
            assert_eq!(step(Some(&present), written), expected, "{case}");
        }
    }
}
