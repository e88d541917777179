//! Definitions as an apiserver sent them, and as they might be garbled: nobody else's version is taken away, and nothing is written but onto
//! what was seen.

use std::cell::Cell;

use portreeve_testing::Corpus;

use super::*;

/// How many mutations there are.
const MUTATIONS: usize = 4_000;

#[test]
fn a_definition_is_written_onto_what_was_seen_or_not_at_all() {
    let wanted = definition(&["v1"], &json!({}));
    let writes = Cell::new(0_usize);
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/definition")).unwrap();
    let held = corpus.check(MUTATIONS, |input| {
        let Ok(present) = serde_json::from_slice::<CustomResourceDefinition>(input) else {
            return;
        };
        let again = decide(&wanted, Some(&present), true).unwrap();
        assert!(!matches!(again, Step::Write(_)), "it is written again: {again:?}");
        let Step::Write(plan) = decide(&wanted, Some(&present), false).unwrap() else {
            return;
        };
        writes.set(writes.get() + 1);
        let [Effect::Apply { uid, version, .. }] = &plan.effects[..] else {
            panic!("{plan}");
        };
        let metadata = &present.metadata;
        let seen = (metadata.uid.as_deref(), metadata.resource_version.as_deref());
        assert_eq!((Some(&**uid), Some(&**version)), seen);
        assert!(!uid.is_empty() && !version.is_empty(), "written onto anything");
        assert!(metadata.deletion_timestamp.is_none(), "it is going");
        assert_eq!(other_versions(&wanted, &present), None);
    });
    held.unwrap();
    assert!(writes.get() > 100, "only {writes:?} inputs are written over");
}
