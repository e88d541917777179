//! Builds HTTP requests from effects. The applier sends them.
//!
//! Architecture Invariant: pure.

use http::Request;
use kube::{
    api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::request,
};
use portreeve_api::{LazyObject, ObjectKey, Resource};
use serde_json::{Value, json};

use crate::{Effect, Object, Propagation, Target};

/// The number of objects in a page of a list, as in client-go.
const PAGE_SIZE: u32 = 500;

/// An effect could not be turned into a request. This is a bug in the controller that planned it.
#[derive(Debug, thiserror::Error)]
#[error("failed to build the request")]
pub(crate) struct BuildRequestError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Builds the request of an effect, for [`Effect::Replace`] the first one. Returns `None` for
/// effects without a request, which are events and metrics.
pub(crate) fn of(effect: &Effect, manager: &str) -> Result<Option<Request<Vec<u8>>>, BuildRequestError> {
    let failed = |source: request::Error| BuildRequestError(source.into());
    let request = match effect {
        Effect::Create(object) => {
            let parameters = PostParams {
                field_manager: Some(manager.to_owned()),
                ..PostParams::default()
            };
            let body = serde_json::to_vec(&object.body).map_err(|source| BuildRequestError(source.into()))?;
            collection(&object.resource, &object.key).create(&parameters, body)
        }
        Effect::Apply { object, uid, version } => {
            let body = conditional(&object.body, uid, version);
            let parameters = PatchParams::apply(manager).force();
            let Object { resource, key, .. } = object;
            collection(resource, key).patch(&key.name, &parameters, &Patch::Apply(body))
        }
        Effect::PatchStatus { target, status } => {
            let body = conditional(&json!({ "status": status }), &target.uid, &target.version);
            let parameters = PatchParams {
                field_manager: Some(manager.to_owned()),
                ..PatchParams::default()
            };
            let collection = collection(&target.resource, &target.key);
            collection.patch_subresource("status", &target.key.name, &parameters, &Patch::Merge(body))
        }
        Effect::Delete { target, propagation } => {
            let parameters = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(target.uid.to_string()),
                    resource_version: Some(target.version.to_string()),
                }),
                propagation_policy: Some(match propagation {
                    Propagation::Background => PropagationPolicy::Background,
                    Propagation::Foreground => PropagationPolicy::Foreground,
                    Propagation::Orphan => PropagationPolicy::Orphan,
                }),
                ..DeleteParams::default()
            };
            collection(&target.resource, &target.key).delete(&target.key.name, &parameters)
        }
        Effect::Replace {
            target: Target { resource, key, .. },
            ..
        }
        | Effect::RequireAbsent { resource, key, .. }
        | Effect::RequirePresent { resource, key, .. }
        | Effect::Read { resource, key } => collection(resource, key).get(&key.name, &GetParams::default()),
        Effect::List { .. } => return page(effect, None).map(Some),
        Effect::Event(..) | Effect::Count { .. } | Effect::ObserveLatency { .. } => return Ok(None),
    };
    request.map(Some).map_err(failed)
}

/// Builds the request for a page of an [`Effect::List`], the first one without a token.
pub(crate) fn page(effect: &Effect, token: Option<String>) -> Result<Request<Vec<u8>>, BuildRequestError> {
    let Effect::List {
        resource,
        namespace,
        fields,
    } = effect
    else {
        return Err(BuildRequestError("only a list has pages".into()));
    };
    // Without a resourceVersion, the list contains every write that ended before it began.
    let parameters = ListParams {
        field_selector: (!fields.is_empty()).then(|| (*fields).to_owned()),
        limit: Some(PAGE_SIZE),
        continue_token: token,
        ..ListParams::default()
    };
    let listed = request::Request::new(resource.collection_path(namespace.as_deref())).list(&parameters);
    listed.map_err(|source| BuildRequestError(source.into()))
}

/// Builds the read of the discovery document with the resources of a group version.
pub(crate) fn served(resource: &Resource) -> Result<Request<Vec<u8>>, BuildRequestError> {
    let collection = resource.collection_path(None);
    let document = collection.rsplit_once('/').map_or("", |(document, _)| document);
    let request = Request::get(document).body(Vec::new());
    request.map_err(|source| BuildRequestError(source.into()))
}

/// Builds the PUT of an [`Effect::Replace`] from the object that was read.
pub(crate) fn put(
    target: &Target,
    subresource: Option<&'static str>,
    read: &LazyObject<'_>,
    manager: &str,
) -> Result<Request<Vec<u8>>, BuildRequestError> {
    let body = serde_json::to_vec(read).map_err(|source| BuildRequestError(source.into()))?;
    let parameters = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    let (name, collection) = (&target.key.name, collection(&target.resource, &target.key));
    let request = match subresource {
        Some(subresource) => collection.replace_subresource(subresource, name, &parameters, body),
        None => collection.replace(name, &parameters, body),
    };
    request.map_err(|source| BuildRequestError(source.into()))
}

