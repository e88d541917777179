//! `ConversionReview`: from the bytes of a request to those of the response.
//!
//! A conversion has no failure policy: one error fails the whole request, so that nobody can list
//! the resource. So the function gets every object as it is, and this module guarantees what the
//! apiserver demands of the results: the version, and the identity of each object.
//!
//! Architecture Invariant: pure.

use kube::core::conversion::{ConversionRequest, ConversionResponse, ConversionReview};
use kube::core::response::Status;
use serde_json::Value;

use crate::answer::{Answer, BadRequest, Decision};

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// Reads a request and converts its objects.
pub(crate) fn answer(body: &[u8], convert: fn(Value, &str) -> Result<Value, String>) -> Result<Answer, BadRequest> {
    let review: ConversionReview =
        serde_json::from_slice(body).map_err(|source| BadRequest::Malformed { kind: KIND, source })?;
    if (&*review.types.api_version, &*review.types.kind) != (API_VERSION, KIND) {
        return Err(BadRequest::OtherType {
            expected: format!("{API_VERSION} {KIND}"),
            actual: format!("{} {}", review.types.api_version, review.types.kind),
        });
    }
    let mut request = ConversionRequest::from_review(review).map_err(|_| BadRequest::NoRequest)?;
    if request.uid.is_empty() {
        return Err(BadRequest::NoUid);
    }
    let desired = request.desired_api_version.clone();
    let objects = std::mem::take(&mut request.objects).into_iter();
    let converted: Result<Vec<_>, _> = objects.map(|object| converted(object, &desired, convert)).collect();
    let response = ConversionResponse::for_request(request);
    let (response, decision) = match converted {
        Ok(objects) => (response.success(objects), Decision::Converted),
        Err(reason) => (response.failure(Status::failure(&reason, "Invalid")), Decision::Failed),
    };
    // The response is about as long as the request.
    let mut encoded = Vec::with_capacity(body.len());
    serde_json::to_writer(&mut encoded, &response.into_review()).map_err(BadRequest::Encode)?;
    Ok(Answer {
        body: encoded,
        decision,
    })
}

/// Converts an object that has another version. The apiserver takes only labels and annotations of
/// the result's metadata; the rest stays as it is.
fn converted(object: Value, desired: &str, convert: fn(Value, &str) -> Result<Value, String>) -> Result<Value, String> {
    if object["apiVersion"] == *desired {
        return Ok(object);
    }
    let (kind, metadata) = (object["kind"].clone(), object["metadata"].clone());
    let mut result = convert(object, desired)?;
    let Value::Object(fields) = &mut result else {
        return Err("the conversion did not return an object".to_owned());
    };
    fields.insert("apiVersion".to_owned(), desired.into());
    fields.insert("kind".to_owned(), kind);
    let returned = fields.remove("metadata").unwrap_or_default();
    let mut kept = metadata;
    if !kept.is_object() {
        kept = Value::Object(serde_json::Map::new());
    }
    for field in ["labels", "annotations"] {
        match returned.get(field) {
            Some(value) if !value.is_null() => kept[field] = value.clone(),
            _ => drop(kept.as_object_mut().and_then(|kept| kept.remove(field))),
        }
    }
    fields.insert("metadata".to_owned(), kept);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;

    /// Moves `a` of v1 to `b` of v2, and back.
    fn rename(mut object: Value, desired: &str) -> Result<Value, String> {
        let (from, to) = match desired {
            "example.dev/v2" => ("a", "b"),
            "example.dev/v1" => ("b", "a"),
            other => return Err(format!("unknown version {other:?}")),
        };
        if let Some(fields) = object.as_object_mut()
            && let Some(value) = fields.remove(from)
        {
            fields.insert(to.to_owned(), value);
        }
        // None of this reaches the apiserver.
        object["metadata"] = json!({"name": "other", "annotations": object["metadata"]["annotations"]});
        object["kind"] = "Other".into();
        Ok(object)
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
