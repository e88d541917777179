//! The JSON patches that the collector sends. Each tests the UID of the object and everything else
//! that must not have changed.

use serde_json::{Value, json};

/// Returns the patch that removes references. It tests that each reference still has the UID of its
/// owner.
pub(super) fn remove_references(uid: &str, references: &[(usize, Box<str>)]) -> Value {
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": uid })];
    // Start with the last, so that the positions of the others do not change.
    let mut references: Vec<_> = references.iter().collect();
    references.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    for (place, owner) in references {
        let path = format!("/metadata/ownerReferences/{place}");
        operations.push(json!({ "op": "test", "path": format!("{path}/uid"), "value": owner }));
        operations.push(json!({ "op": "remove", "path": path }));
    }
    operations.into()
}

/// Returns the patch that unsets `blockOwnerDeletion` in references. It tests the version of the
/// decision: the deletion that follows uses the new version, so a new owner that was added in
/// between must make the patch fail.
pub(super) fn unblock(uid: &str, version: &str, references: &[(usize, Box<str>)]) -> Value {
    let mut operations = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": uid }),
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }),
    ];
    for (place, owner) in references {
        let path = format!("/metadata/ownerReferences/{place}");
        operations.push(json!({ "op": "test", "path": format!("{path}/uid"), "value": owner }));
        operations.push(json!({ "op": "replace", "path": format!("{path}/blockOwnerDeletion"), "value": false }));
    }
    operations.into()
}

/// Returns the patch that removes the finalizer at this position. It tests that the finalizer still
/// has that position.
pub(super) fn remove_finalizer(uid: &str, place: usize, finalizer: &str) -> Value {
    let path = format!("/metadata/finalizers/{place}");
    json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": path, "value": finalizer },
        { "op": "remove", "path": path },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unblock_patch_tests_the_resource_version() {
        let patch = unblock("u", "7", &[(1, "b".into())]);
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "test", "path": "/metadata/ownerReferences/1/uid", "value": "b"},
                {"op": "replace", "path": "/metadata/ownerReferences/1/blockOwnerDeletion", "value": false},
            ])
        );
    }

    #[test]
    fn references_are_removed_from_the_last_to_the_first() {
        let patch = remove_references("u", &[(0, "a".into()), (2, "c".into())]);
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/ownerReferences/2/uid", "value": "c"},
                {"op": "remove", "path": "/metadata/ownerReferences/2"},
                {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": "a"},
                {"op": "remove", "path": "/metadata/ownerReferences/0"},
            ])
        );
    }
}