fn collection(resource: &Resource, key: &ObjectKey) -> request::Request {
    request::Request::new(resource.collection_path(key.namespace.as_deref()))
}

/// Restricts the body to one object in one version.
///
/// Without this, a forced apply based on a stale cache could take over or create an object that is
/// not ours.
fn conditional(body: &Value, uid: &str, version: &str) -> Value {
    let mut body = body.clone();
    body["metadata"]["uid"] = uid.into();
    body["metadata"]["resourceVersion"] = version.into();
    body
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Target;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    fn target() -> Target {
        Target {
            resource: PODS,
            key: ObjectKey::namespaced("n", "a"),
            uid: Arc::from("u1"),
            version: Arc::from("7"),
        }
    }

    fn build(effect: &Effect) -> (String, Value) {
        let request = of(effect, "manager").unwrap().unwrap();
        let line = format!("{} {}", request.method(), request.uri());
        (line, serde_json::from_slice(request.body()).unwrap())
    }

    #[test]
    fn a_delete_carries_uid_version_and_policy() {
        let (line, body) = build(&Effect::Delete {
            target: target(),
            propagation: Propagation::Foreground,
        });
        assert_eq!(line, "DELETE /api/v1/namespaces/n/pods/a?");
        assert_eq!(
            body,
            json!({"preconditions": {"uid": "u1", "resourceVersion": "7"}, "propagationPolicy": "Foreground"})
        );
    }

    #[test]
    fn an_apply_is_forced_and_bound_to_one_object() {
        let (line, body) = build(&Effect::Apply {
            object: Object {
                resource: PODS,
                key: ObjectKey::namespaced("n", "a"),
                body: json!({"metadata": {"name": "a"}, "spec": {}}),
            },
            uid: Arc::from("u1"),
            version: Arc::from("7"),
        });
        assert_eq!(
            line,
            "PATCH /api/v1/namespaces/n/pods/a?&force=true&fieldManager=manager"
        );
        assert_eq!(
            body["metadata"],
            json!({"name": "a", "uid": "u1", "resourceVersion": "7"})
        );
    }

    #[test]
    fn a_status_patch_is_bound_to_the_version_of_the_decision() {
        let (line, body) = build(&Effect::PatchStatus {
            target: target(),
            status: json!({"ready": true}),
        });
        assert_eq!(line, "PATCH /api/v1/namespaces/n/pods/a/status?&fieldManager=manager");
        assert_eq!(
            body,
            json!({"metadata": {"uid": "u1", "resourceVersion": "7"}, "status": {"ready": true}})
        );
    }

    #[test]
    fn a_replacement_reads_the_object_and_puts_what_it_is_given() {
        let effect = Effect::Replace {
            target: target(),
            subresource: Some("finalize"),
            changes: json!({}),
        };
        let get = of(&effect, "manager").unwrap().unwrap();
        assert_eq!(
            (get.method().as_str(), get.uri().path()),
            ("GET", "/api/v1/namespaces/n/pods/a")
        );
        let read: LazyObject<'_> = serde_json::from_str(r#"{"metadata":{"uid":"u1"}}"#).unwrap();
        let put = put(&target(), Some("finalize"), &read, "manager").unwrap();
        assert_eq!(
            format!("{} {}", put.method(), put.uri()),
            "PUT /api/v1/namespaces/n/pods/a/finalize?&fieldManager=manager"
        );
        assert_eq!(put.body(), br#"{"metadata":{"uid":"u1"}}"#);
        let put = super::put(&target(), None, &read, "manager").unwrap();
        assert_eq!(
            format!("{} {}", put.method(), put.uri()),
            "PUT /api/v1/namespaces/n/pods/a?&fieldManager=manager"
        );
    }

    #[test]
    fn a_list_asks_for_pages_of_the_current_state() {
        let effect = Effect::List {
            resource: PODS,
            namespace: Some("n".into()),
            fields: "spec.nodeName!=",
        };
        let line = |token: Option<&str>| {
            let page = page(&effect, token.map(str::to_owned)).unwrap();
            format!("{} {}", page.method(), page.uri())
        };
        let first = "GET /api/v1/namespaces/n/pods?&fieldSelector=spec.nodeName%21%3D&limit=500";
        assert_eq!(line(None), first);
        assert_eq!(line(Some("t")), format!("{first}&continue=t"));
        assert_eq!(served(&PODS).unwrap().uri(), "/api/v1");
        let deployments = Resource::namespaced("apps", "v1", "Deployment", "deployments");
        assert_eq!(served(&deployments).unwrap().uri(), "/apis/apps/v1");
    }

    #[test]
    fn a_create_names_its_field_manager() {
        let (line, _) = build(&Effect::Create(Object {
            resource: PODS,
            key: ObjectKey::namespaced("n", "a"),
            body: json!({}),
        }));
        assert_eq!(line, "POST /api/v1/namespaces/n/pods?&fieldManager=manager");
    }
}
