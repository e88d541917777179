//! What a namespace still contains of one resource.
//!
//! Architecture Invariant: pure. The memory does not depend on the number of objects, and hardly on
//! their size.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::Deserialize;

/// The number of objects whose names are kept.
const SAMPLES: usize = 10;
/// The number of different finalizers that are counted. Tenants choose them.
const FINALIZERS: usize = 50;
/// The number of finalizers of an object that are kept.
const SHOWN_FINALIZERS: usize = 5;

/// The finalizers by which a deletion waits for the garbage collector. A deletion with background
/// propagation removes them, also from an object that is being deleted already
/// (`deletionFinalizersForGarbageCollection` in
/// `staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
const COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// The metadata of an object, as far as its deletion depends on it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContentMetadata {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) creation_timestamp: Option<Timestamp>,
    pub(crate) deletion_timestamp: Option<Timestamp>,
    pub(crate) finalizers: Option<Vec<String>>,
    /// The number of finalizers that are not kept.
    #[serde(skip)]
    pub(crate) more_finalizers: usize,
}

impl ContentMetadata {
    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }

    /// Returns whether a deletion has an effect: nobody has deleted the object, or its deletion
    /// waits for the garbage collector, which may not run.
    pub(crate) fn needs_deletion(&self) -> bool {
        let is_of_collector = |finalizer: &String| COLLECTOR.contains(&&**finalizer);
        self.deletion_timestamp.is_none() || self.finalizers().iter().any(is_of_collector)
    }

    /// Keeps a few finalizers, those of the garbage collector first.
    fn shorten(&mut self) {
        let Some(finalizers) = &mut self.finalizers else { return };
        finalizers.sort_by_key(|finalizer| !COLLECTOR.contains(&&**finalizer));
        self.more_finalizers = finalizers.len().saturating_sub(SHOWN_FINALIZERS);
        finalizers.truncate(SHOWN_FINALIZERS);
        finalizers.shrink_to_fit();
    }
}

/// The objects of one resource in one namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Content {
    /// The number of objects.
    pub(crate) count: usize,
    /// The number of those that need a deletion.
    pub(crate) live: usize,
    /// The number of those that nobody has deleted.
    pub(crate) undeleted: usize,
    /// The number of objects with each finalizer.
    pub(crate) finalizers: BTreeMap<String, usize>,
    /// Some of the objects.
    pub(crate) samples: Vec<ContentMetadata>,
}

impl Content {
    pub(crate) fn add(&mut self, mut object: ContentMetadata) {
        self.count += 1;
        self.live += usize::from(object.needs_deletion());
        self.undeleted += usize::from(object.deletion_timestamp.is_none());
        for finalizer in object.finalizers() {
            if let Some(number) = self.finalizers.get_mut(finalizer) {
                *number += 1;
            } else if self.finalizers.len() < FINALIZERS {
                self.finalizers.insert(finalizer.clone(), 1);
            }
        }
        if self.samples.len() < SAMPLES {
            object.shorten();
            self.samples.push(object);
        }
    }

    /// Returns all objects, if they are few.
    pub(crate) fn all(&self) -> Option<&[ContentMetadata]> {
        (self.samples.len() == self.count).then_some(&self.samples)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Shows an object by its name, age and finalizers. The times are absolute, so that a message does
/// not change with each attempt.
impl fmt::Display for ContentMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let mut parts = Vec::new();
        if let Some(created) = self.creation_timestamp {
            parts.push(format!("created {created}"));
        }
        parts.push(match self.deletion_timestamp {
            Some(deleted) => format!("deleted {deleted}"),
            None => "not deleted".to_owned(),
        });
        match self.finalizers() {
            [] => {}
            all if self.more_finalizers > 0 => parts.push(format!(
                "finalizers {} and {} more",
                all.join(" "),
                self.more_finalizers
            )),
            all => parts.push(format!("finalizers {}", all.join(" "))),
        }
        write!(f, " ({})", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, finalizers: &[String]) -> ContentMetadata {
        ContentMetadata {
            name: name.to_owned(),
            deletion_timestamp: Some(Timestamp::UNIX_EPOCH),
            finalizers: Some(finalizers.to_vec()),
            ..ContentMetadata::default()
        }
    }

    #[test]
    fn memory_is_bounded_whatever_the_objects_are() {
        let mut content = Content::default();
        for number in 0..1_000 {
            let finalizers = [format!("example.com/{number}"), "example.com/common".to_owned()];
            content.add(object(&number.to_string(), &finalizers));
        }
        assert_eq!((content.count, content.live), (1_000, 0));
        assert_eq!(content.finalizers.len(), FINALIZERS);
        assert_eq!(content.finalizers["example.com/common"], 1_000);
        assert_eq!(content.samples.len(), SAMPLES);
        assert_eq!(content.all(), None);
    }

    #[test]
    fn a_deletion_that_waits_for_the_garbage_collector_is_sent_again() {
        let finalizers = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (names, expected) in [
            (&["example.com/a"][..], false),
            (&["foregroundDeletion"], true),
            (&["a", "b", "c", "d", "e", "f", "orphan"], true),
        ] {
            let mut object = object("web", &finalizers(names));
            assert_eq!(object.needs_deletion(), expected, "{names:?}");
            object.shorten();
            assert_eq!(object.needs_deletion(), expected, "{names:?}");
            let mut content = Content::default();
            content.add(object);
            assert_eq!((content.live, content.undeleted), (usize::from(expected), 0));
        }
    }

    #[test]
    fn an_object_is_shown_with_its_age_and_finalizers() {
        let finalizers: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned).into();
        let mut shown = object("web", &finalizers[..1]);
        shown.creation_timestamp = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(
            shown.to_string(),
            "web (created 1970-01-01T00:00:00Z, deleted 1970-01-01T00:00:00Z, finalizers a)"
        );
        shown = object("web", &finalizers);
        shown.deletion_timestamp = None;
        shown.shorten();
        assert_eq!(shown.to_string(), "web (not deleted, finalizers a b c d e and 2 more)");
        shown.finalizers = None;
        assert_eq!(shown.to_string(), "web (not deleted)");
    }
}
