//! `ConversionReview`: from the bytes of a request to those of the response.
//!
//! A conversion has no failure policy: one error fails the whole request, so that nobody can list
//! the resource. So the function gets every object as it is, and this module guarantees what the
//! apiserver demands of the results: the version, and the identity of each object.
//!
//! Objects stay text, except for what the function reads or changes and for the uppermost levels.
//! So an object of any depth and number of values is converted, in memory that is a small multiple
//! of its size.
//!
//! Architecture Invariant: pure.

use std::mem;

use portreeve_api::{LazyObject, LazyValue};
use portreeve_reconcile::admission::{ConversionError, Convert};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::answer::{Answer, BadRequest, Decision};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default)]
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired: String,
    #[serde(borrow, default)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    converted_objects: Vec<LazyValue<'a>>,
    result: Status,
    uid: String,
}

/// The parts of a `Status` that the apiserver reads.
#[derive(Serialize)]
#[serde(tag = "status")]
enum Status {
    Success,
    Failure { message: String, reason: &'static str },
}

/// Reads a request and converts its objects.
pub(crate) fn answer(body: &[u8], convert: Convert) -> Result<Answer, BadRequest> {
    let review: Review<'_> =
        serde_json::from_slice(body).map_err(|source| BadRequest::Malformed { kind: KIND, source })?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(BadRequest::OtherType {
            expected: format!("{API_VERSION} {KIND}"),
            actual: format!("{} {}", review.api_version, review.kind),
        });
    }
    let Request { uid, desired, objects } = review.request.ok_or(BadRequest::NoRequest)?;
    if uid.is_empty() {
        return Err(BadRequest::NoUid);
    }
    let objects = objects.into_iter().map(|object| converted(object, &desired, convert));
    let (converted_objects, result, decision) = match objects.collect::<Result<_, ConversionError>>() {
        Ok(objects) => (objects, Status::Success, Decision::Converted),
        Err(error) => {
            let (message, reason) = (error.to_string(), "Invalid");
            (Vec::new(), Status::Failure { message, reason }, Decision::Failed)
        }
    };
    let answered = Answered {
        api_version: API_VERSION,
        kind: KIND,
        response: Response {
            converted_objects,
            result,
            uid,
        },
    };
    // The response is about as long as the request.
    let mut encoded = Vec::with_capacity(body.len());
    serde_json::to_writer(&mut encoded, &answered).map_err(BadRequest::Encode)?;
    Ok(Answer {
        body: encoded,
        decision,
    })
}

