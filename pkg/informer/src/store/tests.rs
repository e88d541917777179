//! Tests of the changes that events produce, one table per situation.

#![allow(
    clippy::needless_raw_string_hashes,
    reason = "expect-test generates the strings in this form"
)]

mod indexes;
mod properties;
mod subscribers;

use expect_test::{Expect, expect};

use super::*;
use crate::scripted::{Foo, foo, print};

/// Parses an object: `a@1` is the object `a` at version 1, and `a@1+y` has the UID `y` instead of
/// `x`.
fn object(text: &str) -> Foo {
    let (text, uid) = text.split_once('+').unwrap_or((text, "x"));
    let (name, version) = text.split_once('@').unwrap();
    let mut foo: Foo = serde_json::from_value(foo(name, version.parse().unwrap())).unwrap();
    foo.metadata.uid = uid.into();
    foo
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("n", name)
}

/// Parses an event from a word and an object: `listed a@1`.
fn event(line: &str) -> Event<Foo> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "relisting" => Event::Relisting,
        "synced" => Event::Synced,
        "listed" => Event::Listed(object(rest)),
        "applied" => Event::Applied(object(rest)),
        "deleted" => Event::Deleted(object(rest)),
        "undecodable" => {
            let (name, uid) = rest.split_once('+').unwrap_or((rest, ""));
            Event::Undecodable {
                key: key(name),
                uid: uid.into(),
                error: "bad".to_owned(),
            }
        }
        "deleted-undecodable" => Event::DeletedUndecodable(key(rest)),
        other => panic!("unknown event {other}"),
    }
}

fn format_delta(delta: &Delta<Foo>) -> String {
    let change = match &delta.change {
        Change::Added(object) => format!("added {}", print(&**object)),
        Change::Updated { old, new } => format!("updated {} to {}", print(&**old), print(&**new)),
        Change::Deleted { last, is_final } => {
            let state = if *is_final { "final" } else { "last known" };
            format!("deleted {} ({state})", print(&**last))
        }
    };
    format!("{change}, {:?}", delta.cause)
}

/// Checks the changes that these events produce, one line each, and the final contents of the
/// store.
fn check(events: &[&str], expected: &Expect) {
    let mut store = Store::default();
    let mut text = String::new();
    for line in events {
        let deltas: Vec<_> = store.apply(event(line)).iter().map(format_delta).collect();
        text += format!("{line}: {}", deltas.join("; ")).trim_end();
        text.push('\n');
    }
    let mut objects: Vec<_> = store.iter().map(|object| print(&**object)).collect();
    objects.sort();
    let bad: Vec<_> = store.undecodable().keys().map(ToString::to_string).collect();
    let end = format!("holds {objects:?}, undecodable {bad:?}, synced {}\n", store.is_synced());
    expected.assert_eq(&(text + &end));
}

fn by_version() -> IndexFn<Foo> {
    Arc::new(|object: &Foo| vec![(*object.metadata.resource_version).into()])
}

fn found(store: &Store<Foo>, index: usize, value: &str) -> Vec<String> {
    let mut found: Vec<_> = store.by_index(index, value).map(|object| print(&**object)).collect();
    found.sort();
    found
}

