//! Classifies the errors that an apiserver returns.

use std::{error::Error, time::Duration};

use kube::core::Status;
use portreeve_api::{ObjectKey, Resource};

use crate::{body::CallAborted, error_chain::RedactedAuthError, fence::Fenced};

/// The longest `Retry-After` that the client honors. The apiserver sends a few seconds. A proxy in
/// front of it may send a day, for example during maintenance, but controllers must resume soon
/// after its end.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The start of every denial message of the ValidatingAdmissionPolicy that `portreeve fence`
/// prints. It distinguishes those denials from RBAC denials.
pub const FENCED_BY_SERVER: &str = "portreeve fence: not the leader";

/// A failed call, classified by what can resolve it. The classification reads only the error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ApiErrorKind {
    /// 404: the object or the resource does not exist.
    NotFound,
    /// 409 `AlreadyExists`: another client created the object first.
    AlreadyExists,
    /// Any other 409: the object has changed since the decision.
    Conflict,
    /// 410 or `Expired`: the apiserver no longer keeps the requested version. List again.
    Expired,
    /// 401 or 403, or the denial of an admission webhook, whatever its code: the request is not
    /// permitted until the credentials, the authorization rules or the policies change.
    Forbidden,
    /// 400, 405, 413, 415 or 422: the request itself is invalid, and a retry cannot help.
    Invalid,
    /// The write was rejected because this process does not lead, either by its own fence or by the
    /// ValidatingAdmissionPolicy in the apiserver. The policy sees changes of the Lease
    /// milliseconds later, so the rejection does not prove that the Lease is lost. The elector
    /// decides that.
    Fenced,
    /// 429, 5xx, timeouts and broken connections: a retry may succeed.
    Transient,
}

impl ApiErrorKind {
    /// Classifies an error of [`kube::Client`].
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::Service(source) if source.is::<Fenced>() => Self::Fenced,
            _ => Self::Transient,
        }
    }

    /// Classifies a `Status` from a response body or a watch event.
    pub(crate) fn of_status(status: &Status) -> Self {
        match (status.code, status.reason.as_str()) {
            (403, _) if status.message.contains(FENCED_BY_SERVER) => Self::Fenced,
            // A webhook chooses the code of its denial. With 429 and 5xx, it asks for a retry.
            (400..=428 | 430..=499, _) if is_denied_by_webhook(&status.message) => Self::Forbidden,
            (_, "AlreadyExists") => Self::AlreadyExists,
            (_, "Expired" | "Gone") | (410, _) => Self::Expired,
            (404, _) => Self::NotFound,
            (409, _) => Self::Conflict,
            (401 | 403, _) => Self::Forbidden,
            (400 | 405 | 413 | 415 | 422, _) => Self::Invalid,
            _ => Self::Transient,
        }
    }
}

/// Returns whether this is the message of a denial by an admission webhook. The apiserver puts this
/// text before the webhook's own (`ToStatusErr` in
/// `staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/errors/statuserror.go`).
fn is_denied_by_webhook(message: &str) -> bool {
    let denial = message.strip_prefix("admission webhook \"");
    denial.is_some_and(|denial| denial.contains("\" denied the request"))
}

/// Returns whether the error is a 404 that names this object, which proves that the object does not
/// exist. A 404 for a path that is not served, or from a proxy, names no object and proves nothing.
pub fn is_object_not_found(error: &kube::Error, resource: &Resource, key: &ObjectKey) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_object = status.details.as_ref().is_some_and(|details| {
        details.name == *key.name && details.kind == *resource.plural && details.group == *resource.group
    });
    names_object && ApiErrorKind::of(error) == ApiErrorKind::NotFound
}

/// Returns whether the apiserver was unavailable: it answered with a 5xx, or the connection failed
/// or was too slow. The end of an [`Outage`](crate::Outage) resolves such an error, unless the
/// response has a `Retry-After`.
pub fn is_unavailable(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500,
        kube::Error::Service(source) => is_connection_error(&**source),
        kube::Error::HyperError(_) => true,
        _ => false,
    }
}

/// Returns whether a request took too long: the apiserver or a proxy says so by a 504, or the
/// response was not complete within the time limit of the client.
pub fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let is_answer = matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if status.code == 504);
        if is_answer || matches!(error.downcast_ref(), Some(CallAborted::TimedOut(_))) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Returns whether an error without a response comes from the connection. The others come from this
/// process, which has not sent the request or has dropped it.
pub(crate) fn is_connection_error(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let is_ours = error.is::<Fenced>()
        || error.is::<RedactedAuthError>()
        || error.downcast_ref() == Some(&CallAborted::FenceClosed);
    !is_ours
}

