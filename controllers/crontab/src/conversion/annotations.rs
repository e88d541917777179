//! The annotations of an object, of which a conversion changes many.
//!
//! Architecture Invariant: pure.

use std::{borrow::Cow, collections::BTreeMap, mem};

use portreeve_api::{LazyObject, LazyValue};

use crate::api::V2_FIELDS;

use super::{DROPPED, MAX_ANNOTATION_BYTES, v2_only::V2Only};

/// The annotations that were taken from an object, to be put back.
pub(super) struct Annotations<'a> {
    values: BTreeMap<Cow<'a, str>, LazyValue<'a>>,
    /// Whether the object has a field for them that has to stay, even if it is empty.
    has_field: bool,
}

impl<'a> Annotations<'a> {
    /// Takes the annotations from an object. Those that are no object are left alone.
    pub(super) fn take(object: &mut LazyObject<'a>) -> Self {
        let metadata = object.get_mut("metadata");
        let annotations = metadata.and_then(|metadata| metadata.get_mut("annotations")?.as_object_mut());
        let has_field = annotations.is_some();
        Self {
            values: annotations.map(mem::take).unwrap_or_default().into_iter().collect(),
            has_field,
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<LazyValue<'a>> {
        let removed = self.values.remove(key);
        self.has_field &= removed.is_none();
        removed
    }

    /// Removes all annotations with such keys.
    pub(super) fn remove_all(&mut self, is_removed: impl Fn(&str) -> bool) {
        let count = self.values.len();
        self.values.retain(|key, _| !is_removed(key));
        self.has_field &= self.values.len() == count;
    }

    pub(super) fn set(&mut self, key: String, value: LazyValue<'a>) {
        self.values.insert(Cow::Owned(key), value);
    }

    /// Adds what only v2 has, for an object of v1. If there is no room for it, adds that it was
    /// dropped, and returns false.
    pub(super) fn add(&mut self, v2_only: V2Only<'a>) -> bool {
        let markers = v2_only.markers();
        let Some(stored) = v2_only.write() else {
            return true;
        };
        let text_len = |value: &LazyValue<'_>| value.as_str().map_or(0, |text| text.len());
        let own = self
            .values
            .iter()
            .map(|(key, value)| key.len() + text_len(value))
            .sum::<usize>();
        if let Ok(markers) = markers {
            let of_markers = markers.iter().map(|(key, path)| key.len() + path.len()).sum::<usize>();
            if own + of_markers + V2_FIELDS.len() + text_len(&stored) <= MAX_ANNOTATION_BYTES {
                for (key, path) in markers {
                    self.set(key, LazyValue::string(&path));
                }
                self.set(V2_FIELDS.to_owned(), stored);
                return true;
            }
        }
        if own + V2_FIELDS.len() + DROPPED.len() <= MAX_ANNOTATION_BYTES {
            self.set(V2_FIELDS.to_owned(), LazyValue::string(DROPPED));
        }
        false
    }

    /// Puts the annotations back. Those that were the last ones and were removed leave no field.
    pub(super) fn put_back(self, object: &mut LazyObject<'a>) {
        if self.values.is_empty() && !self.has_field {
            let metadata = object.get_mut("metadata").and_then(LazyValue::as_object_mut);
            if let Some(metadata) = metadata
                && metadata.get("annotations").is_some_and(LazyValue::is_object)
            {
                metadata.remove("annotations");
            }
            return;
        }
        if !object.get("metadata").is_some_and(LazyValue::is_object) {
            object.insert("metadata", LazyObject::default().into());
        }
        if let Some(metadata) = object.get_mut("metadata").and_then(LazyValue::as_object_mut) {
            let values: LazyObject<'a> = self.values.into_iter().collect();
            metadata.insert("annotations", values.into());
        }
    }
}
