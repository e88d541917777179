//! Lists and watches as an apiserver sent them, and as a bad connection, a proxy or a stranger
//! might: nothing panics or hangs, and nothing is heard that was not said.

use std::collections::BTreeMap;

use portreeve_testing::Corpus;

use super::*;
use crate::{Change, MetadataOnly, Projection, Store, scripted::Foo};

/// How many mutations there are of each folder.
const MUTATIONS: usize = 1_500;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

/// Everything that the bytes say, when they come in these pieces. What cannot be read is the end,
/// as it is for the loop.
fn hear_all<T: WatchedObject>(pieces: &[&[u8]]) -> Vec<Result<WatchMessage<T>, JsonError>> {
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

fn print<T: Projection>(all: &[Result<WatchMessage<T>, JsonError>]) -> Vec<String> {
    let object = |object: &T| format!("{:?}", object.metadata());
    let print = |heard: &Result<WatchMessage<T>, JsonError>| match heard {
        Err(error) => format!("error {error}"),
        Ok(WatchMessage::Bookmark { version }) => format!("bookmark {version:?}"),
        Ok(WatchMessage::Failed(status)) => format!("failed {status:?}"),
        Ok(WatchMessage::Event { event, version }) => match event {
            Event::Applied(applied) => format!("applied {} {version:?}", object(applied)),
            Event::Deleted(deleted) => format!("deleted {} {version:?}", object(deleted)),
            Event::Undecodable { key, uid, error } => format!("undecodable {key} {uid} {error} {version:?}"),
            Event::DeletedUndecodable(key) => format!("deleted undecodable {key} {version:?}"),
            Event::Relisting | Event::Synced | Event::Listed(_) => panic!("a watch does not list"),
        },
    };
    all.iter().map(print).collect()
}

/// An object is one with a name, or it is said what is wrong with it.
fn check_event<T: Projection>(event: &Event<T>) {
    match event {
        Event::Listed(object) | Event::Applied(object) | Event::Deleted(object) => {
            assert!(!object.metadata().name.is_empty(), "an object without a name");
        }
        Event::Undecodable { key, error, .. } => assert!(!key.name.is_empty() && !error.is_empty()),
        Event::DeletedUndecodable(key) => assert!(!key.name.is_empty()),
        Event::Relisting | Event::Synced => {}
    }
}

/// Takes the events into a store, and rebuilds it from what is told of them.
fn take_in<T: Projection>(events: impl IntoIterator<Item = Event<T>>) {
    let (mut store, mut told) = (Store::default(), BTreeMap::new());
    for event in events {
        check_event(&event);
        for delta in store.apply(event) {
            let (key, object) = (delta.key(), delta.change.object());
            match &delta.change {
                Change::Deleted { .. } => told.remove(&key),
                Change::Added(_) | Change::Updated { .. } => told.insert(key, object.metadata().clone()),
            };
        }
    }
    let objects = store.iter().map(|object| object.metadata().clone());
    let held: BTreeMap<_, _> = objects.map(|metadata| (metadata.key(), metadata)).collect();
    assert_eq!(held, told);
}

fn check_watch<T: Projection>(input: &[u8]) {
    let heard = hear_all::<T>(&[input]);
    // However the bytes are cut, the same is heard; the place depends on the input.
    let (first, second) = input.split_at(input.len() * (input.len() % 7) / 7);
    let whole = print(&heard);
    assert_eq!(print(&hear_all::<T>(&[first, second])), whole);
    // And of a watch that ends there, nothing that is not heard of the whole.
    let begun = print(&hear_all::<T>(&[first]));
    assert!(whole.starts_with(&begun), "{begun:?} of {whole:?}");
    let events = heard.into_iter().filter_map(|heard| match heard {
        Ok(WatchMessage::Event { event, version }) => {
            assert_ne!(version.as_deref(), Some(""), "an empty version would start anywhere");
            Some(event)
        }
        _ => None,
    });
    take_in(events);
}

#[test]
fn a_watch_says_the_same_however_it_is_cut_and_nothing_that_is_made_up() -> anyhow::Result<()> {
    corpus("watch")?.check(MUTATIONS, |input| {
        check_watch::<MetadataOnly>(input);
        check_watch::<Foo>(input);
    })
}

fn check_list<T: Projection>(input: &[u8]) {
    let Ok(page) = Page::read(input) else { return };
    let listed = page.items.into_iter().flatten().map(decode_item::<T>);
    take_in([Event::Relisting].into_iter().chain(listed).chain([Event::Synced]));
}

#[test]
fn a_list_holds_objects_with_names_or_says_what_is_wrong_with_them() -> anyhow::Result<()> {
    corpus("list")?.check(MUTATIONS, |input| {
        check_list::<MetadataOnly>(input);
        check_list::<Foo>(input);
    })
}

/// What a list does not name is gone for whoever reads it: an answer that is no list must not be
/// taken for an empty one.
#[test]
fn what_is_no_list_is_no_empty_list() {
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
