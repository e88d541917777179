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

pub(crate) mod fields;
mod leaves;
mod places;
mod v2_only;

use portreeve_api::{CRONTABS, CRONTABS_V2, V2_FIELDS};
use serde_json::{Map, Value};

use self::{
    fields::{SCHEDULES, SPEC_FIELDS, STATUS_FIELDS},
    places::{put, take},
    v2_only::V2Only,
};

/// The size that Kubernetes allows for all annotations of an object.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// The annotation of an object whose annotations would exceed that size.
const DROPPED: &str = r#"{"dropped":true}"#;

/// Converts a CronTab to the given `apiVersion`.
///
/// # Errors
///
/// Returns an error only if the version is not one of ours, whatever the object contains.
pub(crate) fn convert(mut object: Value, api_version: &str) -> Result<Value, String> {
    if api_version == CRONTABS_V2.api_version() {
        to_v2(&mut object);
    } else if api_version == CRONTABS.api_version() {
        to_v1(&mut object);
    } else {
        return Err(format!(
            "cannot convert to {api_version:?}: CronTabs have the versions v1 and v2"
        ));
    }
    Ok(object)
}

fn to_v2(object: &mut Value) {
    let spec = object
        .get_mut("spec")
        .and_then(Value::as_object_mut)
        .map(std::mem::take);
    if let Some(spec) = spec {
        let stored = take_annotation(object, V2_FIELDS).filter(|stored| stored != DROPPED);
        let mut v2_only = stored.as_ref().and_then(V2Only::read);
        if let Some(v2_only) = &mut v2_only {
            v2_only.retain_marked(|marker| take_annotation(object, marker).is_some());
        }
        // The annotations of leaves mean nothing without the other one.
        remove_annotations(object, v2_only::is_marker);
        // An annotation that is not ours stays.
        let annotation = if let Some(v2_only) = &v2_only {
            v2_only.annotation.clone()
        } else {
            stored
        };
        set_annotation(object, V2_FIELDS, annotation);
        object["spec"] = spec_to_v2(spec, v2_only.unwrap_or_default()).into();
    }
    if let Some(status) = object.get_mut("status") {
        status_to_v2(status);
    }
}

fn to_v1(object: &mut Value) {
    let spec = object
        .get_mut("spec")
        .and_then(Value::as_object_mut)
        .map(std::mem::take);
    if let Some(spec) = spec {
        let annotation = take_annotation(object, V2_FIELDS);
        let (spec, v2_only) = spec_to_v1(spec, annotation);
        let markers = v2_only.markers();
        for (marker, path) in &markers {
            set_annotation(object, marker, Some((**path).into()));
        }
        set_annotation(object, V2_FIELDS, v2_only.write());
        if annotation_bytes(object) > MAX_ANNOTATION_BYTES {
            for (marker, _) in &markers {
                take_annotation(object, marker);
            }
            set_annotation(object, V2_FIELDS, Some(DROPPED.into()));
            if annotation_bytes(object) > MAX_ANNOTATION_BYTES {
                take_annotation(object, V2_FIELDS);
            }
        }
        object["spec"] = spec.into();
    }
    if let Some(status) = object.get_mut("status") {
        status_to_v1(status);
    }
}

/// Returns whether v1 can store what only v2 has of an object of v2.
pub(crate) fn fits_v1(object: &Value) -> bool {
    let mut in_v1 = object.clone();
    to_v1(&mut in_v1);
    to_v2(&mut in_v1);
    in_v1.get("spec") == object.get("spec")
}

/// Returns the size of all annotations, as the apiserver counts it.
fn annotation_bytes(object: &Value) -> usize {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let annotations = annotations.into_iter().flatten();
    annotations
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum()
}

/// Converts a spec of v1. `v2_only` is what the annotation stores.
fn spec_to_v2(mut spec: Map<String, Value>, v2_only: V2Only) -> Map<String, Value> {
    // The schema of v1 has no such fields, so the apiserver removes them as well.
    spec.retain(|name, _| !fields::is_v2_group(name));
    let mut restored = Value::Object(v2_only.restore(&spec));
    for field in SPEC_FIELDS {
        // Only an annotation that was edited contains a value of a field that v1 has.
        take(&mut restored, field.v2);
        if let Some(value) = spec.remove(field.v1) {
            put(&mut restored, field.v2, value);
        }
    }
    if let Value::Object(restored) = restored {
        spec.extend(restored);
    }
    spec
}

/// Converts a spec of v2, and returns what v1 cannot express.
fn spec_to_v1(spec: Map<String, Value>, annotation: Option<Value>) -> (Map<String, Value>, V2Only) {
    let mut rest = Value::Object(spec);
    let moved: Vec<_> = SPEC_FIELDS
        .iter()
        .filter_map(|field| Some((field.v1, take(&mut rest, field.v2)?)))
        .collect();
    let Value::Object(mut spec) = rest else {
        return (Map::new(), V2Only::default());
    };
    let names: Vec<String> = spec.keys().filter(|name| fields::is_v2_only(name)).cloned().collect();
    let v2_only: Map<String, Value> = names.iter().filter_map(|name| spec.remove_entry(name)).collect();
    spec.extend(moved.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let v2_only = V2Only::new(v2_only, annotation, &spec);
    (spec, v2_only)
}

/// Moves the times of the schedule `default` from the top of a status to its entry.
fn status_to_v2(status: &mut Value) {
    if !has_list_or_none(status) {
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
pub(crate) fn status_to_v1(status: &mut Value) {
    for field in STATUS_FIELDS {
        if status.get(field.v1).is_none()
            && let Some(value) = take(status, field.v2)
        {
            status[field.v1] = value;
        }
    }
}

/// Returns whether the entry of a schedule has a place in this status.
fn has_list_or_none(status: &Value) -> bool {
    status.is_object() && status.get(SCHEDULES).is_none_or(Value::is_array)
}

fn take_annotation(object: &mut Value, key: &str) -> Option<Value> {
    let metadata = object.get_mut("metadata")?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let value = annotations.remove(key);
    if value.is_some() && annotations.is_empty() {
        metadata.as_object_mut()?.remove("annotations");
    }
    value
}

fn remove_annotations(object: &mut Value, is_removed: impl Fn(&str) -> bool) {
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let names = annotations.into_iter().flat_map(Map::keys);
    let names: Vec<_> = names.filter(|name| is_removed(name)).cloned().collect();
    for name in names {
        take_annotation(object, &name);
    }
}

fn set_annotation(object: &mut Value, key: &str, value: Option<Value>) {
    let Some(value) = value else { return };
    for path in ["/metadata", "/metadata/annotations"] {
        let (parent, name) = path.rsplit_once('/').unwrap_or_default();
        let Some(Value::Object(parent)) = object.pointer_mut(parent) else {
            return;
        };
        let child = parent.entry(name).or_insert(Value::Null);
        if !child.is_object() {
            *child = Value::Object(Map::new());
        }
    }
    object["metadata"]["annotations"][key] = value;
}

#[cfg(test)]
mod tests;
