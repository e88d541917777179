//! Checks responses with mutated objects: an existing object is never taken for a deleted one, nor
//! the reverse.

use portreeve_testing::Corpus;
use serde_json::Value;

use super::*;

/// The number of mutations.
const MUTATIONS: usize = 4_000;
const UID: &str = "b94384ab-a989-4a63-8c34-623b45def8b1";
const CONTROLLER: &str = "4a1b6c68-7d3e-43b7-9c58-6a7c0f6a9d10";

/// Returns the response to a read, as the client would return it.
fn answer(input: &[u8]) -> kube::Result<Identified> {
    serde_json::from_slice(input).map_err(kube::Error::SerdeError)
}

#[test]
fn only_an_object_with_a_uid_proves_presence_or_absence() {
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
        let absence = check_absence(&absent, UID, CONTROLLER, answer(input));
        if answer(input).is_err() {
            assert!(
                presence.is_some() && absence.is_some(),
                "an unreadable response must not prove anything"
            );
            return;
        }
        // `Value` cannot represent numbers out of range, which the applier does not read.
        let Ok(said) = serde_json::from_slice::<Value>(input) else {
            return;
        };
        let metadata = &said["metadata"];
        let is_it = metadata["uid"] == UID;
        if presence.is_none() {
            assert!(
                is_it && metadata["deletionTimestamp"].is_null(),
                "the object does not exist"
            );
        }
        if absence.is_none() {
            assert!(
                metadata["uid"].as_str().is_some_and(|uid| !uid.is_empty()),
                "the response is not an object"
            );
            let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
            let is_its = |owner: &Value| owner["controller"] == true && owner["uid"] == CONTROLLER;
            assert!(!is_it || !owners.any(is_its), "the object exists");
        }
    });
    held.unwrap();
}
