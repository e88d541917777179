//! The JSON Patch from an object to the same object with defaults.
//!
//! Architecture Invariant: pure.

use portreeve_api::LazyValue;
use serde::Serialize;

/// An operation of a JSON Patch (RFC 6902).
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Operation<'a> {
    Add { path: String, value: LazyValue<'a> },
    Replace { path: String, value: LazyValue<'a> },
    Remove { path: String },
}

/// Returns the operations that lead from `old` to `new`. Compares only what was decoded of `new`:
/// text is equal or replaced.
pub(crate) fn between<'a>(mut old: LazyValue<'a>, new: LazyValue<'a>) -> Vec<Operation<'a>> {
    let mut operations = Vec::new();
    add_operations(&mut old, new, "", &mut operations);
    operations
}

fn add_operations<'a>(old: &mut LazyValue<'a>, new: LazyValue<'a>, path: &str, operations: &mut Vec<Operation<'a>>) {
    let (LazyValue::Object(new), Some(old)) = (&new, old.as_object_mut()) else {
        if text(old) != text(&new) {
            let path = path.to_owned();
            operations.push(Operation::Replace { path, value: new });
        }
        return;
    };
    for (name, value) in new.clone() {
        let path = format!("{path}/{}", escaped(&name));
        match old.remove(&name) {
            Some(mut before) => add_operations(&mut before, value, &path, operations),
            None => operations.push(Operation::Add { path, value }),
        }
    }
    for (name, _) in old.iter() {
        let path = format!("{path}/{}", escaped(name));
        operations.push(Operation::Remove { path });
    }
}

/// Returns the JSON text. That of a value that was not decoded is as it was sent.
fn text(value: &LazyValue<'_>) -> Option<String> {
    serde_json::to_string(value).ok()
}

/// Returns a name as a part of a JSON Pointer (RFC 6901).
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_fields_are_in_the_patch() {
        let old = r#"{"metadata":{"name":"a","labels":{"a/b":"","c~d":"x"}},"spec":{"size":null,"other":[1]},"x":1}"#;
        let old: LazyValue<'_> = serde_json::from_str(old).unwrap();
        let mut new = old.clone();
        assert!(between(old.clone(), new.clone()).is_empty());
        let metadata = new.get_mut("metadata").unwrap();
        let labels = metadata.get_mut("labels").unwrap().as_object_mut().unwrap();
        labels.insert("a/b", LazyValue::string("y"));
        labels.remove("c~d");
        let spec = new.get_mut("spec").unwrap().as_object_mut().unwrap();
        spec.insert("size", true.into());
        spec.insert("more", LazyValue::string("z"));
        let patch = serde_json::to_string(&between(old, new)).unwrap();
        assert_eq!(
            patch,
            concat!(
                r#"[{"op":"replace","path":"/metadata/labels/a~1b","value":"y"},"#,
                r#"{"op":"remove","path":"/metadata/labels/c~0d"},"#,
                r#"{"op":"replace","path":"/spec/size","value":true},"#,
                r#"{"op":"add","path":"/spec/more","value":"z"}]"#
            )
        );
    }
}
