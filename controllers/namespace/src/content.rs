//! What a namespace still contains of one resource.
//!
//! Architecture Invariant: pure. The memory depends neither on the number of objects nor on their
//! size.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::Deserialize;

/// The number of objects whose names are kept.
const SAMPLES: usize = 10;
/// The number of different finalizers that are counted. Tenants choose them.
const FINALIZERS: usize = 50;
/// The number of finalizers of an object that are shown.
const SHOWN_FINALIZERS: usize = 5;

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
}

impl ContentMetadata {
    fn finalizers(&self) -> &[String] {
        self.finalizers.as_deref().unwrap_or_default()
    }
}

/// The objects of one resource in one namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Content {
    /// The number of objects.
    pub(crate) count: usize,
    /// The number of those that nobody has deleted yet.
    pub(crate) live: usize,
    /// The number of objects with each finalizer.
    pub(crate) finalizers: BTreeMap<String, usize>,
    /// Some of the objects.
    pub(crate) samples: Vec<ContentMetadata>,
}

impl Content {
    pub(crate) fn add(&mut self, object: ContentMetadata) {
        self.count += 1;
        self.live += usize::from(object.deletion_timestamp.is_none());
        for finalizer in object.finalizers() {
            if let Some(number) = self.finalizers.get_mut(finalizer) {
                *number += 1;
            } else if self.finalizers.len() < FINALIZERS {
                self.finalizers.insert(finalizer.clone(), 1);
            }
        }
        if self.samples.len() < SAMPLES {
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
            all if all.len() > SHOWN_FINALIZERS => parts.push(format!(
                "finalizers {} and {} more",
                all[..SHOWN_FINALIZERS].join(" "),
                all.len() - SHOWN_FINALIZERS
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
        assert_eq!(shown.to_string(), "web (not deleted, finalizers a b c d e and 2 more)");
        shown.finalizers = None;
        assert_eq!(shown.to_string(), "web (not deleted)");
    }
}
