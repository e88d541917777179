use kube::core::Status;

use super::*;

const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

#[test]
fn a_422_is_a_conflict_only_for_a_patch_that_names_no_object() {
    let error = |message: &str, name: &str| {
        let status = json!({
            "status": "Failure", "code": 422, "reason": "Invalid", "message": message, "details": {"name": name},
        });
        let status: Status = serde_json::from_value(status).unwrap();
        kube::Error::Api(status.boxed())
    };
    let key = ObjectKey::namespaced("n", "a");
    let is_conflict = |of: fn(&kube::Error, &Resource, &ObjectKey) -> RequestError, error: &kube::Error| {
        matches!(of(error, &PODS, &key), RequestError::Conflict)
    };
    let test = error("the server rejected our request due to an error in our request", "");
    assert!(is_conflict(RequestError::of_patch, &test) && !is_conflict(RequestError::of, &test));
    let invalid = error("Pod \"a\" is invalid", "a");
    assert!(!is_conflict(RequestError::of_patch, &invalid));
    let denied = error("admission webhook \"w\" denied the request: frozen", "");
    assert!(!is_conflict(RequestError::of_patch, &denied));
}
