//! Moves values by path. `take` and `put` are inverse: an object or an entry that only the taken
//! values filled is removed, and created again.
//!
//! Architecture Invariant: pure.

use serde_json::{Map, Value, json};

use super::fields::SCHEDULES;

/// Removes the value at a path. Removes the objects on the path that it leaves empty.
pub(super) fn take(parent: &mut Value, path: &[&str]) -> Option<Value> {
    match *path {
        [field] => parent.as_object_mut()?.remove(field),
        [SCHEDULES, name, ref rest @ ..] => {
            let entries = parent.get_mut(SCHEDULES)?.as_array_mut()?;
            let index = entries.iter().position(|entry| has_name(entry, name))?;
            let taken = take(&mut entries[index], rest)?;
            // An entry elsewhere keeps its place in the list.
            let is_only_name = entries[index].as_object().is_some_and(|entry| entry.len() == 1);
            if is_only_name && index == 0 && !entries[1..].iter().any(|entry| has_name(entry, name)) {
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
            if child.as_object().is_some_and(Map::is_empty) {
                parent.as_object_mut()?.remove(group);
            }
            Some(taken)
        }
        [] => None,
    }
}

/// Sets the value at a path. Creates missing objects on the path, and replaces values of other
/// types.
pub(super) fn put(parent: &mut Value, path: &[&str], value: Value) {
    match *path {
        [field] => {
            if let Some(parent) = parent.as_object_mut() {
                parent.insert(field.to_owned(), value);
            }
        }
        [SCHEDULES, name, ref rest @ ..] => {
            let list = child(parent, SCHEDULES, || Value::Array(Vec::new()));
            let Some(entries) = list.and_then(Value::as_array_mut) else {
                return;
            };
            let found = entries.iter().position(|entry| has_name(entry, name));
            let index = found.unwrap_or_else(|| {
                entries.insert(0, json!({ "name": name }));
                0
            });
            put(&mut entries[index], rest, value);
        }
        [group, ref rest @ ..] => {
            if let Some(child) = child(parent, group, || Value::Object(Map::new())) {
                put(child, rest, value);
            }
        }
        [] => {}
    }
}

/// Returns the child of an object. One of another type than `empty` is replaced by it.
fn child<'a>(parent: &'a mut Value, name: &str, empty: fn() -> Value) -> Option<&'a mut Value> {
    let child = parent.as_object_mut()?.entry(name).or_insert_with(empty);
    if std::mem::discriminant(child) != std::mem::discriminant(&empty()) {
        *child = empty();
    }
    Some(child)
}

fn has_name(entry: &Value, name: &str) -> bool {
    entry.get("name").is_some_and(|value| value == name)
}
