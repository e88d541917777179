//! Metadata as an apiserver sent it, and as it might be garbled: nothing panics, one sight of an object deletes nothing, and what is no
//! list is no empty list.

use std::cell::Cell;

use portreeve_testing::Corpus;

use super::*;
use crate::{Attempt, AttemptStep, FollowUps, Graph, Intent};

/// How many mutations there are of each folder.
const MUTATIONS: usize = 4_000;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

/// What the graph makes of these objects, each the first of its kind that it hears of.
fn take_in(objects: &[PartialObject]) {
    let mut graph = Graph::default();
    let mut follow_ups = FollowUps::default();
    let monitor = graph.add_monitor("v1", "ConfigMap");
    for seen in objects {
        graph.observe(monitor, seen, &mut follow_ups);
    }
    graph.full_scan(&mut follow_ups);
    for uid in follow_ups.attempt.iter().chain(&follow_ups.orphan) {
        let step = graph.step(&Attempt::new(*uid));
        let deletes = matches!(step, AttemptStep::Apply(Intent::Delete { .. }));
        assert!(!deletes, "without having asked for the owner: {step:?}");
        drop(graph.orphaning(*uid));
    }
    for seen in objects {
        // As a reader of the pages might ask for it.
        if let Some(uid) = graph.uid(&seen.metadata.uid) {
            assert!(graph.view(uid).is_some());
        }
        drop(graph.select(&[&*seen.metadata.uid, &*seen.metadata.name]));
        graph.deleted(monitor, seen, &mut follow_ups);
    }
}

#[test]
fn objects_are_read_or_refused_and_deleted_by_no_single_sight() -> anyhow::Result<()> {
    corpus("object")?.check(MUTATIONS, |input| {
        if let Ok(seen) = decode::<PartialObject>(input) {
            take_in(&[seen]);
        }
    })
}

#[test]
fn pages_of_lists_are_read_or_refused() -> anyhow::Result<()> {
    corpus("list")?.check(MUTATIONS, |input| {
        if let Ok((objects, next)) = read_page(input) {
            assert_ne!(next.as_deref(), Some(""), "an empty token would begin anew, for ever");
            take_in(&objects);
        }
    })
}

#[test]
fn a_finalizer_is_where_it_is_said_to_be_and_of_nobody_else() -> anyhow::Result<()> {
    let (finalizer, uid) = ("example.com/x", "b94384ab-a989-4a63-8c34-623b45def8b1");
    let corpus = corpus("object")?;
    let found = Cell::new(0_usize);
    corpus.check(MUTATIONS, |input| {
        let Ok(Some(place)) = place_of(finalizer, uid, input) else {
            return;
        };
        // Numbers that nobody reads may be beyond all that there are.
        let Ok(object) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        found.set(found.get() + 1);
        let metadata = &object["metadata"];
        assert_eq!(
            (&metadata["finalizers"][place], &metadata["uid"]),
            (&finalizer.into(), &uid.into())
        );
    })?;
    anyhow::ensure!(found.get() > 100, "only {found:?} inputs have one");
    Ok(())
}

#[test]
fn what_is_no_list_is_no_empty_list() {
    for input in [
        "{}",
        r#"{"kind":"Status","status":"Success"}"#,
        r#"{"kind":"PodList","metadata":{}}"#,
        r#"{"metadata":{},"items":[]}"#,
        r#"{"kind":"Pod","items":[]}"#,
    ] {
        assert!(read_page(input.as_bytes()).is_err(), "{input}");
    }
    assert!(read_page(br#"{"kind":"PodList","items":null}"#).is_ok());
}
