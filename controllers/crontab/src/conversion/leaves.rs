//! The leaves of a value: what a manager of server-side apply can own separately in v2.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::fields::SCHEDULES;

/// Returns the path of each leaf of a spec.
pub(super) fn paths(spec: &Map<String, Value>) -> Vec<String> {
    let mut paths = Vec::new();
    retain(&mut spec.clone(), &mut |path| {
        paths.push(path.to_owned());
        true
    });
    paths
}

/// Removes the leaves of a spec that `keep` does not accept, and what they leave empty.
pub(super) fn retain(spec: &mut Map<String, Value>, keep: &mut dyn FnMut(&str) -> bool) {
    spec.retain(|name, value| match value {
        Value::Array(entries) if name == SCHEDULES && have_names(entries) => {
            entries.retain_mut(|entry| {
                let name = entry["name"].as_str().unwrap_or_default();
                let path = format!("{SCHEDULES}/{name}");
                is_kept(entry, &path, keep)
            });
            !entries.is_empty()
        }
        value => is_kept(value, name, keep),
    });
}

/// Returns whether a leaf is left.
fn is_kept(value: &mut Value, path: &str, keep: &mut dyn FnMut(&str) -> bool) -> bool {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.retain(|name, value| is_kept(value, &format!("{path}/{name}"), keep));
            !fields.is_empty()
        }
        _ => keep(path),
    }
}

/// Returns whether the name of each entry identifies it.
fn have_names(entries: &[Value]) -> bool {
    let mut names = BTreeSet::new();
    let mut has_own_name = |entry: &Value| entry["name"].as_str().is_some_and(|name| names.insert(name.to_owned()));
    !entries.is_empty() && entries.iter().all(&mut has_own_name)
}
