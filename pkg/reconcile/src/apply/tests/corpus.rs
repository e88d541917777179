//! Objects as an apiserver sent them, and as they might be garbled: what is there is not taken for gone, nor what is gone for there.

use portreeve_testing::Corpus;
use serde_json::Value;

use super::*;

/// How many mutations there are.
const MUTATIONS: usize = 4_000;
const UID: &str = "b94384ab-a989-4a63-8c34-623b45def8b1";
const CONTROLLER: &str = "4a1b6c68-7d3e-43b7-9c58-6a7c0f6a9d10";

/// The answer to a read, as the client tells it.
fn answer(input: &[u8]) -> kube::Result<Identified> {
    serde_json::from_slice(input).map_err(kube::Error::SerdeError)
}

#[test]
fn nothing_is_gone_or_there_unless_an_object_says_so() {
    let key = ObjectKey::namespaced("default", "owner");
    let absent = Effect::RequireAbsent {
        resource: PODS,
        key: key.clone(),
        uid: UID.into(),
        controller: CONTROLLER.into(),
    };
    let present = Effect::RequirePresent {
        resource: PODS,
        key,
        uid: UID.into(),
    };
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/object")).unwrap();
    let held = corpus.check(MUTATIONS, |input| {
        let presence = check_presence(&present, UID, answer(input));
        let absence = check_absence(&absent, (UID, CONTROLLER), answer(input));
        if answer(input).is_err() {
            assert!(
                presence.is_some() && absence.is_some(),
                "what cannot be read says nothing"
            );
            return;
        }
        // Numbers that nobody reads may be beyond all that there are.
        let Ok(said) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        let metadata = &said["metadata"];
        let is_it = metadata["uid"] == UID;
        if presence.is_none() {
            assert!(is_it && metadata["deletionTimestamp"].is_null(), "it is not there");
        }
        if absence.is_none() {
            assert!(
                metadata["uid"].as_str().is_some_and(|uid| !uid.is_empty()),
                "no object says so"
            );
            let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
            let is_its = |owner: &Value| owner["controller"] == true && owner["uid"] == CONTROLLER;
            assert!(!is_it || !owners.any(is_its), "it is there");
        }
    });
    held.unwrap();
}
