//! Tests that indexes match the stored objects.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use portreeve_api::Metadata;
use serde_json::json;

use super::*;
use crate::{
    MetadataOnly,
    indexes::{by_controller, controlled_by},
};

#[test]
fn a_name_identifies_one_index() {
    let mut store = Store::<Foo>::default();
    let first = store.add_index("version", by_version());
    let other = store.add_index("namespace", Arc::new(crate::indexes::by_namespace));
    assert_ne!(first, other);
    assert_eq!(store.add_index("version", by_version()), first);
    store.apply(event("applied a@1"));
    assert_eq!(found(&store, first, "1"), ["a@1"]);
    assert_eq!(found(&store, other, "n"), ["a@1"]);
}

#[test]
fn an_owner_controls_objects_of_its_own_namespace_only() {
    let object = |namespace: &str, name: &str| -> MetadataOnly {
        let owner = json!({"apiVersion": "v1", "kind": "Foo", "name": "f", "uid": "o", "controller": true});
        let metadata = json!({"namespace": namespace, "name": name, "uid": name, "ownerReferences": [owner]});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    };
    let mut store = Store::default();
    let index = store.add_index("controller", Arc::new(by_controller));
    for (namespace, name) in [("a", "one"), ("b", "two"), ("a/o", "three")] {
        store.apply(Event::Applied(object(namespace, name)));
    }
    for (namespace, expected) in [
        (Some("a"), &["one"][..]),
        (Some("b"), &["two"]),
        (Some("c"), &[]),
        (None, &[]),
    ] {
        let owner = Metadata {
            namespace: namespace.map(Arc::from),
            uid: "o".into(),
            ..Metadata::default()
        };
        let value = controlled_by(&owner);
        let found = store.by_index(index, &value);
        let found: Vec<_> = found.map(|object| &*object.metadata.name).collect();
        assert_eq!(found, expected, "{namespace:?}");
    }
}

#[test]
fn a_duplicate_value_is_indexed_once_and_removed_completely() {
    let mut store = Store::default();
    let index = store.add_index("twice", Arc::new(|_: &Foo| vec!["v".into(), "v".into()]));
    store.apply(event("applied a@1"));
    assert_eq!(found(&store, index, "v"), ["a@1"]);
    store.apply(event("deleted a@2"));
    assert!(found(&store, index, "v").is_empty());
}

#[test]
fn a_panicking_index_function_does_not_change_the_store() {
    let panics = Arc::new(AtomicBool::new(false));
    let panics_now = Arc::clone(&panics);
    let mut store = Store::default();
    let first = store.add_index("version", by_version());
    let values = by_version();
    let index = store.add_index(
        "panicking",
        Arc::new(move |object: &Foo| {
            assert!(!panics_now.load(Ordering::Relaxed), "the test makes this panic");
            values(object)
        }),
    );
    for line in ["relisting", "listed a@1", "listed b@1", "listed c@1", "synced"] {
        store.apply(event(line));
    }
    let mut check = |line: &str, expected: &[&str]| {
        panics.store(true, Ordering::Relaxed);
        let panicked = catch_unwind(AssertUnwindSafe(|| store.apply(event(line))));
        assert!(panicked.is_err(), "{line}");
        panics.store(false, Ordering::Relaxed);
        let deltas: Vec<_> = store.apply(event(line)).iter().map(format_delta).collect();
        assert_eq!(deltas, expected, "{line}");
        [first, index].map(|index| found(&store, index, "1"))
    };
    check("applied a@2", &["updated a@1 to a@2, Watched"]);
    check(
        "applied a@3+y",
        &["deleted a@2 (last known), Watched", "added a@3, Watched"],
    );
    check("deleted a@4+y", &["deleted a@4 (final), Watched"]);
    let left = check("applied d@1", &["added d@1, Watched"]);
    assert_eq!(left, [["b@1", "c@1", "d@1"], ["b@1", "c@1", "d@1"]]);
    store.apply(event("relisting"));
    let mut deleted = Vec::new();
    panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| store.apply(event("synced")))).is_err());
    panics.store(false, Ordering::Relaxed);
    deleted.extend(store.apply(event("synced")).iter().map(format_delta));
    assert_eq!(deleted.len(), 3, "{deleted:?}");
}
