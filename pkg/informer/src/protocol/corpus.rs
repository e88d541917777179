//! Tests with recorded lists and watches, and with mutations as by a bad connection or a proxy: no
//! input causes a panic or a hang, and every decoded event is consistent.

use std::collections::BTreeMap;

use portreeve_testing::Corpus;

use super::{
    decoded::{Decoded, decode_item, decode_line},
    *,
};
use crate::{Change, MetadataOnly, Projection, Store, scripted::Foo};

/// The number of mutations per folder.
const MUTATIONS: usize = 1_500;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

/// Decodes all messages from bytes that arrive in these pieces, until the first error, as the loop
/// does.
fn decode_all<T: WatchedObject>(pieces: &[&[u8]]) -> Vec<Result<Decoded<T>, JsonError>> {
    let mut lines = Lines::default();
    let mut all = Vec::new();
    for piece in pieces {
        lines.push(piece);
        while let Some(line) = lines.next() {
            all.push(decode_line(&line));
            if all.last().is_some_and(Result::is_err) {
                return all;
            }
        }
    }
    all
}

fn print<T: Projection>(all: &[Result<Decoded<T>, JsonError>]) -> Vec<String> {
    let object = |object: &T| format!("{:?}", object.metadata());
    let print = |message: &Result<Decoded<T>, JsonError>| match message {
        Err(error) => format!("error {error}"),
        Ok(Decoded::Bookmark { version }) => format!("bookmark {version:?}"),
        Ok(Decoded::Failed(status)) => format!("failed {status:?}"),
        Ok(Decoded::Event { event, version }) => match event {
            Event::Applied(applied) => format!("applied {} {version:?}", object(applied)),
            Event::Deleted(deleted) => format!("deleted {} {version:?}", object(deleted)),
            Event::Undecodable { key, uid, error } => format!("undecodable {key} {uid} {error} {version:?}"),
            Event::DeletedUndecodable(key) => format!("deleted undecodable {key} {version:?}"),
            Event::Relisting | Event::Synced | Event::Listed(_) => panic!("a watch does not list"),
        },
    };
    all.iter().map(print).collect()
}

/// Checks that an object has a name, and that an undecodable one has an error.
fn check_event<T: Projection>(event: &Event<T>) {
    match event {
        Event::Listed(object) | Event::Applied(object) | Event::Deleted(object) => {
            assert!(!object.metadata().name.is_empty(), "an object has no name");
        }
        Event::Undecodable { key, error, .. } => assert!(!key.name.is_empty() && !error.is_empty()),
        Event::DeletedUndecodable(key) => assert!(!key.name.is_empty()),
        Event::Relisting | Event::Synced => {}
    }
}

/// Applies the events to a store, and checks that its changes rebuild its contents.
fn apply_and_replay<T: Projection>(events: impl IntoIterator<Item = Event<T>>) {
    let (mut store, mut replayed) = (Store::default(), BTreeMap::new());
    for event in events {
        check_event(&event);
        for delta in store.apply(event) {
            let (key, object) = (delta.key(), delta.change.object());
            match &delta.change {
                Change::Deleted { .. } => replayed.remove(&key),
                Change::Added(_) | Change::Updated { .. } => replayed.insert(key, object.metadata().clone()),
            };
        }
    }
    let objects = store.iter().map(|object| object.metadata().clone());
    let stored: BTreeMap<_, _> = objects.map(|metadata| (metadata.key(), metadata)).collect();
    assert_eq!(stored, replayed);
}

fn check_watch<T: Projection>(input: &[u8]) {
    let messages = decode_all::<T>(&[input]);
    // The messages do not depend on how the bytes are cut. The cut depends on the input.
    let (first, second) = input.split_at(input.len() * (input.len() % 7) / 7);
    let whole = print(&messages);
    assert_eq!(print(&decode_all::<T>(&[first, second])), whole);
    // A watch that ends at the cut has a prefix of the messages.
    let prefix = print(&decode_all::<T>(&[first]));
    assert!(whole.starts_with(&prefix), "{prefix:?} is no prefix of {whole:?}");
    let events = messages.into_iter().filter_map(|message| match message {
        Ok(Decoded::Event { event, version }) => {
            assert_ne!(version.as_deref(), Some(""), "an event has an empty version");
            Some(event)
        }
        _ => None,
    });
    apply_and_replay(events);
}

#[test]
fn a_watch_is_decoded_the_same_wherever_its_bytes_are_cut() -> anyhow::Result<()> {
    corpus("watch")?.check(MUTATIONS, |input| {
        check_watch::<MetadataOnly>(input);
        check_watch::<Foo>(input);
    })
}

fn check_list<T: Projection>(input: &[u8]) {
    let Ok(page) = Page::read(input) else { return };
    let listed = page.items.into_iter().flatten().map(decode_item::<T>);
    apply_and_replay([Event::Relisting].into_iter().chain(listed).chain([Event::Synced]));
}

#[test]
fn a_list_contains_named_objects_or_errors() -> anyhow::Result<()> {
    corpus("list")?.check(MUTATIONS, |input| {
        check_list::<MetadataOnly>(input);
        check_list::<Foo>(input);
    })
}

/// Objects that are missing from a list count as deleted, so another response must not be decoded
/// as an empty list.
#[test]
fn other_responses_are_not_empty_lists() {
    for input in [
        "{}",
        "[]",
        "null",
        r#"{"message":"please log in"}"#,
        r#"{"kind":"Status","status":"Success"}"#,
        r#"{"kind":"FooList","metadata":{"resourceVersion":"5"}}"#,
        r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#,
        r#"{"kind":"Foo","metadata":{"name":"a"},"items":[]}"#,
    ] {
        assert!(Page::read(input.as_bytes()).is_err(), "{input}");
    }
}
