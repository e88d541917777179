//! `AdmissionReview`: from the bytes of a request to those of the response.
//!
//! A denial is a response with HTTP status 200. Everything that is no valid request is a
//! [`BadRequest`], upon which the apiserver applies the failure policy.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::fmt::Debug;
use std::sync::Arc;

use data_encoding::BASE64;
use jiff::Timestamp;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND, Operation,
};
use kube::core::response::{Status, StatusCause, StatusDetails, StatusSummary};
use portreeve_reconcile::admission::{FieldError, Review, Validate, Verdict, Webhook, WebhookHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::answer::{Answer, BadRequest, Decision};
use crate::object::{Outline, RawObject};
use crate::warnings;

/// The most errors that a denial lists.
const MOST_ERRORS: usize = 32;
/// The fields of the metadata that a validation may depend on.
const JUDGED_METADATA: [&str; 2] = ["annotations", "labels"];

/// A request that was read.
pub(crate) type Request<V = Value> = AdmissionRequest<RawObject<V>>;

/// Reads a request for this webhook.
pub(crate) fn read<V>(webhook: &Webhook, body: &[u8]) -> Result<Request<V>, BadRequest>
where
    V: Clone + Debug + DeserializeOwned + Serialize,
{
    let review: AdmissionReview<RawObject<V>> =
        serde_json::from_slice(body).map_err(|source| BadRequest::Malformed {
            kind: META_KIND,
            source,
        })?;
    if (&*review.types.api_version, &*review.types.kind) != (META_API_VERSION_V1, META_KIND) {
        return Err(BadRequest::OtherType {
            expected: format!("{META_API_VERSION_V1} {META_KIND}"),
            actual: format!("{} {}", review.types.api_version, review.types.kind),
        });
    }
    let request: Request<V> = review.try_into().map_err(|_| BadRequest::NoRequest)?;
    if request.uid.is_empty() {
        return Err(BadRequest::NoUid);
    }
    let (expected, actual) = (&webhook.resource, &request.resource);
    let is_expected = actual.group == expected.group
        && webhook.versions().any(|version| version == actual.version)
        && actual.resource == expected.plural
        && request.sub_resource.as_ref().is_none_or(String::is_empty);
    if !is_expected {
        let subresource = request.sub_resource.as_deref().filter(|name| !name.is_empty());
        let subresource = subresource.map(|name| format!("/{name}")).unwrap_or_default();
        return Err(BadRequest::OtherResource {
            expected: format!("{}/{}", expected.api_version(), expected.plural),
            actual: format!("{}/{}/{}{subresource}", actual.group, actual.version, actual.resource),
        });
    }
    if !matches!(request.operation, Operation::Create | Operation::Update) {
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
    mut request: Request,
    parameters: Option<&[Arc<Value>]>,
    now: Timestamp,
) -> Result<Answer, BadRequest> {
    let mut response = AdmissionResponse::from(&request);
    let (new, old) = (request.object.take(), request.old_object.take());
    let new = new.map(|object| object.value).ok_or(BadRequest::NoObject)?;
    let old = old.map(|object| object.value);
    let (decision, patch) = match &webhook.handler {
        WebhookHandler::Convert(_) => return Err(BadRequest::NoReview),
        _ if is_terminating(&new) => (Decision::Allowed, None),
        WebhookHandler::Default(default) => {
            let patch = json_patch::diff(&new, &default(new.clone()));
            if patch.is_empty() {
                (Decision::Allowed, None)
            } else {
                (Decision::Patched, Some(patch))
            }
        }
        WebhookHandler::Validate(_) if old.as_ref().is_some_and(|old| judged(old) == judged(&new)) => {
            (Decision::Allowed, None)
        }
        WebhookHandler::Validate(validate) => {
            let verdict = verdict(validate, old, new, parameters, now);
            let warnings = warnings::within_limits(&verdict.warnings);
            response.warnings = (!warnings.is_empty()).then_some(warnings);
            if verdict.errors.is_empty() {
                (Decision::Allowed, None)
            } else {
                response.allowed = false;
                response.result = denial(&verdict.errors, webhook, &request.name);
                (Decision::Denied, None)
            }
        }
    };
    finish(response, decision, patch)
}

/// Answers a request whose objects take too much memory. A validation denies it: with status 400,
/// the apiserver would ignore the webhook, and a user could avoid the validation by a large object.
pub(crate) fn answer_unread(webhook: &Webhook, request: &Request<Outline>) -> Result<Answer, BadRequest> {
    let mut response = AdmissionResponse::from(request);
    let object = request.object.as_ref().map(|object| &object.value.metadata);
    let is_terminating = object.is_some_and(|metadata| metadata.deletion_timestamp.is_some());
    if is_terminating || !matches!(webhook.handler, WebhookHandler::Validate(_)) {
        return finish(response, Decision::Allowed, None);
    }
    let error = FieldError::forbidden(
        "spec",
        "",
        "the object has too many fields and list items for a validation",
    );
    response.allowed = false;
    response.result = denial(&[error], webhook, &request.name);
    finish(response, Decision::Denied, None)
}

/// Encodes a response.
fn finish(
    mut response: AdmissionResponse,
    decision: Decision,
    patch: Option<json_patch::Patch>,
) -> Result<Answer, BadRequest> {
    if patch.is_some() {
        // Sets the type of the patch.
        response = response
            .with_patch(json_patch::Patch::default())
            .map_err(BadRequest::Patch)?;
    }
    let mut body = serde_json::to_value(response.into_review()).map_err(BadRequest::Encode)?;
    if let Some(patch) = patch {
        // kube encodes the patch as a list of numbers.
        let text = serde_json::to_vec(&patch).map_err(BadRequest::Encode)?;
        body["response"]["patch"] = BASE64.encode(&text).into();
    }
    let body = serde_json::to_vec(&body).map_err(BadRequest::Encode)?;
    Ok(Answer { body, decision })
}

fn verdict(
    validate: &Validate,
    old: Option<Value>,
    new: Value,
    parameters: Option<&[Arc<Value>]>,
    now: Timestamp,
) -> Verdict {
    validate(&Review {
        old,
        new,
        parameters,
        now,
    })
}

/// Returns whether the object is being deleted. It is not validated, because that would block the
/// removal of its finalizers.
fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Returns the part of an object that a validation may depend on.
fn judged(object: &Value) -> (Vec<(&String, &Value)>, [Option<&Value>; 2]) {
    let fields = object.as_object().into_iter().flat_map(Map::iter);
    let fields = fields.filter(|(name, _)| !["metadata", "status"].contains(&name.as_str()));
    let metadata = JUDGED_METADATA.map(|field| object["metadata"].get(field));
    (fields.collect(), metadata)
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
