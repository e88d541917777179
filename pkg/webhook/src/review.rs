//! `AdmissionReview`: from the bytes of a request to those of the response.
//!
//! A denial is a response with HTTP status 200. Everything that is no valid request is a
//! [`BadRequest`], upon which the apiserver applies the failure policy.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::sync::Arc;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::core::response::{Status, StatusCause, StatusDetails, StatusSummary};
use portreeve_api::{LazyObject, LazyValue};
use portreeve_reconcile::admission::{FieldError, Review, Webhook, WebhookHandler};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};

use crate::answer::{Answer, BadRequest, Decision};
use crate::{patch, warnings};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The most errors that a denial lists.
const MOST_ERRORS: usize = 32;
/// The fields of the metadata that a validation may depend on.
const JUDGED_METADATA: [&str; 2] = ["annotations", "labels"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reviewed<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

/// The fields of a request that are read. The objects stay text.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request<'a> {
    #[serde(default)]
    pub(crate) uid: String,
    #[serde(default)]
    resource: GroupVersionResource,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    pub(crate) namespace: Option<String>,
    #[serde(default)]
    operation: String,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GroupVersionResource {
    group: String,
    version: String,
    resource: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Returns the namespace of the object; `None` without one, or if the body is no review.
pub(crate) fn namespace(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        request: Namespaced,
    }
    #[derive(Deserialize)]
    struct Namespaced {
        namespace: String,
    }
    serde_json::from_slice::<Body>(body)
        .ok()
        .map(|body| body.request.namespace)
}

/// Reads a request for this webhook.
pub(crate) fn read<'a>(webhook: &Webhook, body: &'a [u8]) -> Result<Request<'a>, BadRequest> {
    let review: Reviewed<'a> =
        serde_json::from_slice(body).map_err(|source| BadRequest::Malformed { kind: KIND, source })?;
    if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
        return Err(BadRequest::OtherType {
            expected: format!("{API_VERSION} {KIND}"),
            actual: format!("{} {}", review.api_version, review.kind),
        });
    }
    let request = review.request.ok_or(BadRequest::NoRequest)?;
    if request.uid.is_empty() {
        return Err(BadRequest::NoUid);
    }
    let (expected, actual) = (&webhook.resource, &request.resource);
    let subresource = request.sub_resource.as_deref().filter(|name| !name.is_empty());
    let is_expected = actual.group == expected.group
        && webhook.versions().any(|version| version == actual.version)
        && actual.resource == expected.plural
        && subresource.is_none();
    if !is_expected {
        let subresource = subresource.map(|name| format!("/{name}")).unwrap_or_default();
        return Err(BadRequest::OtherResource {
            expected: format!("{}/{}", expected.api_version(), expected.plural),
            actual: format!("{}/{}/{}{subresource}", actual.group, actual.version, actual.resource),
        });
    }
    if !["CREATE", "UPDATE"].contains(&&*request.operation) {
        return Err(BadRequest::OtherOperation(request.operation));
    }
    if request.object.is_none() {
        return Err(BadRequest::NoObject);
    }
    Ok(request)
}

/// Calls the webhook's function. `parameters` are the objects of [`Webhook::parameters`] in the
/// namespace of the request, or `None` if they are not known.
pub(crate) fn answer(
    webhook: &Webhook,
    request: Request<'_>,
    parameters: Option<&[Arc<Value>]>,
    now: Timestamp,
) -> Result<Answer, BadRequest> {
    let new = request.object.ok_or(BadRequest::NoObject)?;
    let old = request.old_object;
    let mut response = Response {
        allowed: true,
        patch: None,
        patch_type: None,
        status: None,
        uid: request.uid,
        warnings: Vec::new(),
    };
    let mut decision = Decision::Allowed;
    match &webhook.handler {
        WebhookHandler::Convert(_) => return Err(BadRequest::NoReview),
        _ if is_terminating(new) => {}
        WebhookHandler::Default(default) => {
            let before = LazyValue::from(new);
            let mut after = before.clone();
            if let Some(object) = after.as_object_mut() {
                default(object);
            }
            let patch = patch::between(before, after);
            if !patch.is_empty() {
                let text = serde_json::to_vec(&patch).map_err(BadRequest::Encode)?;
                response.patch = Some(BASE64.encode(&text));
                response.patch_type = Some("JSONPatch");
                decision = Decision::Patched;
            }
        }
        WebhookHandler::Validate(_) if old.is_some_and(|old| is_equal_to_judge(old, new)) => {}
        WebhookHandler::Validate(validate) => {
            let verdict = validate(&Review {
                old,
                new,
                parameters,
                now,
            });
            response.warnings = warnings::within_limits(&verdict.warnings);
            if !verdict.errors.is_empty() {
                response.allowed = false;
                let name = request.name.unwrap_or_default();
                response.status = Some(denial(&verdict.errors, webhook, &name));
                decision = Decision::Denied;
            }
        }
    }
    let answered = Answered {
        api_version: API_VERSION,
        kind: KIND,
        response,
    };
    let body = serde_json::to_vec(&answered).map_err(BadRequest::Encode)?;
    Ok(Answer { body, decision })
}

/// Returns whether the object is being deleted. It is not validated, because that would block the
/// removal of its finalizers.
fn is_terminating(object: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        deletion_timestamp: Option<IgnoredAny>,
    }
    let object = serde_json::from_str::<Object>(object.get());
    object.is_ok_and(|object| object.metadata.deletion_timestamp.is_some())
}

/// Returns whether what a validation may depend on is equal. The apiserver encodes equal values
/// alike.
fn is_equal_to_judge(old: &RawValue, new: &RawValue) -> bool {
    let judged = |object: &RawValue| {
        let mut object = serde_json::from_str::<LazyObject<'_>>(object.get()).ok()?;
        object.remove("status");
        let mut metadata = object.remove("metadata");
        let mut metadata = metadata.as_mut().and_then(LazyValue::as_object_mut);
        for field in JUDGED_METADATA {
            let value = metadata.as_mut().and_then(|metadata| metadata.remove(field));
            // No field of an object has such a name.
            object.insert(format!("metadata.{field}"), value.unwrap_or_else(LazyValue::null));
        }
        serde_json::to_string(&object).ok()
    };
    let (old, new) = (judged(old), judged(new));
    old.is_some() && old == new
}

/// Returns the `Status` of a denial, as the apiserver's own validation would return it.
fn denial(errors: &[FieldError], webhook: &Webhook, name: &str) -> Status {
    let shown = &errors[..errors.len().min(MOST_ERRORS)];
    let texts: Vec<_> = shown.iter().map(ToString::to_string).collect();
    let message = match &texts[..] {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    let causes = shown.iter().map(|error| StatusCause {
        reason: error.reason.cause().to_owned(),
        message: error.cause(),
        field: error.field.clone(),
    });
    Status {
        status: Some(StatusSummary::Failure),
        code: 422,
        message,
        reason: "Invalid".to_owned(),
        details: Some(StatusDetails {
            name: name.to_owned(),
            group: webhook.resource.group.to_string(),
            kind: webhook.resource.kind.to_string(),
            uid: String::new(),
            causes: causes.collect(),
            retry_after_seconds: 0,
        }),
        ..Status::default()
    }
}

#[cfg(test)]
mod tests;
