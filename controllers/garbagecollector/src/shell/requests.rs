//! The requests that the collector sends.

mod error;

use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::{ListPage, METADATA, METADATA_LIST, TimeLimit, object_path, page_path, refusal};
use portreeve_garbagecollector_graph::{FOREGROUND, ORPHAN, PartialObject, PropagationPolicy};
use portreeve_reconcile::FenceMonitor;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub(super) use self::error::RequestError;
use super::patches;

/// The time limit of a read. A read that takes longer is retried later, so that one slow API does
/// not occupy every worker.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// The number of objects in one page of a list.
const PAGE: u32 = 500;

async fn send(
    client: &Client,
    method: Method,
    path: String,
    accept: &str,
    content: &str,
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
    complete(client, request.body(body).map_err(kube::Error::HttpError)?).await
}

/// Reads metadata within [`READ_LIMIT`].
async fn read(client: &Client, path: String, accept: &str) -> Result<bytes::Bytes, kube::Error> {
    let request = Request::get(path).header(header::ACCEPT, accept);
    let request = request.extension(TimeLimit(READ_LIMIT)).body(Body::empty());
    complete(client, request.map_err(kube::Error::HttpError)?).await
}

async fn complete(client: &Client, request: Request<Body>) -> Result<bytes::Bytes, kube::Error> {
    let answer = client.send(request).await?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    // Read the body to its end, so that the connection can be reused.
    let body = answer.into_body().collect().await;
    Ok(body.map_err(|error| kube::Error::Service(error.into()))?.to_bytes())
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, RequestError> {
    // The error's own message may quote the object's content.
    serde_json::from_slice(bytes).map_err(|error| {
        RequestError::other(format!(
            "failed to decode the response: {:?} error in line {}, column {}",
            error.classify(),
            error.line(),
            error.column()
        ))
    })
}

/// Returns the metadata of an object, or `None` if it does not exist.
pub(super) async fn get(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
) -> Result<Option<PartialObject>, RequestError> {
    let answer = read(client, path(resource, key)?, METADATA).await;
    match answer.map_err(|error| RequestError::of(&error, resource, key)) {
        Ok(bytes) => decode(&bytes).map(Some),
        Err(RequestError::NotFound) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Returns one page of the metadata of the objects in one namespace, or in all, and the token of
/// the next page.
pub(super) async fn list(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
    next: Option<&str>,
) -> Result<(Vec<PartialObject>, Option<String>), RequestError> {
    let path = page_path(resource, namespace, PAGE, next);
    let answer = send(client, Method::GET, path, METADATA_LIST, "", None).await;
    let key = ObjectKey::cluster("");
    let bytes = answer.map_err(|error| RequestError::of(&error, resource, &key))?;
    read_page(&bytes)
}

/// Returns the current resourceVersion of a resource.
pub(super) async fn current_version(client: &Client, resource: &Resource) -> Result<String, RequestError> {
    let path = page_path(resource, None, 1, None);
    let answer = read(client, path, METADATA_LIST).await;
    let bytes = answer.map_err(|error| RequestError::of(&error, resource, &ObjectKey::cluster("")))?;
    let page: ListPage<PartialObject> = decode(&bytes)?;
    Ok(page.resource_version().to_owned())
}

/// Lists the metadata of all objects in one namespace, or in all. Passes each page to `page`.
pub(super) async fn list_all(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
    mut page: impl FnMut(Vec<PartialObject>),
) -> Result<(), RequestError> {
    let mut next = None;
    loop {
        let (items, following) = list(client, resource, namespace, next.as_deref()).await?;
        page(items);
        match following {
            None => return Ok(()),
            following => next = following,
        }
    }
}

fn read_page(bytes: &[u8]) -> Result<(Vec<PartialObject>, Option<String>), RequestError> {
    let page: ListPage<PartialObject> = decode(bytes)?;
    page.into_items()
        .map_err(|error| RequestError::other(error.to_string()))
}

/// Returns the path of an object.
fn path(resource: &Resource, key: &ObjectKey) -> Result<String, RequestError> {
    object_path(resource, key.namespace.as_deref(), &key.name).map_err(|error| RequestError::other(error.to_string()))
}

/// Sends the collector's writes, and records the answers.
pub(super) struct Writer {
    /// The client, behind the group's fence.
    pub(super) client: Client,
    pub(super) fence_monitor: FenceMonitor,
}

impl Writer {
    async fn send(
        &self,
        method: Method,
        path: String,
        content: &str,
        body: &Value,
    ) -> Result<bytes::Bytes, kube::Error> {
        let answer = send(&self.client, method, path, METADATA, content, Some(body)).await;
        self.fence_monitor.record(&answer);
        answer
    }
}

/// Deletes an object in this version only.
pub(super) async fn delete(
    writer: &Writer,
    resource: &Resource,
    key: &ObjectKey,
    uid: &str,
    version: &str,
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
    let answer = writer.send(Method::DELETE, path, "application/json", &options).await;
    answer
        .map(drop)
        .map_err(|error| RequestError::of(&error, resource, key))
}

/// Patches an object if every test operation of the patch holds. Returns its metadata.
pub(super) async fn patch(
    writer: &Writer,
    resource: &Resource,
    key: &ObjectKey,
    operations: &Value,
) -> Result<PartialObject, RequestError> {
    let path = path(resource, key)?;
    let answer = writer
        .send(Method::PATCH, path, "application/json-patch+json", operations)
        .await;
    decode(&answer.map_err(|error| RequestError::of_patch(&error, resource, key))?)
}

/// Patches an object that the apiserver's fence does not cover, with a JSON merge patch. Returns
/// the whole object.
pub(super) async fn merge_patch<T: DeserializeOwned>(
    client: &Client,
    resource: &Resource,
    key: &ObjectKey,
    changes: &Value,
) -> Result<T, RequestError> {
    let path = path(resource, key)?;
    let (accept, content) = ("application/json", "application/merge-patch+json");
    let answer = send(client, Method::PATCH, path, accept, content, Some(changes)).await;
    decode(&answer.map_err(|error| RequestError::of(&error, resource, key))?)
}

/// Removes a finalizer from an object that is being deleted. Does nothing if the object does not
/// have it.
pub(super) async fn remove_finalizer(
    writer: &Writer,
    resource: &Resource,
    key: &ObjectKey,
    uid: &str,
    finalizer: &str,
) -> Result<(), RequestError> {
    let answer = send(&writer.client, Method::GET, path(resource, key)?, METADATA, "", None).await;
    let bytes = answer.map_err(|error| RequestError::of(&error, resource, key))?;
    let Some(place) = place_of(finalizer, uid, &bytes)? else {
        return Ok(());
    };
    let operations = patches::remove_finalizer(uid, place, finalizer);
    let result = patch(writer, resource, key, &operations).await?;
    let remaining = result.metadata.finalizers;
    let is_restored = (remaining.orphan && finalizer == ORPHAN) || (remaining.foreground && finalizer == FOREGROUND);
    if is_restored {
        return Err(RequestError::restored());
    }
    Ok(())
}

/// Returns the position of a finalizer; `None` if the object does not have it, or has another UID.
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
        // A response without a UID is not an object.
        return Err(RequestError::other("the response is not an object"));
    }
    let finalizers = metadata.finalizers.unwrap_or_default();
    let place = finalizers.iter().position(|known| known == finalizer);
    Ok(place.filter(|_| metadata.uid == uid))
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
