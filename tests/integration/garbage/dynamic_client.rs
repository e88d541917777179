//! A client for objects of any kind in one namespace.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use http::{Request, header::CONTENT_TYPE};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
    core::GroupVersionKind,
};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};

use super::object_builder::{ObjectBuilder, config_map};
use crate::support::RETRY_LIMIT;

/// The interval between the checks of [`ensure_throughout`].
const INTERVAL: Duration = Duration::from_millis(100);

/// The deletion policy for the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Policy {
    /// The request names no policy, so the resource's default and the object's finalizers decide.
    Unspecified,
    Background,
    Foreground,
    Orphan,
    /// The deprecated field `orphanDependents`, which `propagationPolicy` has replaced.
    OrphanDependents(bool),
}

impl Policy {
    fn options(self) -> Value {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        match self {
            Self::Unspecified => {}
            Self::Background | Self::Foreground | Self::Orphan => {
                options["propagationPolicy"] = format!("{self:?}").into();
            }
            Self::OrphanDependents(orphan) => options["orphanDependents"] = orphan.into(),
        }
        options
    }
}

/// A client for one namespace, with administrator rights.
#[derive(Clone)]
pub(crate) struct DynamicClient {
    namespace: Namespace,
}

impl DynamicClient {
    pub(crate) async fn new(plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        Ok(Self { namespace })
    }

    /// Returns a client for an existing namespace.
    pub(crate) fn of(namespace: &Namespace) -> Self {
        let namespace = namespace.clone();
        Self { namespace }
    }

    pub(crate) fn name(&self) -> &str {
        self.namespace.name()
    }

    pub(crate) fn client(&self) -> &Client {
        self.namespace.client()
    }

    /// Creates an object in this namespace.
    pub(crate) async fn create(&self, builder: ObjectBuilder) -> Result<DynamicObject> {
        self.create_for_cluster(builder.namespace(self.name())).await
    }

    /// Creates a cluster-scoped object, or one whose manifest names a namespace.
    pub(crate) async fn create_for_cluster(&self, builder: ObjectBuilder) -> Result<DynamicObject> {
        let object = builder.into_object()?;
        let created = self.api(&object)?.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("failed to create {}", object.name_any()))
    }

    /// Returns the object of this name and UID, if it exists.
    pub(crate) async fn find(&self, object: &DynamicObject) -> Result<Option<DynamicObject>> {
        match self.api(object)?.get(&object.name_any()).await {
            Ok(found) => Ok((found.metadata.uid == object.metadata.uid).then_some(found)),
            // The apiserver also responds with 404 when it no longer serves the resource.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the object of this name and UID.
    pub(crate) async fn get(&self, object: &DynamicObject) -> Result<DynamicObject> {
        let found = self.find(object).await?;
        found.with_context(|| format!("{} is gone", object.name_any()))
    }

    /// Returns the objects of a kind in this namespace.
    pub(crate) async fn list(&self, api_version: &str, kind: &str) -> Result<Vec<DynamicObject>> {
        let resource = resource(api_version, kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client().clone(), self.name(), &resource);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// Sends the deletion of an object, with its UID as a precondition.
    pub(crate) async fn delete(&self, object: &DynamicObject, policy: Policy) -> Result<()> {
        let path = format!("{}/{}", self.api(object)?.resource_url(), object.name_any());
        let mut options = policy.options();
        options["preconditions"] = json!({"uid": object.metadata.uid});
        let request = Request::delete(path).header(CONTENT_TYPE, "application/json");
        let request = request.body(serde_json::to_vec(&options)?)?;
        let deleted = self.client().request::<Value>(request).await;
        deleted.with_context(|| format!("failed to delete {}", object.name_any()))?;
        Ok(())
    }

    pub(crate) async fn wait_until_gone(&self, object: &DynamicObject) -> Result<()> {
        eventually(RETRY_LIMIT, &format!("{} to be gone", object.name_any()), || async {
            let found = self.find(object).await?;
            ensure!(found.is_none(), "{:?}", found.map(|found| found.metadata));
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the collector has processed all earlier events. Creates two canaries, one after
    /// the other, and waits until the collector has deleted each.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        static CANARIES: AtomicUsize = AtomicUsize::new(0);
        for _ in 0..2 {
            // No earlier canary used this UID, so the collector has no cached result for it.
            let uid = format!("nobody-{}", CANARIES.fetch_add(1, Ordering::Relaxed));
            let nobody = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": uid});
            let canary = self.create(config_map("canary").owner(nobody)).await?;
            self.wait_until_gone(&canary).await?;
        }
        Ok(())
    }

    fn api(&self, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object.types.as_ref().context("the object has no apiVersion and kind")?;
        let resource = resource(&types.api_version, &types.kind);
        let client = self.client().clone();
        Ok(match object.namespace() {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        })
    }
}

/// Returns the resource of a kind. All kinds in these tests have regular plurals.
fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Runs `check` repeatedly during `span`, and returns the first error.
///
/// Use it to verify that something does not happen. Call [`DynamicClient::catch_up`] first, so that
/// the collector has had the opportunity to do it.
pub(crate) async fn ensure_throughout<F>(span: Duration, mut check: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let end = Instant::now() + span;
    let mut interval = interval(INTERVAL);
    while Instant::now() < end {
        check().await?;
        interval.tick().await;
    }
    check().await
}
