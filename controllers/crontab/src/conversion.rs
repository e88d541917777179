//! Converts CronTabs between v1 and v2, on raw JSON and field by field.
//!
//! An object may be partial, as server-side apply sends it, or invalid. So a value moves whatever
//! its type is, an absent field stays absent, nothing gets a default, and no content is an error.
//! v1 stores what only v2 can express in the annotation [`V2_FIELDS`], so both ways are lossless.
//!
//! Server-side apply removes the fields that a manager gives up in every version that some manager
//! uses, and compares which fields exist, not their values. So in v1, each leaf in that annotation
//! has a marker, an annotation of its own, and a leaf without its marker is gone.
//!
//! If the annotations would exceed Kubernetes' limit, v1 lacks what only v2 has: with them, one
//! such object would fail every list of v1. The annotation says so, and the webhook rejects these
//! objects.
//!
//! Architecture Invariant: pure.

mod annotations;
pub(crate) mod fields;
mod leaves;
mod places;
mod v2_only;

use std::mem;

use portreeve_api::{LazyObject, LazyValue};
use portreeve_reconcile::admission::ConversionError;

use self::{
    annotations::Annotations,
    fields::{SCHEDULES, SPEC_FIELDS, STATUS_FIELDS},
    places::{put, take},
    v2_only::V2Only,
};

use crate::api::{CRONTABS, CRONTABS_V2, V2_FIELDS};

/// The size that Kubernetes allows for all annotations of an object.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// The annotation of an object whose annotations would exceed that size.
const DROPPED: &str = r#"{"dropped":true}"#;

/// Converts a CronTab to the given `apiVersion`.
///
/// # Errors
///
/// Returns an error only if the version is not one of ours, whatever the object contains.
pub(crate) fn convert(object: &mut LazyObject<'_>, api_version: &str) -> Result<(), ConversionError> {
    if api_version == CRONTABS_V2.api_version() {
        to_v2(object);
    } else if api_version == CRONTABS.api_version() {
        to_v1(object);
    } else {
        return Err(ConversionError::UnknownVersion {
            api_version: api_version.to_owned(),
            kinds: "CronTabs",
            known: "v1 and v2",
        });
    }
    Ok(())
}

fn to_v2(object: &mut LazyObject<'_>) {
    if let Some(spec) = take_spec(object) {
        let mut annotations = Annotations::take(object);
        let stored = annotations.remove(V2_FIELDS);
        let stored = stored.filter(|stored| !stored.is_string(DROPPED));
        let mut v2_only = stored.as_ref().and_then(V2Only::read);
        if let Some(read) = &mut v2_only
            && read
                .retain_marked(|marker| annotations.remove(marker).is_some())
                .is_err()
        {
            v2_only = None;
        }
        // The annotations of leaves mean nothing without the other one.
        annotations.remove_all(v2_only::is_marker);
        // An annotation that is not ours stays.
        let annotation = match &mut v2_only {
            Some(v2_only) => v2_only.annotation.take(),
            None => stored,
        };
        if let Some(annotation) = annotation {
            annotations.set(V2_FIELDS.to_owned(), annotation);
        }
        annotations.put_back(object);
        object.insert("spec", spec_to_v2(spec, v2_only.unwrap_or_default()).into());
    }
    if let Some(status) = object.get_mut("status") {
        status_to_v2(status);
    }
}

/// Returns whether v1 has room for everything that only v2 has.
fn to_v1(object: &mut LazyObject<'_>) -> bool {
    let mut is_complete = true;
    if let Some(spec) = take_spec(object) {
        let mut annotations = Annotations::take(object);
        let annotation = annotations.remove(V2_FIELDS);
        let (spec, v2_only) = spec_to_v1(spec, annotation);
        is_complete = annotations.add(v2_only);
        annotations.put_back(object);
        object.insert("spec", spec.into());
    }
    if let Some(status) = object.get_mut("status") {
        status_to_v1(status);
    }
    is_complete
}

/// Returns whether this is the key of an annotation in which v1 stores what only v2 has.
pub(crate) fn is_ours(annotation: &str) -> bool {
    annotation == V2_FIELDS || v2_only::is_marker(annotation)
}

/// Returns whether v1 can store what only v2 has of an object of v2.
pub(crate) fn fits_v1(mut object: LazyObject<'_>) -> bool {
    to_v1(&mut object)
}

/// Takes the fields of the spec; `None` if it is no object.
fn take_spec<'a>(object: &mut LazyObject<'a>) -> Option<LazyObject<'a>> {
    object.get_mut("spec")?.as_object_mut().map(mem::take)
}

/// Converts a spec of v1. `v2_only` is what the annotation stores.
fn spec_to_v2<'a>(mut spec: LazyObject<'a>, v2_only: V2Only<'a>) -> LazyObject<'a> {
    // The schema of v1 has no such fields, so the apiserver removes them as well.
    spec.retain(|name, _| !fields::is_v2_group(name));
    let mut restored = LazyValue::Object(v2_only.restore(&mut spec));
    for field in SPEC_FIELDS {
        // Only an annotation that was edited contains a value of a field that v1 has.
        take(&mut restored, field.v2);
        if let Some(value) = spec.remove(field.v1) {
            put(&mut restored, field.v2, value);
        }
    }
    if let LazyValue::Object(restored) = restored {
        for (name, value) in restored {
            spec.insert(name, value);
        }
    }
    spec
}

/// Converts a spec of v2, and returns what v1 cannot express.
fn spec_to_v1<'a>(spec: LazyObject<'a>, annotation: Option<LazyValue<'a>>) -> (LazyObject<'a>, V2Only<'a>) {
    let mut rest = LazyValue::Object(spec);
    let moved: Vec<_> = SPEC_FIELDS
        .iter()
        .filter_map(|field| Some((field.v1, take(&mut rest, field.v2)?)))
        .collect();
    let LazyValue::Object(rest) = rest else {
        return (LazyObject::default(), V2Only::default());
    };
    let (v2_only, rest): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(name, _)| fields::is_v2_only(name));
    let mut spec: LazyObject<'a> = rest.into_iter().collect();
    for (name, value) in moved {
        spec.insert(name, value);
    }
    let v2_only = V2Only::new(v2_only.into_iter().collect(), annotation, &mut spec);
    (spec, v2_only)
}

/// Moves the times of the schedule `default` from the top of a status to its entry.
fn status_to_v2(status: &mut LazyValue<'_>) {
    let has_place = |status: &mut LazyObject<'_>| status.get(SCHEDULES).is_none_or(LazyValue::is_array);
    if !status.as_object_mut().is_some_and(has_place) {
        return;
    }
    for field in STATUS_FIELDS {
        let value = status.as_object_mut().and_then(|status| status.remove(field.v1));
        if let Some(value) = value {
            put(status, field.v2, value);
        }
    }
}

/// Moves the times of the schedule `default` to the top of a status.
pub(crate) fn status_to_v1(status: &mut LazyValue<'_>) {
    for field in STATUS_FIELDS {
        if status.get_mut(field.v1).is_none()
            && let Some(value) = take(status, field.v2)
            && let Some(status) = status.as_object_mut()
        {
            status.insert(field.v1, value);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
