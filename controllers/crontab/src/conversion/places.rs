//! Moves values by path. `take` and `put` are inverse: an object or an entry that only the taken
//! values filled is removed, and created again.
//!
//! Architecture Invariant: pure.

use portreeve_api::{LazyObject, LazyValue};

use super::fields::SCHEDULES;

/// Removes the value at a path. Removes the objects on the path that it leaves empty.
pub(super) fn take<'a>(parent: &mut LazyValue<'a>, path: &[&str]) -> Option<LazyValue<'a>> {
    match *path {
        [field] => parent.as_object_mut()?.remove(field),
        [SCHEDULES, name, ref rest @ ..] => {
            let entries = parent.get_mut(SCHEDULES)?.as_array_mut()?;
            let index = entries.iter_mut().position(|entry| has_name(entry, name))?;
            let taken = take(&mut entries[index], rest)?;
            // An entry elsewhere keeps its place in the list.
            let is_only_name = entries[index].as_object_mut().is_some_and(|entry| entry.len() == 1);
            if is_only_name && index == 0 && !entries[1..].iter_mut().any(|entry| has_name(entry, name)) {
                entries.remove(0);
            }
            if entries.is_empty() {
                parent.as_object_mut()?.remove(SCHEDULES);
            }
            Some(taken)
        }
        [group, ref rest @ ..] => {
            let child = parent.get_mut(group)?;
            let taken = take(child, rest)?;
            if child.as_object_mut().is_some_and(|child| child.is_empty()) {
                parent.as_object_mut()?.remove(group);
            }
            Some(taken)
        }
        [] => None,
    }
}

/// Sets the value at a path. Creates missing objects on the path, and replaces values of other
/// types.
pub(super) fn put<'a>(parent: &mut LazyValue<'a>, path: &[&'static str], value: LazyValue<'a>) {
    match *path {
        [field] => {
            if let Some(parent) = parent.as_object_mut() {
                parent.insert(field, value);
            }
        }
        [SCHEDULES, name, ref rest @ ..] => {
            let list = child(parent, SCHEDULES, LazyValue::is_array, || LazyValue::Array(Vec::new()));
            let Some(entries) = list.and_then(LazyValue::as_array_mut) else {
                return;
            };
            let found = entries.iter_mut().position(|entry| has_name(entry, name));
            let index = found.unwrap_or_else(|| {
                let named = [("name".into(), LazyValue::string(name))];
                entries.insert(0, LazyObject::from_iter(named).into());
                0
            });
            put(&mut entries[index], rest, value);
        }
        [group, ref rest @ ..] => {
            let empty = || LazyObject::default().into();
            if let Some(child) = child(parent, group, LazyValue::is_object, empty) {
                put(child, rest, value);
            }
        }
        [] => {}
    }
}

/// Returns the child of an object. One of another type is replaced by an empty one.
fn child<'v, 'a>(
    parent: &'v mut LazyValue<'a>,
    name: &'static str,
    is_wanted: fn(&LazyValue<'a>) -> bool,
    empty: fn() -> LazyValue<'a>,
) -> Option<&'v mut LazyValue<'a>> {
    let parent = parent.as_object_mut()?;
    if !parent.get(name).is_some_and(is_wanted) {
        parent.insert(name, empty());
    }
    parent.get_mut(name)
}

fn has_name(entry: &mut LazyValue<'_>, name: &str) -> bool {
    entry.get_mut("name").is_some_and(|value| value.is_string(name))
}
