//! What an apiserver's refusal means to whoever asked.

use std::time::Duration;

use kube::core::Status;
use portreeve_api::{ObjectKey, Resource};

use crate::fence::Fenced;

/// The longest that an apiserver is left alone because it asked. It asks for seconds; a proxy in between that asks for a day (in
/// maintenance, say) must not keep a controller away for a day after it is back.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(5);

/// What the apiserver's fence (`portreeve fence`) says in every refusal. By this the refusal is told from one of RBAC.
pub const FENCED_BY_SERVER: &str = "portreeve fence: not the leader";

/// A failed call, classified by what can cure it. Pure: it reads nothing but the error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ApiErrorKind {
    /// 404: there is no such object, or no such resource.
    NotFound,
    /// 409 `AlreadyExists`: somebody created it first.
    AlreadyExists,
    /// 409 in any other sense: what the decision was based on has changed.
    Conflict,
    /// 410, or `Expired`: the version asked for is no longer kept. List again.
    Expired,
    /// 401 and 403: not allowed, until somebody changes the rules.
    Forbidden,
    /// 400, 405, 413, 415 and 422: the request itself is wrong. Sending it again cannot help.
    Invalid,
    /// The write was refused because this process does not lead: by its own fence, or by the one in the apiserver. The latter follows the
    /// Lease within milliseconds, so the refusal alone is no proof that the Lease is lost: the elector finds out.
    Fenced,
    /// Everything that time may cure: 429, 5xx, time limits, broken connections.
    Transient,
}

impl ApiErrorKind {
    /// Classifies an error of the client.
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            kube::Error::Service(source) if source.is::<Fenced>() => Self::Fenced,
            _ => Self::Transient,
        }
    }

    /// Classifies a `Status` that came as a body or as a watch event.
    pub fn of_status(status: &Status) -> Self {
        match (status.code, status.reason.as_str()) {
            (403, _) if status.message.contains(FENCED_BY_SERVER) => Self::Fenced,
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

/// Whether this is the apiserver's word that there is no such object: a 404 that names it. That of a path which is not served, or of a proxy
/// in between, names none and proves nothing.
pub fn is_object_not_found(error: &kube::Error, resource: &Resource, key: &ObjectKey) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let names_it = status.details.as_ref().is_some_and(|details| {
        details.name == *key.name && details.kind == *resource.plural && details.group == *resource.group
    });
    names_it && ApiErrorKind::of(error) == ApiErrorKind::NotFound
}

/// How long the apiserver asked to be left alone (`Retry-After`), if it did: five minutes at the most.
pub fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_404_is_a_proof_only_of_the_object_that_it_names() {
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
    fn refusals_are_told_apart_by_what_cures_them() {
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
    fn a_refusal_of_the_fence_in_the_apiserver_is_told_from_one_of_rbac() {
        let message = format!(
            "deployments.apps \"web\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: {FENCED_BY_SERVER}"
        );
        let status = Status::failure(&message, "Forbidden").with_code(403);
        assert_eq!(ApiErrorKind::of_status(&status), ApiErrorKind::Fenced);
    }

    #[test]
    fn a_fenced_write_is_recognised() {
        let error = kube::Error::Service(Box::new(Fenced("not the leader")));
        assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Fenced);
    }
}
