//! The requests that the controller sends, except for those that replace the namespace.

use std::{sync::Arc, time::Duration};

use http::{Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::{Metadata, ObjectKey, Resource};
use portreeve_client::{
    InvalidObjectName, ListPage, METADATA, METADATA_LIST, NotAList, Outage, error_chain, is_object_not_found,
    is_unavailable, named_path, object_path, page_path, refusal, retry_after,
};
use portreeve_reconcile::FenceMonitor;
use portreeve_workqueue::Outcome;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::throttling::Throttling;
use crate::content::ContentMetadata;

pub(super) const NAMESPACES: Resource = Resource::cluster("", "v1", "Namespace", "namespaces");
/// The finalizer in `spec.finalizers` that this controller removes.
pub(super) const FINALIZER: &str = "kubernetes";

/// The number of objects in the first page of a list, which most resources fit into.
const FIRST_PAGE: u32 = 25;
/// The number of objects in each page after it.
const PAGE: u32 = 100;
/// The number of objects in all pages that are read at once, by all namespaces together: objects
/// have up to a mebibyte of metadata.
const OBJECTS: usize = 2_000;

/// A namespace, as far as its deletion depends on it.
#[derive(Debug, Deserialize)]
pub(super) struct Namespace {
    pub(super) metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    finalizers: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
    conditions: Option<Vec<Value>>,
}

impl Namespace {
    /// Returns whether the namespace waits for this controller.
    pub(super) fn needs_us(&self) -> bool {
        self.metadata.is_terminating() && self.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }

    pub(super) fn finalizers(&self) -> &[String] {
        self.spec.finalizers.as_deref().unwrap_or_default()
    }

    pub(super) fn conditions(&self) -> &[Value] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    pub(super) fn is_in_terminating_phase(&self) -> bool {
        self.status.phase.as_deref() == Some("Terminating")
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct RequestError {
    message: String,
    /// The status code of the answer, if there is one.
    code: Option<u16>,
    after: Option<Duration>,
    is_unavailable: bool,
}

impl RequestError {
    fn of(error: &kube::Error) -> Self {
        let message = match error {
            kube::Error::Api(status) => status.message.clone(),
            // The error may quote the object.
            kube::Error::SerdeError(_) => "failed to decode the response".to_owned(),
            other => error_chain(other),
        };
        let code = match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        Self {
            message,
            code,
            after: retry_after(error),
            is_unavailable: is_unavailable(error),
        }
    }

    pub(super) fn other(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: None,
            after: None,
            is_unavailable: false,
        }
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code == Some(404)
    }

    /// Returns whether the apiserver does not know the request's method.
    pub(super) fn is_unsupported(&self) -> bool {
        self.code == Some(405)
    }

    /// Returns the delay after which a throttled request may be repeated.
    pub(super) fn throttled(&self) -> Option<Duration> {
        (self.code == Some(429)).then(|| self.requested_delay())
    }

    /// Returns the delay that the apiserver asks for.
    pub(super) fn requested_delay(&self) -> Duration {
        self.after.unwrap_or_default()
    }

    /// Returns whether the apiserver may still be working on the request: it gave no answer, or it
    /// gave up waiting for its own handler.
    pub(super) fn may_go_on(&self) -> bool {
        self.code.is_none_or(|code| code >= 500)
    }

    /// Returns when the queue retries the namespace.
    pub(super) fn outcome(&self, outage: &Outage) -> Outcome {
        match self.after {
            Some(after) => Outcome::RetryAfter(after),
            None if self.is_unavailable => Outcome::RetryUnavailable(outage.min_wait()),
            None => Outcome::Retry,
        }
    }
}

impl From<InvalidObjectName> for RequestError {
    fn from(error: InvalidObjectName) -> Self {
        Self::other(error.to_string())
    }
}

impl From<NotAList> for RequestError {
    fn from(error: NotAList) -> Self {
        Self::other(error.to_string())
    }
}

impl From<http::Error> for RequestError {
    fn from(error: http::Error) -> Self {
        Self::of(&kube::Error::HttpError(error))
    }
}

#[derive(Deserialize)]
struct Item {
    metadata: ContentMetadata,
}

/// Sends the requests.
pub(super) struct Requests {
    /// The client, behind the group's fence.
    client: Client,
    fence_monitor: FenceMonitor,
    /// Limits the objects that are read at once.
    objects: Semaphore,
}

impl Requests {
    pub(super) fn new(client: Client, fence_monitor: FenceMonitor) -> Self {
        Self {
            client,
            fence_monitor,
            objects: Semaphore::new(OBJECTS),
        }
    }

    /// Returns a namespace, or `None` if it does not exist.
    pub(super) async fn namespace(&self, name: &str) -> Result<Option<Namespace>, RequestError> {
        self.object(&NAMESPACES, None, name).await
    }

    /// Returns an object, or `None` if it does not exist.
    pub(super) async fn object<T: for<'de> Deserialize<'de>>(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, RequestError> {
        let key = ObjectKey {
            namespace: namespace.map(Arc::from),
            name: Arc::from(name),
        };
        let request = Request::get(object_path(resource, namespace, name)?).body(Vec::new())?;
        let mut throttling = Throttling::default();
        loop {
            let error = match self.client.request(request.clone()).await {
                Ok(object) => return Ok(Some(object)),
                Err(error) if is_object_not_found(&error, resource, &key) => return Ok(None),
                Err(error) => RequestError::of(&error),
            };
            if !throttling.waits(error.throttled()).await {
                return Err(error);
            }
        }
    }

    /// Returns one page of the metadata of the objects in a namespace, or of all objects, and the
    /// token of the next page.
    pub(super) async fn page(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        next: Option<&str>,
    ) -> Result<(Vec<ContentMetadata>, Option<String>), RequestError> {
        let limit = if next.is_none() { FIRST_PAGE } else { PAGE };
        let (items, next) = self.page_of(limit, resource, namespace, next).await?;
        Ok((items.into_iter().map(|item| item.metadata).collect(), next))
    }

    /// Returns whether a list of one object of any namespace is empty.
    pub(super) async fn is_unused(&self, resource: &Resource) -> Result<bool, RequestError> {
        let (items, next) = self.page_of(1, resource, None, None).await?;
        Ok(items.is_empty() && next.is_none())
    }

    async fn page_of(
        &self,
        limit: u32,
        resource: &Resource,
        namespace: Option<&str>,
        next: Option<&str>,
    ) -> Result<(Vec<Item>, Option<String>), RequestError> {
        let request = Request::get(page_path(resource, namespace, limit, next))
            .header(header::ACCEPT, METADATA_LIST)
            .body(Vec::new())?;
        // The semaphore is never closed.
        let _turn = self.objects.acquire_many(limit).await;
        self.read(request).await
    }

    /// Returns the object with this name from a list, or `None` if there is none.
    pub(super) async fn find<T: for<'de> Deserialize<'de>>(
        &self,
        resource: &Resource,
        name: &str,
    ) -> Result<Option<T>, RequestError> {
        let request = Request::get(named_path(resource, name)).body(Vec::new())?;
        let (items, _) = self.read(request).await?;
        Ok(items.into_iter().next())
    }

    /// Reads a page of a list.
    async fn read<T: for<'de> Deserialize<'de>>(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<(Vec<T>, Option<String>), RequestError> {
        let mut throttling = Throttling::default();
        loop {
            let error = match self.client.request::<ListPage<T>>(request.clone()).await {
                Ok(page) => return Ok(page.into_items()?),
                Err(error) => RequestError::of(&error),
            };
            if !throttling.waits(error.throttled()).await {
                return Err(error);
            }
        }
    }

    /// Deletes all objects of a resource in a namespace that has this name when the apiserver
    /// handles the request. The caller reads the namespace again before it repeats this.
    pub(super) async fn delete_collection(&self, resource: &Resource, namespace: &str) -> Result<(), RequestError> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        });
        let path = resource.collection_path(Some(namespace));
        self.send_deletion(path, METADATA_LIST, &options).await
    }

    /// Deletes an object in this version only.
    pub(super) async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &ContentMetadata,
    ) -> Result<(), RequestError> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "uid": object.uid, "resourceVersion": object.resource_version },
            "propagationPolicy": "Background",
        });
        let path = object_path(resource, Some(namespace), &object.name)?;
        let mut throttling = Throttling::default();
        loop {
            match self.send_deletion(path.clone(), METADATA, &options).await {
                // It is gone, or has changed: the list that follows shows which.
                Err(error) if matches!(error.code, Some(404 | 409)) => return Ok(()),
                Err(error) if throttling.waits(error.throttled()).await => {}
                answer => return answer,
            }
        }
    }

    async fn send_deletion(&self, path: String, accept: &str, options: &Value) -> Result<(), RequestError> {
        let request = Request::delete(path)
            .header(header::ACCEPT, accept)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(options.to_string().into_bytes()))?;
        let answer = self.answer(request).await;
        self.fence_monitor.record(&answer);
        answer.map_err(|error| RequestError::of(&error))
    }

    /// Waits for the end of the answer, and stores nothing of it: that of a deleted collection has
    /// all its objects.
    async fn answer(&self, request: Request<Body>) -> kube::Result<()> {
        let answer = self.client.send(request).await?;
        if !answer.status().is_success() {
            return Err(refusal(answer).await);
        }
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame.map_err(|error| kube::Error::Service(error.into()))?;
        }
        Ok(())
    }
}
