use serde_json::Value;

use super::*;

fn hammer() -> Value {
    json!([{"verbs": ["hammer"], "resources": ["nails"]}, {"verbs": ["hammer"], "resources": ["wedges"]}])
}

fn chisel() -> Value {
    json!([{"verbs": ["chisel"], "resources": ["mortises"]}])
}

fn saw() -> Value {
    json!([{"verbs": ["saw"], "resources": ["boards"]}])
}

/// Returns the rules of all these lists.
fn rules(lists: &[Value]) -> Value {
    lists
        .iter()
        .flat_map(|list| list.as_array().unwrap())
        .cloned()
        .collect()
}

fn role(name: &str, foo: &str, rules: &Value) -> Value {
    json!({"metadata": {"name": name, "labels": {"foo": foo}}, "rules": rules})
}

/// Returns a role that aggregates those with these values of the label `foo`.
fn combined(selected: &[&str], rules: &Value) -> Value {
    let selectors: Vec<_> = selected
        .iter()
        .map(|foo| json!({"matchLabels": {"foo": foo}}))
        .collect();
    json!({
        "metadata": {"name": "combined", "uid": "u", "resourceVersion": "7"},
        "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": rules,
    })
}

/// Returns the rules that the plan for the last of these roles applies.
fn applied(roles: Vec<Value>) -> Option<Value> {
    let mut all: Vec<Arc<CachedRole>> = roles
        .into_iter()
        .map(|role| Arc::new(serde_json::from_value(role).unwrap()))
        .collect();
    let role = Arc::clone(all.last().unwrap());
    all.sort_by(|one, other| one.metadata().name.cmp(&other.metadata().name));
    match decide(&Observed { role, all }).effects.pop()? {
        Effect::Apply {
            mut object,
            uid,
            version,
        } => {
            assert_eq!((&*uid, &*version), ("u", "7"));
            Some(object.body["rules"].take())
        }
        other => panic!("{other}"),
    }
}

/// The table of Kubernetes' `TestSyncClusterRole`.
#[test]
fn test_sync_cluster_role() {
    let (bar, not_bar) = ("bar", "not-bar");
    let table = [
        (
            "remove dead rules",
            vec![role("hammer", bar, &hammer()), combined(&[bar], &saw())],
            Some(hammer()),
        ),
        (
            "strip rules",
            vec![role("hammer", not_bar, &hammer()), combined(&[bar], &hammer())],
            Some(json!([])),
        ),
        (
            "select properly and put in order",
            vec![
                role("hammer", bar, &hammer()),
                role("chisel", bar, &chisel()),
                role("saw", not_bar, &saw()),
                combined(&[bar], &json!(null)),
            ],
            Some(rules(&[chisel(), hammer()])),
        ),
        (
            "select properly with multiple selectors",
            vec![
                role("hammer", bar, &hammer()),
                role("chisel", bar, &chisel()),
                role("saw", not_bar, &saw()),
                combined(&[bar, not_bar], &json!(null)),
            ],
            Some(rules(&[chisel(), hammer(), saw()])),
        ),
        (
            "select properly remove duplicates",
            vec![
                role("hammer", bar, &hammer()),
                role("chisel", bar, &chisel()),
                role("saw", bar, &saw()),
                role("other-saw", not_bar, &saw()),
                combined(&[bar, not_bar], &json!(null)),
            ],
            Some(rules(&[chisel(), hammer(), saw()])),
        ),
        (
            "no diff skip",
            vec![role("hammer", bar, &hammer()), combined(&[bar], &hammer())],
            None,
        ),
    ];
    for (name, roles, expected) in table {
        assert_eq!(applied(roles), expected, "{name}");
    }
}

#[test]
fn equal_rules_are_not_written_whatever_their_form_and_order() {
    let explicit = json!([{
        "verbs": ["saw"], "resources": ["boards"], "apiGroups": [], "resourceNames": null, "nonResourceURLs": []}]);
    let table = [
        (
            "explicit lists",
            vec![role("saw", "bar", &saw()), combined(&["bar"], &explicit)],
        ),
        ("no rules", vec![combined(&["bar"], &json!([]))]),
        (
            "null",
            vec![role("saw", "bar", &json!(null)), combined(&["bar"], &json!(null))],
        ),
        (
            "another order",
            vec![
                role("saw", "bar", &saw()),
                role("chisel", "bar", &chisel()),
                combined(&["bar"], &rules(&[saw(), chisel()])),
            ],
        ),
    ];
    for (name, roles) in table {
        assert_eq!(applied(roles), None, "{name}");
    }
    let twice = vec![role("saw", "bar", &saw()), combined(&["bar"], &rules(&[saw(), saw()]))];
    assert_eq!(applied(twice), Some(saw()));
}

/// A role may match its own selector, and all fields of a rule are kept.
#[test]
fn a_role_does_not_aggregate_itself() {
    let url = json!([{"verbs": ["get"], "nonResourceURLs": ["/metrics"]}]);
    let named = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}]);
    let mut everything = combined(&["bar"], &saw());
    everything["aggregationRule"]["clusterRoleSelectors"] = json!([{}]);
    let roles = vec![role("a", "", &url), role("b", "", &named), everything];
    assert_eq!(applied(roles), Some(rules(&[url, named])));
}

#[test]
fn a_role_that_is_being_deleted_is_left_alone() {
    let mut deleted = combined(&["bar"], &saw());
    deleted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    assert_eq!(applied(vec![role("hammer", "bar", &hammer()), deleted]), None);
}

/// One decision follows the other, as with one worker.
#[test]
fn roles_that_aggregate_each_other_settle() {
    let names = ["a", "b", "c"];
    let mut roles: Vec<Value> = names
        .iter()
        .zip([hammer(), chisel(), saw()])
        .map(|(name, rules)| {
            let mut role = combined(&["bar"], &rules);
            role["metadata"] = json!({"name": name, "uid": "u", "resourceVersion": "7", "labels": {"foo": "bar"}});
            role
        })
        .collect();
    let mut writes = 0;
    loop {
        let before = writes;
        for index in 0..roles.len() {
            let mut all = roles.clone();
            let role = all.remove(index);
            all.push(role);
            if let Some(rules) = applied(all) {
                roles[index]["rules"] = rules;
                writes += 1;
            }
        }
        assert!(writes < 10, "{roles:?}");
        if writes == before {
            break;
        }
    }
    let counts: Vec<_> = roles
        .iter()
        .map(|role| role["rules"].as_array().unwrap().len())
        .collect();
    // The first decision replaces the rules of `a`, which no other role has.
    assert_eq!(counts, [2, 2, 2]);
}

/// The rules of ten thousand roles are compared in a time that does not grow with their square.
#[test]
fn thousands_of_rules_are_merged() {
    let mut roles: Vec<_> = (0..10_000)
        .map(|number| {
            let rules = json!([{"verbs": ["get"], "resources": [format!("r{}", number / 2)]}]);
            role(&format!("role-{number:05}"), "bar", &rules)
        })
        .collect();
    roles.push(combined(&["bar"], &json!(null)));
    let applied = applied(roles).unwrap();
    assert_eq!(applied.as_array().unwrap().len(), 5_000);
}