/// Returns the `Retry-After` of the response, capped at five minutes.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn not_found_counts_only_for_the_object_it_names() {
        const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");
        let key = ObjectKey::namespaced("n", "a");
        let proves = |code: u16, details: serde_json::Value| {
            let status = json!({"status": "Failure", "reason": "NotFound", "code": code, "details": details});
            let status: Status = serde_json::from_value(status).unwrap();
            is_object_not_found(&kube::Error::Api(status.boxed()), &PODS, &key)
        };
        let named = json!({"name": "a", "kind": "pods"});
        assert!(proves(404, named.clone()));
        assert!(!proves(409, named));
        for other in [
            json!({}),
            json!({"name": "b", "kind": "pods"}),
            json!({"name": "a", "kind": "nodes"}),
            json!({"name": "a", "kind": "pods", "group": "metrics.k8s.io"}),
        ] {
            assert!(!proves(404, other.clone()), "{other}");
        }
    }

    fn status(code: u16, reason: &str) -> ApiErrorKind {
        let status = Status {
            code,
            reason: reason.to_owned(),
            ..Status::default()
        };
        ApiErrorKind::of(&kube::Error::Api(status.boxed()))
    }

    #[test]
    fn errors_are_classified_by_code_and_reason() {
        let table = [
            (404, "NotFound", ApiErrorKind::NotFound),
            (409, "AlreadyExists", ApiErrorKind::AlreadyExists),
            (409, "Conflict", ApiErrorKind::Conflict),
            (410, "Expired", ApiErrorKind::Expired),
            (410, "Gone", ApiErrorKind::Expired),
            (410, "", ApiErrorKind::Expired),
            (401, "Unauthorized", ApiErrorKind::Forbidden),
            (403, "Forbidden", ApiErrorKind::Forbidden),
            (422, "Invalid", ApiErrorKind::Invalid),
            (413, "RequestEntityTooLarge", ApiErrorKind::Invalid),
            (400, "BadRequest", ApiErrorKind::Invalid),
            (429, "TooManyRequests", ApiErrorKind::Transient),
            (500, "InternalError", ApiErrorKind::Transient),
            (503, "ServiceUnavailable", ApiErrorKind::Transient),
            (504, "Timeout", ApiErrorKind::Transient),
        ];
        for (code, reason, expected) in table {
            assert_eq!(status(code, reason), expected, "{code} {reason}");
        }
    }

    #[test]
    fn a_denial_by_a_webhook_is_a_rejection_whatever_its_code() {
        let kind = |code: u16, reason: &str, message: &str| {
            ApiErrorKind::of_status(&Status::failure(message, reason).with_code(code))
        };
        let denied = [
            "admission webhook \"w.example.com\" denied the request: frozen",
            "admission webhook \"w.example.com\" denied the request without explanation",
        ];
        for message in denied {
            for (code, reason) in [
                (400, "BadRequest"),
                (403, ""),
                (404, "NotFound"),
                (409, "Conflict"),
                (409, "AlreadyExists"),
                (410, "Expired"),
                (422, "Invalid"),
            ] {
                assert_eq!(kind(code, reason, message), ApiErrorKind::Forbidden, "{code} {reason}");
            }
            assert_eq!(kind(429, "TooManyRequests", message), ApiErrorKind::Transient);
            assert_eq!(kind(503, "", message), ApiErrorKind::Transient);
        }
        let quoted = "jobs.batch \"a\" already exists: admission webhook \"w\" denied the request";
        assert_eq!(kind(409, "Conflict", quoted), ApiErrorKind::Conflict);
    }

    #[test]
    fn server_fence_denial_is_distinguished_from_rbac() {
        let message = format!(
            "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: {FENCED_BY_SERVER}"
        );
        let status = Status::failure(&message, "Forbidden").with_code(403);
        assert_eq!(ApiErrorKind::of_status(&status), ApiErrorKind::Fenced);
    }

    #[test]
    fn timeouts_are_found_in_the_chain_of_sources() {
        let answer = |code| kube::Error::Api(Status::failure("", "").with_code(code).boxed());
        assert!(is_timeout(&answer(504)) && !is_timeout(&answer(503)));
        let aborted = |reason: CallAborted| kube::Error::Service(Box::new(reason));
        let limit = Duration::from_secs(35);
        assert!(is_timeout(&aborted(CallAborted::TimedOut(limit))));
        assert!(!is_timeout(&aborted(CallAborted::NotConnected(limit))));
    }
}
