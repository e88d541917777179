//! The requests that the collector sends, and what their answers mean.

use std::{fmt::Write, time::Duration};

use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::{ApiErrorKind, error_chain, is_object_not_found, refusal, retry_after};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{PartialObject, verdict::PropagationPolicy};

const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
/// How many objects one page of a list holds.
const PAGE: u32 = 500;

/// Why a request was not answered as hoped.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// There is no such object: the apiserver names it.
    #[error("it does not exist any more")]
    NotFound,
    /// The object has changed, or another one is in its place.
    #[error("it has changed meanwhile")]
    Conflict,
    /// Nothing but time, or somebody, can cure it.
    #[error("{message}")]
    Other {
        /// What the apiserver says.
        message: String,
        /// What can cure it.
        kind: ApiErrorKind,
        /// How long it asks to be left alone.
        after: Option<Duration>,
    },
}

impl RequestError {
    fn other(message: impl Into<String>) -> Self {
        Self::Other {
            message: message.into(),
            kind: ApiErrorKind::Transient,
            after: None,
        }
    }

    /// Whether the apiserver has answered, and done nothing.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::NotFound | Self::Conflict => true,
            Self::Other { kind, after, .. } => {
                after.is_some()
                    || matches!(
                        kind,
                        ApiErrorKind::Forbidden | ApiErrorKind::Invalid | ApiErrorKind::NotFound | ApiErrorKind::Fenced
                    )
            }
        }
    }

    fn of(error: &kube::Error, resource: &Resource, key: &ObjectKey) -> Self {
        if is_object_not_found(error, resource, key) {
            return Self::NotFound;
        }
        match (ApiErrorKind::of(error), error) {
            (ApiErrorKind::Conflict, _) => Self::Conflict,
            // A test in a JSON patch that does not hold.
            (ApiErrorKind::Invalid, kube::Error::Api(status)) if status.code == 422 && status.details_are_empty() => {
                Self::Conflict
            }
            (kind, error) => Self::Other {
                message: error_chain(error),
                kind,
                after: retry_after(error),
            },
        }
    }
}

trait Details {
    fn details_are_empty(&self) -> bool;
}

impl Details for Status {
    /// A patch that cannot be applied is refused before there is any object to name.
    fn details_are_empty(&self) -> bool {
        self.details
            .as_ref()
            .is_none_or(|details| details.causes.is_empty() && details.name.is_empty())
    }
}

/// The path of an object. A reference may say anything, and its name must not lead elsewhere.
fn path(resource: &Resource, key: &ObjectKey) -> Result<String, RequestError> {
    if key.name.is_empty() || matches!(&*key.name, "." | "..") || key.name.contains(['/', '%']) {
        return Err(RequestError::other(format!("no object can be called {:?}", key.name)));
    }
    let mut path = resource.collection_path(key.namespace.as_deref());
    path.push('/');
    escape(&key.name, &mut path);
    Ok(path)
}

/// As it can stand in a path or in a query.
fn escape(text: &str, path: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' => path.push(byte.into()),
            // Writing to a string does not fail.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
}

async fn send(
    client: &Client,
    method: Method,
    path: String,
    (accept, content): (&str, &str),
    body: Option<&Value>,
) -> Result<bytes::Bytes, kube::Error> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, accept);
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, content);
    }
    let body = match body {
        Some(body) => Body::from(serde_json::to_vec(body).map_err(kube::Error::SerdeError)?),
        None => Body::empty(),
    };
    let request = request.body(body).map_err(kube::Error::HttpError)?;
    let answer = client.send(request).await?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    // Read to its end, so that the connection can be used again.
    let body = answer.into_body().collect().await;
    Ok(body.map_err(|error| kube::Error::Service(error.into()))?.to_bytes())
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RequestError> {
    // The error may quote what an object holds.
    serde_json::from_slice(bytes).map_err(|error| {
        RequestError::other(format!(
            "the answer cannot be read: {:?} in line {}, column {}",
            error.classify(),
            error.line(),
            error.column()
        ))
    })
}

