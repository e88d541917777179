//! Decodes recorded and mutated metadata. Nothing panics, no object is deleted before its owner has
//! been read, and a response that is not a list is not taken for an empty one.

use std::cell::Cell;

use portreeve_garbagecollector_graph::{Attempt, AttemptStep, FollowUps, Graph, Intent};
use portreeve_testing::Corpus;

use super::*;

/// The number of mutations of each folder's inputs.
const MUTATIONS: usize = 4_000;

fn corpus(folder: &str) -> anyhow::Result<Corpus> {
    Corpus::read(format!("{}/corpus/{folder}", env!("CARGO_MANIFEST_DIR")))
}

/// Feeds these objects to a new graph, and checks that no attempt deletes before it has read the
/// owner.
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
        assert!(!deletes, "deletes without having read the owner: {step:?}");
        drop(graph.orphaning(*uid));
    }
    for seen in objects {
        // Query the graph as the debug pages do.
        if let Some(uid) = graph.uid(&seen.metadata.uid) {
            assert!(graph.view(uid).is_some());
        }
        drop(graph.select(&[&*seen.metadata.uid, &*seen.metadata.name]));
        graph.deleted(monitor, seen, &mut follow_ups);
    }
}

#[test]
fn objects_are_decoded_or_rejected_and_not_deleted_without_reading_the_owner() -> anyhow::Result<()> {
    corpus("object")?.check(MUTATIONS, |input| {
        if let Ok(seen) = decode::<PartialObject>(input) {
            take_in(&[seen]);
        }
    })
}

#[test]
fn list_pages_are_decoded_or_rejected() -> anyhow::Result<()> {
    corpus("list")?.check(MUTATIONS, |input| {
        if let Ok((objects, next)) = read_page(input) {
            assert_ne!(
                next.as_deref(),
                Some(""),
                "an empty token would start the list again, forever"
            );
            take_in(&objects);
        }
    })
}

#[test]
fn finalizer_position_is_correct_and_belongs_to_the_object() -> anyhow::Result<()> {
    let (finalizer, uid) = ("example.com/x", "b94384ab-a989-4a63-8c34-623b45def8b1");
    let corpus = corpus("object")?;
    let found = Cell::new(0_usize);
    corpus.check(MUTATIONS, |input| {
        let Ok(Some(place)) = place_of(finalizer, uid, input) else {
            return;
        };
        // Numbers in fields that the collector skips may exceed what `Value` can hold.
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
    anyhow::ensure!(found.get() > 100, "only {found:?} inputs have the finalizer");
    Ok(())
}

#[test]
fn response_that_is_not_a_list_is_an_error() {
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
