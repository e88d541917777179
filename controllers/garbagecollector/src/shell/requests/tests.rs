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

#[test]
fn names_that_would_change_the_path_are_rejected() {
    let path = |name: &str| path(&PODS, &ObjectKey::namespaced("n", name)).ok();
    assert_eq!(path("a-b.c").as_deref(), Some("/api/v1/namespaces/n/pods/a-b.c"));
    assert_eq!(
        path("system:x?y#z").as_deref(),
        Some("/api/v1/namespaces/n/pods/system:x%3Fy%23z")
    );
    for name in ["", ".", "..", "../secrets/s", "a/b", "a%2fb"] {
        assert_eq!(path(name), None, "{name}");
    }
}