/// Converts an object that has another version. The apiserver takes only labels and annotations of
/// the result's metadata; the rest stays as it is.
fn converted<'a>(object: &'a RawValue, desired: &str, convert: Convert) -> Result<LazyValue<'a>, ConversionError> {
    let mut value = LazyValue::from(object);
    let Some(object) = value.as_object_mut() else {
        return Err(ConversionError::NoObject);
    };
    if object
        .get("apiVersion")
        .is_some_and(|version| version.is_string(desired))
    {
        return Ok(value);
    }
    let kind = object.get("kind").cloned();
    let mut kept = object
        .get_mut("metadata")
        .and_then(LazyValue::as_object_mut)
        .map(mem::take);
    let identity = ["namespace", "name"].into_iter().filter_map(|field| {
        let value = kept.as_ref()?.get(field)?.clone();
        Some((field.into(), value))
    });
    let mut visible: LazyObject<'a> = identity.collect();
    for field in ["labels", "annotations"] {
        let value = kept.as_mut().and_then(|kept| kept.remove(field));
        visible.extend(value.map(|value| (field.into(), value)));
    }
    object.insert("metadata", visible.into());
    convert(object, desired)?;
    let mut kept = kept.unwrap_or_default();
    let mut returned = object.remove("metadata");
    if let Some(returned) = returned.as_mut().and_then(LazyValue::as_object_mut) {
        for field in ["labels", "annotations"] {
            let value = returned.remove(field).filter(|value| !value.is_null());
            kept.extend(value.map(|value| (field.into(), value)));
        }
    }
    object.insert("metadata", kept.into());
    object.insert("apiVersion", LazyValue::string(desired));
    match kind {
        Some(kind) => object.insert("kind", kind),
        None => drop(object.remove("kind")),
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, json};

    use super::*;

    /// Moves `a` of v1 to `b` of v2, and back, and removes the labels.
    fn rename(object: &mut LazyObject<'_>, desired: &str) -> Result<(), ConversionError> {
        let (from, to) = match desired {
            "example.dev/v2" => ("a", "b"),
            "example.dev/v1" => ("b", "a"),
            other => return Err(ConversionError::Other(format!("unknown version {other:?}").into())),
        };
        if let Some(value) = object.remove(from) {
            object.insert(to, value);
        }
        let metadata = object.get_mut("metadata").and_then(LazyValue::as_object_mut);
        let metadata = metadata.expect("there is always metadata");
        metadata.remove("labels");
        // None of this reaches the apiserver.
        metadata.insert("name", LazyValue::string("other"));
        object.insert("kind", LazyValue::string("Other"));
        Ok(())
    }

    fn respond(desired: &str, objects: &[Value]) -> (Value, Decision) {
        let request = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "ConversionReview",
            "request": {"uid": "u1", "desiredAPIVersion": desired, "objects": objects},
        });
        let answer = answer(request.to_string().as_bytes(), rename).unwrap();
        (serde_json::from_slice(&answer.body).unwrap(), answer.decision)
    }

    fn check(desired: &str, object: Value, expected: &Expect) {
        let (body, _) = respond(desired, &[object]);
        expected.assert_eq(&body["response"].to_string());
    }

    #[test]
    fn objects_keep_their_identity_and_order() {
        let thing = |version: &str, name: &str| {
            json!({
                "apiVersion": version,
                "kind": "Thing",
                "metadata": {"name": name, "uid": "1", "labels": {"x": "y"}, "annotations": {"k": "v"}},
                "a": 1,
            })
        };
        let objects = [thing("example.dev/v1", "one"), thing("example.dev/v2", "two")];
        let (body, decision) = respond("example.dev/v2", &objects);
        assert_eq!(decision, Decision::Converted);
        let converted = &body["response"]["convertedObjects"];
        assert_eq!(
            converted[0],
            json!({
                "apiVersion": "example.dev/v2",
                "kind": "Thing",
                "metadata": {"name": "one", "uid": "1", "annotations": {"k": "v"}},
                "b": 1,
            })
        );
        assert_eq!(converted[1], objects[1], "it has that version already");
    }

    #[test]
    fn partial_objects_are_converted() {
        check(
            "example.dev/v1",
            json!({"apiVersion": "example.dev/v2", "kind": "Thing"}),
            &expect![[
                r#"{"convertedObjects":[{"apiVersion":"example.dev/v1","kind":"Thing","metadata":{}}],"result":{"status":"Success"},"uid":"u1"}"#
            ]],
        );
    }

    /// The apiserver sets no limit to the depth of managed fields, and none of the objects of a
    /// list may fail.
    #[test]
    fn metadata_of_any_depth_passes_through() {
        const DEPTH: usize = 200_000;
        let fields = format!("{}{}", "{\"f:a\":".repeat(DEPTH), "{}".to_owned() + &"}".repeat(DEPTH));
        let object = format!(
            r#"{{"apiVersion":"example.dev/v1","kind":"Thing","metadata":{{"managedFields":[{{"fieldsV1":{fields}}}],"name":"n"}},"a":{fields}}}"#
        );
        let body = format!(
            r#"{{"apiVersion":"{API_VERSION}","kind":"{KIND}","request":{{"uid":"u1","desiredAPIVersion":"example.dev/v2","objects":[{object}]}}}}"#
        );
        let answer = answer(body.as_bytes(), rename).unwrap();
        assert_eq!(answer.decision, Decision::Converted);
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.contains(&format!(r#""managedFields":[{{"fieldsV1":{fields}}}]"#)));
        assert!(text.contains(&format!(r#""b":{fields}"#)));
    }

    #[test]
    fn an_error_fails_the_whole_request() {
        check(
            "example.dev/v3",
            json!({"apiVersion": "example.dev/v2", "kind": "Thing", "metadata": {}}),
            &expect![[
                r#"{"convertedObjects":[],"result":{"message":"unknown version \"example.dev/v3\"","reason":"Invalid","status":"Failure"},"uid":"u1"}"#
            ]],
        );
        let reason = answer(b"{}", rename).unwrap_err().to_string();
        assert!(reason.starts_with("the body is no ConversionReview: "), "{reason}");
    }
}