#[test]
fn a_first_list_adds_and_a_watch_changes() {
    check(
        &[
            "relisting",
            "listed a@1",
            "synced",
            "applied b@2",
            "applied a@3",
            "deleted b@4",
        ],
        &expect![[r#"
            relisting:
            listed a@1: added a@1, Listed
            synced:
            applied b@2: added b@2, Watched
            applied a@3: updated a@1 to a@3, Watched
            deleted b@4: deleted b@4 (final), Watched
            holds ["a@3"], undecodable [], synced true
        "#]],
    );
}

#[test]
fn a_relist_reports_only_differences() {
    check(
        &[
            "relisting",
            "listed same@1",
            "listed changed@2",
            "listed gone@3",
            "synced", //
            "relisting",
            "listed same@1",
            "listed changed@9",
            "listed new@8",
            "synced",
        ],
        &expect![[r#"
            relisting:
            listed same@1: added same@1, Listed
            listed changed@2: added changed@2, Listed
            listed gone@3: added gone@3, Listed
            synced:
            relisting:
            listed same@1:
            listed changed@9: updated changed@2 to changed@9, Relisted
            listed new@8: added new@8, Relisted
            synced: deleted gone@3 (last known), Relisted
            holds ["changed@9", "new@8", "same@1"], undecodable [], synced true
        "#]],
    );
}

/// Versions are compared only for equality, and two objects can have the same one.
#[test]
fn a_recreated_object_with_the_same_version_is_another_object() {
    check(
        &["relisting", "listed a@1+x", "synced", "applied a@1+y"],
        &expect![[r#"
            relisting:
            listed a@1+x: added a@1, Listed
            synced:
            applied a@1+y: deleted a@1 (last known), Watched; added a@1, Watched
            holds ["a@1"], undecodable [], synced true
        "#]],
    );
}

#[test]
fn an_object_that_becomes_undecodable_keeps_its_last_good_state() {
    check(
        &[
            "relisting",
            "listed a@1",
            "listed b@2",
            "synced",
            "undecodable a", //
            "relisting",
            "undecodable a",
            "undecodable c",
            "synced",
        ],
        &expect![[r#"
            relisting:
            listed a@1: added a@1, Listed
            listed b@2: added b@2, Listed
            synced:
            undecodable a:
            relisting:
            undecodable a:
            undecodable c:
            synced: deleted b@2 (last known), Relisted
            holds ["a@1"], undecodable ["n/a", "n/c"], synced true
        "#]],
    );
}

#[test]
fn an_object_that_becomes_decodable_is_no_longer_undecodable() {
    check(
        &[
            "relisting",
            "undecodable a",
            "listed b@1",
            "synced",
            "applied a@2",
            "undecodable b",
            "applied b@1",
        ],
        &expect![[r#"
            relisting:
            undecodable a:
            listed b@1: added b@1, Listed
            synced:
            applied a@2: added a@2, Watched
            undecodable b:
            applied b@1:
            holds ["a@2", "b@1"], undecodable [], synced true
        "#]],
    );
}

#[test]
fn a_deletion_clears_undecodable_objects_and_marks_the_state_as_not_final() {
    check(
        &[
            "relisting",
            "listed a@1",
            "undecodable b",
            "undecodable c",
            "synced", //
            "deleted-undecodable a",
            "deleted-undecodable b",
            "deleted c@5",
        ],
        &expect![[r#"
            relisting:
            listed a@1: added a@1, Listed
            undecodable b:
            undecodable c:
            synced:
            deleted-undecodable a: deleted a@1 (last known), Watched
            deleted-undecodable b:
            deleted c@5:
            holds [], undecodable [], synced true
        "#]],
    );
}

#[test]
fn a_store_stays_synced_during_a_relist() {
    let mut store = Store::default();
    let mut synced = Vec::new();
    for line in ["relisting", "relisting", "synced", "relisting", "relisting", "synced"] {
        store.apply(event(line));
        synced.push(store.is_synced());
    }
    assert_eq!(synced, [false, false, true, true, true, true]);
}

#[test]
fn an_undecodable_object_with_another_uid_deletes_the_previous_one() {
    check(
        &[
            "relisting",
            "listed a@1",
            "listed b@1",
            "synced",
            "undecodable b+x", //
            "relisting",
            "undecodable a+y",
            "undecodable b+x",
            "synced",
            "applied a@5+y",
        ],
        &expect![[r#"
            relisting:
            listed a@1: added a@1, Listed
            listed b@1: added b@1, Listed
            synced:
            undecodable b+x:
            relisting:
            undecodable a+y: deleted a@1 (last known), Relisted
            undecodable b+x:
            synced:
            applied a@5+y: added a@5, Watched
            holds ["a@5", "b@1"], undecodable ["n/b"], synced true
        "#]],
    );
}
