//! Indexes are kept whatever comes when.

use super::*;

#[test]
fn an_index_covers_what_was_there_before_it_and_what_comes_after() {
    let mut store = Store::default();
    for line in ["relisting", "listed a@1", "listed b@1", "synced"] {
        store.apply(event(line));
    }
    let index = store.add_index("version", by_version());
    assert_eq!(found(&store, index, "1"), ["a@1", "b@1"]);
    store.apply(event("applied c@1"));
    store.apply(event("applied a@2"));
    store.apply(event("deleted b@3"));
    assert_eq!(found(&store, index, "1"), ["c@1"]);
    assert_eq!(found(&store, index, "2"), ["a@2"]);
    assert!(found(&store, index, "3").is_empty());
}

#[test]
fn one_name_is_one_index() {
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
fn a_value_that_is_given_twice_is_found_once_and_forgotten_whole() {
    let mut store = Store::default();
    let index = store.add_index("twice", Arc::new(|_: &Foo| vec!["v".into(), "v".into()]));
    store.apply(event("applied a@1"));
    assert_eq!(found(&store, index, "v"), ["a@1"]);
    store.apply(event("deleted a@2"));
    assert!(found(&store, index, "v").is_empty());
}
