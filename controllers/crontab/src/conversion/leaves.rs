//! The leaves of a value: what a manager of server-side apply can own separately in v2.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

use portreeve_api::{LazyObject, LazyValue};

use super::{MAX_ANNOTATION_BYTES, fields::SCHEDULES};

/// How many levels of objects are entered. No field of v2 is that deep, so that only an object that
/// v2 does not admit has objects as leaves.
const LEVELS: usize = 16;

/// The paths of a spec are longer than all annotations of an object may be.
pub(super) struct TooLong;

/// Returns the path of each leaf of a spec.
pub(super) fn paths(spec: &LazyObject<'_>) -> Result<Vec<String>, TooLong> {
    let mut paths = Vec::new();
    retain(&mut spec.clone(), &mut |path| {
        paths.push(path.to_owned());
        true
    })?;
    Ok(paths)
}

/// Removes the leaves of a spec that `keep` does not accept, and what they leave empty.
pub(super) fn retain(spec: &mut LazyObject<'_>, keep: &mut dyn FnMut(&str) -> bool) -> Result<(), TooLong> {
    let mut walk = Walk {
        keep,
        budget: Some(MAX_ANNOTATION_BYTES),
    };
    spec.retain(|name, value| {
        if name == SCHEDULES
            && let Some(entries) = value.as_array_mut()
            && have_names(entries)
        {
            entries.retain_mut(|entry| {
                let name = entry.get_mut("name").and_then(|name| name.as_str()).unwrap_or_default();
                let path = format!("{SCHEDULES}/{name}");
                // Without its name, an entry of v2 would be invalid.
                walk.is_kept(entry, &path, LEVELS) && entry.get_mut("name").is_some()
            });
            return !entries.is_empty();
        }
        walk.is_kept(value, name, LEVELS)
    });
    walk.budget.map(|_| ()).ok_or(TooLong)
}

/// The leaves that were visited.
struct Walk<'k> {
    keep: &'k mut dyn FnMut(&str) -> bool,
    /// How long the paths of all other leaves may be, in bytes; `None` if they are longer.
    budget: Option<usize>,
}

impl Walk<'_> {
    /// Returns whether a leaf is left.
    fn is_kept(&mut self, value: &mut LazyValue<'_>, path: &str, levels: usize) -> bool {
        self.budget = self.budget.and_then(|budget| budget.checked_sub(path.len()));
        if self.budget.is_none() {
            return true;
        }
        if levels > 0
            && let Some(fields) = value.as_object_mut()
            && !fields.is_empty()
        {
            fields.retain(|name, value| {
                self.budget.is_none() || self.is_kept(value, &format!("{path}/{name}"), levels - 1)
            });
            return !fields.is_empty();
        }
        (self.keep)(path)
    }
}

/// Returns whether the name of each entry identifies it.
fn have_names(entries: &mut [LazyValue<'_>]) -> bool {
    let mut names = BTreeSet::new();
    let mut has_own_name = |entry: &mut LazyValue<'_>| {
        let name = entry.get_mut("name").and_then(|name| name.as_str());
        name.is_some_and(|name| names.insert(name.into_owned()))
    };
    !entries.is_empty() && entries.iter_mut().all(&mut has_own_name)
}
