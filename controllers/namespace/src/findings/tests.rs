//! Tests of conditions: their words, their order and their times.

use super::*;
use crate::content::ContentMetadata;

const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");
const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "Deployment", "deployments");

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn content(objects: &[(&str, &[&str])]) -> Content {
    let mut content = Content::default();
    for (name, finalizers) in objects {
        content.add(ContentMetadata {
            name: (*name).to_owned(),
            deletion_timestamp: Some(time(0)),
            finalizers: Some(finalizers.iter().map(|text| (*text).to_owned()).collect()),
            ..ContentMetadata::default()
        });
    }
    content
}

fn findings(content: &[(&Resource, Content)]) -> Findings {
    let content = content
        .iter()
        .map(|(resource, content)| (Name::of(resource), content.clone()));
    Findings {
        content: content.collect(),
        ..Findings::default()
    }
}

/// Formats conditions, one in a line.
fn lines(conditions: &[Value]) -> Vec<String> {
    let text = |condition: &Value, field: &str| condition[field].as_str().unwrap().to_owned();
    conditions
        .iter()
        .map(|condition| {
            let [type_, status, reason, message] =
                ["type", "status", "reason", "message"].map(|field| text(condition, field));
            format!("{type_} {status} {reason}: {message}")
        })
        .collect()
}

#[test]
fn an_empty_namespace_has_five_conditions_that_do_not_hold() {
    let conditions = Findings::default().conditions(&[], true, time(0)).unwrap();
    assert_eq!(
        lines(&conditions),
        [
            "NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
            "NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
            "NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on finalization",
            "NamespaceContentRemaining False ContentRemoved: All content successfully removed",
            "NamespaceFinalizersRemaining False ContentHasNoFinalizers: All content-preserving finalizers finished",
        ]
    );
}

#[test]
fn what_remains_is_counted_in_the_words_of_kube_controller_manager() {
    let found = findings(&[
        (&PODS, content(&[("a", &["x"]), ("b", &["x", "y"])])),
        (&DEPLOYMENTS, content(&[("web", &["custom.io/finalizer"])])),
    ]);
    let conditions = lines(&found.conditions(&[], false, time(0)).unwrap());
    assert_eq!(
        conditions[3],
        "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: \
         deployments.apps has 1 resource instances, pods. has 2 resource instances"
    );
    assert_eq!(
        conditions[4],
        "NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: \
         custom.io/finalizer in 1 resource instances, x in 2 resource instances, y in 1 resource instances"
    );
    assert!(!found.is_empty());
}

#[test]
fn details_follow_those_words() {
    let found = findings(&[(&DEPLOYMENTS, content(&[("web", &["custom.io/finalizer"])]))]);
    let conditions = lines(&found.conditions(&[], true, time(0)).unwrap());
    assert_eq!(
        conditions[3],
        "NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: deployments.apps has 1 resource instances. \
         Among them: deployments.apps web (deleted 1970-01-01T00:00:00Z, finalizers custom.io/finalizer)"
    );
}

#[test]
fn failures_are_counted_and_sorted() {
    let found = Findings {
        hidden: vec!["a/v1: stale".to_owned()],
        failures: BTreeMap::from([
            (Name::of(&PODS), "forbidden".to_owned()),
            (Name::of(&DEPLOYMENTS), "timeout".to_owned()),
        ]),
        ..Findings::default()
    };
    let conditions = lines(&found.conditions(&[], false, time(0)).unwrap());
    assert_eq!(
        conditions[0],
        "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: Discovery failed for some groups, 1 failing: a/v1: stale"
    );
    assert_eq!(
        conditions[2],
        "NamespaceDeletionContentFailure True ContentDeletionFailed: Failed to delete all resource types, 2 remaining: \
         deployments.apps: timeout, pods: forbidden"
    );
}

#[test]
fn the_time_of_a_condition_changes_only_with_its_status() {
    let found = findings(&[(&PODS, content(&[("a", &[])]))]);
    let first = found.conditions(&[json!({"type": "Other"})], false, time(1)).unwrap();
    assert_eq!(first[0], json!({"type": "Other"}));
    assert_eq!(found.conditions(&first, false, time(2)), None);
    let more = findings(&[(&PODS, content(&[("a", &[]), ("b", &[])]))]);
    let second = more.conditions(&first, false, time(3)).unwrap();
    assert_eq!(second[4]["lastTransitionTime"], json!(time(1)));
    let last = Findings::default().conditions(&second, false, time(4)).unwrap();
    assert_eq!(last[4]["lastTransitionTime"], json!(time(4)));
    assert_eq!(last[5]["lastTransitionTime"], json!(time(1)));
}

#[test]
fn conditions_of_this_controller_are_recognized() {
    assert!(!has_conditions(&[json!({"type": "Other"}), json!(null)]));
    assert!(has_conditions(
        &Findings::default().conditions(&[], false, time(0)).unwrap()
    ));
}

#[test]
fn a_message_is_cut_between_characters() {
    let found = Findings {
        hidden: vec!["ü".repeat(MAX_MESSAGE)],
        ..Findings::default()
    };
    let conditions = found.conditions(&[], false, time(0)).unwrap();
    let message = conditions[0]["message"].as_str().unwrap();
    assert!(message.len() < MAX_MESSAGE + 20 && message.ends_with("(cut)"));
    assert!(found.summary().len() < MAX_MESSAGE + 20);
}
