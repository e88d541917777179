//! Tests definitions as an apiserver sends them, and mutations of them: other owners' versions are
//! never removed, and every write carries the uid and resourceVersion that were read.

use std::cell::Cell;

use portreeve_testing::Corpus;

use super::*;

/// The number of mutations.
const MUTATIONS: usize = 4_000;

#[test]
fn every_write_carries_the_version_that_was_read() {
    let wanted = definition(&["v1"], &json!({}));
    let writes = Cell::new(0_usize);
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/definition")).unwrap();
    let held = corpus.check(MUTATIONS, |input| {
        let Ok(mut present) = serde_json::from_slice::<Definition>(input) else {
            return;
        };
        let unlabelled = decide(&wanted, Some(&present), false);
        assert!(
            !matches!(unlabelled, Step::Write(_)) || includes(&present.spec, &wanted.spec),
            "a definition that is not ours is written: {unlabelled:?}"
        );
        let labels = present.metadata.labels.get_or_insert_default();
        labels.insert(PART_OF.to_owned(), "portreeve".to_owned());
        let again = decide(&wanted, Some(&present), true);
        assert!(
            !matches!(again, Step::Write(_)),
            "the definition is written again: {again:?}"
        );
        let Step::Write(plan) = decide(&wanted, Some(&present), false) else {
            return;
        };
        writes.set(writes.get() + 1);
        let [Effect::Apply { uid, version, .. }] = &plan.effects[..] else {
            panic!("{plan}");
        };
        let metadata = &present.metadata;
        let seen = (metadata.uid.as_deref(), metadata.resource_version.as_deref());
        assert_eq!((Some(&**uid), Some(&**version)), seen);
        assert!(!uid.is_empty() && !version.is_empty(), "the write has no precondition");
        assert!(metadata.deletion_timestamp.is_none(), "the definition is being deleted");
        assert_eq!(other_versions(&wanted, &present), None);
    });
    held.unwrap();
    assert!(writes.get() > 100, "only {writes:?} inputs led to a write");
}