/// The metadata of an object; `None` if there is none.
pub(super) async fn get(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
) -> Result<Option<PartialObject>, RequestError> {
    let answer = send(client, Method::GET, path(resource, key)?, (METADATA, ""), None).await;
    match answer.map_err(|error| RequestError::of(&error, resource, key)) {
        Ok(bytes) => decode(&bytes).map(Some),
        Err(RequestError::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// One page of the metadata of what is in a namespace, or in all of them, and where the next one begins.
pub(super) async fn list(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
    next: Option<&str>,
) -> Result<(Vec<PartialObject>, Option<String>), RequestError> {
    let mut path = format!("{}?limit={PAGE}", resource.collection_path(namespace));
    if let Some(next) = next {
        path.push_str("&continue=");
        escape(next, &mut path);
    }
    let answer = send(client, Method::GET, path, (METADATA_LIST, ""), None).await;
    let key = ObjectKey::cluster("");
    let bytes = answer.map_err(|error| RequestError::of(&error, resource, &key))?;
    read_page(&bytes)
}

/// Reads what is a list and nothing else. Who is not in it depends on nobody: any other answer must not pass for an empty one.
fn read_page(bytes: &[u8]) -> Result<(Vec<PartialObject>, Option<String>), RequestError> {
    #[derive(Deserialize)]
    struct Page {
        kind: String,
        #[serde(default)]
        metadata: PageMetadata,
        /// They may be null, and not absent.
        #[serde(deserialize_with = "Option::deserialize")]
        items: Option<Vec<PartialObject>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct PageMetadata {
        #[serde(rename = "continue")]
        next: Option<String>,
    }
    let page: Page = decode(bytes)?;
    if !page.kind.ends_with("List") {
        return Err(RequestError::other("the answer is no list"));
    }
    let next = page.metadata.next.filter(|next| !next.is_empty());
    Ok((page.items.unwrap_or_default(), next))
}

/// Deletes an object, in this version alone.
pub(super) async fn delete(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
    (uid, version): (&str, &str),
    policy: PropagationPolicy,
) -> Result<(), RequestError> {
    let policy = match policy {
        PropagationPolicy::Background => "Background",
        PropagationPolicy::Foreground => "Foreground",
        PropagationPolicy::Orphan => "Orphan",
    };
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": uid, "resourceVersion": version },
        "propagationPolicy": policy,
    });
    let path = path(resource, key)?;
    let answer = send(
        client,
        Method::DELETE,
        path,
        (METADATA, "application/json"),
        Some(&options),
    )
    .await;
    answer
        .map(drop)
        .map_err(|error| RequestError::of(&error, resource, key))
}

/// Patches an object, if every test of the patch holds. Returns its metadata.
pub(super) async fn patch(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
    operations: &Value,
) -> Result<PartialObject, RequestError> {
    let path = path(resource, key)?;
    let answer = send(
        client,
        Method::PATCH,
        path,
        (METADATA, "application/json-patch+json"),
        Some(operations),
    )
    .await;
    decode(&answer.map_err(|error| RequestError::of(&error, resource, key))?)
}

/// The patch that takes references away: each is tested to be of its owner still.
pub(super) fn remove_references_patch(uid: &str, references: &[(usize, Box<str>)]) -> Value {
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": uid })];
    // From the last on, so that places do not move.
    let mut references: Vec<_> = references.iter().collect();
    references.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
    for (place, owner) in references {
        let path = format!("/metadata/ownerReferences/{place}");
        operations.push(json!({ "op": "test", "path": format!("{path}/uid"), "value": owner }));
        operations.push(json!({ "op": "remove", "path": path }));
    }
    operations.into()
}

/// The patch by which references no longer block their owners. Only of the version that was decided on: the object is deleted in the one that
/// comes of it, and by now it might have an owner that keeps it.
pub(super) fn unblock_patch(uid: &str, version: &str, references: &[(usize, Box<str>)]) -> Value {
    let mut operations = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": uid }),
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }),
    ];
    for (place, owner) in references {
        let path = format!("/metadata/ownerReferences/{place}");
        operations.push(json!({ "op": "test", "path": format!("{path}/uid"), "value": owner }));
        operations.push(json!({ "op": "replace", "path": format!("{path}/blockOwnerDeletion"), "value": false }));
    }
    operations.into()
}

/// Takes a finalizer away from an object that is being deleted. Nothing is done where there is none.
pub(super) async fn remove_finalizer(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
    uid: &str,
    finalizer: &str,
) -> Result<(), RequestError> {
    let answer = send(client, Method::GET, path(resource, key)?, (METADATA, ""), None).await;
    let bytes = answer.map_err(|error| RequestError::of(&error, resource, key))?;
    let Some(place) = place_of(finalizer, uid, &bytes)? else {
        return Ok(());
    };
    let path = format!("/metadata/finalizers/{place}");
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": uid },
        { "op": "test", "path": path, "value": finalizer },
        { "op": "remove", "path": path },
    ]);
    patch(client, resource, key, &operations).await.map(drop)
}

/// Where an object has a finalizer; `None` where it has none, or is another object.
fn place_of(finalizer: &str, uid: &str, answer: &[u8]) -> Result<Option<usize>, RequestError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Object {
        metadata: Finalized,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Finalized {
        uid: String,
        finalizers: Option<Vec<String>>,
    }
    let Object { metadata } = decode(answer)?;
    if metadata.uid.is_empty() {
        // What is no object is nothing to go by.
        return Err(RequestError::other("the answer is no object"));
    }
    let finalizers = metadata.finalizers.unwrap_or_default();
    let place = finalizers.iter().position(|known| known == finalizer);
    Ok(place.filter(|_| metadata.uid == uid))
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    #[test]
    fn a_name_leads_nowhere_else() {
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

    #[test]
    fn references_are_unblocked_in_one_version_alone() {
        let patch = unblock_patch("u", "7", &[(1, "b".into())]);
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
                {"op": "test", "path": "/metadata/ownerReferences/1/uid", "value": "b"},
                {"op": "replace", "path": "/metadata/ownerReferences/1/blockOwnerDeletion", "value": false},
            ])
        );
    }

    #[test]
    fn references_are_taken_away_from_the_last_on() {
        let patch = remove_references_patch("u", &[(0, "a".into()), (2, "c".into())]);
        assert_eq!(
            patch,
            json!([
                {"op": "test", "path": "/metadata/uid", "value": "u"},
                {"op": "test", "path": "/metadata/ownerReferences/2/uid", "value": "c"},
                {"op": "remove", "path": "/metadata/ownerReferences/2"},
                {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": "a"},
                {"op": "remove", "path": "/metadata/ownerReferences/0"},
            ])
        );
    }
}
