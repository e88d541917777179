//! [`Effect::Replace`]: a GET, and then a PUT of the object that was read, with changes.
//!
//! The object stays text but for what changes: others may have written metadata of any depth.

use http::Request;
use portreeve_api::{LazyObject, LazyValue};
use serde_json::{Map, Value, value::RawValue};

use crate::{Effect, Target, request};

use super::{Applied, Applier, EffectError, NoObject, Patched, StaleCacheError, Written, classify_error, failed};

impl Applier {
    /// Performs the two requests of a replacement, of which `get` is the first. Returns `None` if
    /// the plan continues.
    pub(super) async fn replace(
        &self,
        effect: &Effect,
        get: Request<Vec<u8>>,
        written: &mut Written,
    ) -> Option<Applied> {
        let Effect::Replace {
            target,
            subresource,
            changes,
        } = effect
        else {
            return None;
        };
        let read = match self.client.request::<Box<RawValue>>(get).await {
            Ok(read) => read,
            Err(error) => return classify_error(effect, error),
        };
        let object = match changed(&read, target, changes) {
            Ok(object) => object,
            Err(Unusable::NoObject) => return Some(failed(effect, NoObject)),
            Err(Unusable::OtherVersion) => {
                return Some(Applied::Stale(EffectError::of(effect, StaleCacheError::Changed)));
            }
        };
        let put = match request::put(target, *subresource, &object, &self.manager) {
            Ok(put) => put,
            Err(source) => return Some(Applied::Refused(EffectError::of(effect, source))),
        };
        written.writes += 1;
        let answer = self.client.request::<Patched>(put).await;
        let answer = answer.map(|replaced| written.status_version = Some(replaced.metadata.resource_version));
        self.fence_monitor.record(&answer);
        answer.err().and_then(|error| classify_error(effect, error))
    }
}

/// Why an object that was read cannot be replaced.
enum Unusable {
    NoObject,
    /// It is another object, or not in the version of the decision.
    OtherVersion,
}

/// Returns the object with the changes.
fn changed<'a>(read: &'a RawValue, target: &Target, changes: &Value) -> Result<LazyObject<'a>, Unusable> {
    let mut object: LazyObject<'a> = serde_json::from_str(read.get()).map_err(|_| Unusable::NoObject)?;
    let uid = object.text_at(&["metadata", "uid"]).ok_or(Unusable::NoObject)?;
    let version = object.text_at(&["metadata", "resourceVersion"]);
    if *uid != *target.uid || version.as_deref() != Some(&*target.version) {
        return Err(Unusable::OtherVersion);
    }
    if let Value::Object(changes) = changes {
        merge(&mut object, changes);
    }
    Ok(object)
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(object: &mut LazyObject<'_>, changes: &Map<String, Value>) {
    for (field, change) in changes {
        match change {
            Value::Null => drop(object.remove(field)),
            Value::Object(changes) => {
                if !object.get(field).is_some_and(LazyValue::is_object) {
                    object.insert(field.clone(), LazyObject::default().into());
                }
                if let Some(inner) = object.get_mut(field).and_then(LazyValue::as_object_mut) {
                    merge(inner, changes);
                }
            }
            change => object.insert(field.clone(), LazyValue::of(change)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn merged(object: &str, changes: &Value) -> Value {
        let mut object: LazyObject<'_> = serde_json::from_str(object).unwrap();
        merge(&mut object, changes.as_object().unwrap());
        json!(object)
    }

    #[test]
    fn changes_are_merged_as_a_merge_patch_is() {
        let object = r#"{"spec":{"a":1,"b":[1]},"status":{"x":{"y":1},"gone":true}}"#;
        let changes = json!({"status": {"x": {"y": null, "z": 2}, "gone": null, "new": {"a": null, "b": 3}}});
        assert_eq!(
            merged(object, &changes),
            json!({"spec": {"a": 1, "b": [1]}, "status": {"x": {"z": 2}, "new": {"b": 3}}})
        );
        assert_eq!(
            merged(r#"{"status":null}"#, &json!({"status": {"a": 1}})),
            json!({"status": {"a": 1}})
        );
        assert_eq!(
            merged(
                r#"{"spec":{"finalizers":["a","b"]}}"#,
                &json!({"spec": {"finalizers": ["b"]}})
            ),
            json!({"spec": {"finalizers": ["b"]}})
        );
    }

    /// `serde_json` gives up at 128 levels.
    #[test]
    fn metadata_of_any_depth_is_kept() {
        let deep = "[".repeat(5000) + &"]".repeat(5000);
        let text = format!(r#"{{"metadata":{{"uid":"u","resourceVersion":"1","managedFields":{deep}}}}}"#);
        let read = RawValue::from_string(text.clone()).unwrap();
        let target = crate::apply::tests::target();
        let object = changed(&read, &target, &json!({"status": {"a": 1}})).ok().unwrap();
        let expected = text.replace("}}", "},\"status\":{\"a\":1}}");
        assert_eq!(to_raw_value(&object).unwrap().get(), expected);
    }
}
