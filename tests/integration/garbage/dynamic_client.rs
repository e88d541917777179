//! A namespace, and what a test does with the objects in it.

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
use crate::support::SETTLED;

/// How often it is looked whether something stays as it is.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is to become of an object's dependents when it is deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Policy {
    /// As its resource and its finalizers have it.
    Unspecified,
    Background,
    Foreground,
    Orphan,
    /// What `propagationPolicy` was once said by: `orphanDependents`.
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

#[derive(Clone)]
pub(crate) struct DynamicClient {
    namespace: Namespace,
}

impl DynamicClient {
    pub(crate) async fn new(plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        Ok(Self { namespace })
    }

    /// The same for a namespace that is there.
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

    /// Creates it in this namespace.
    pub(crate) async fn create(&self, builder: ObjectBuilder) -> Result<DynamicObject> {
        self.create_for_cluster(builder.namespace(self.name())).await
    }

    /// Creates an object that has no namespace, or one that names its own.
    pub(crate) async fn create_for_cluster(&self, builder: ObjectBuilder) -> Result<DynamicObject> {
        let object = builder.into_object()?;
        let created = self.api(&object)?.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("failed to create {}", object.name_any()))
    }

    /// What has this object's name and UID, if it is there.
    pub(crate) async fn find(&self, object: &DynamicObject) -> Result<Option<DynamicObject>> {
        match self.api(object)?.get(&object.name_any()).await {
            Ok(found) => Ok((found.metadata.uid == object.metadata.uid).then_some(found)),
            // Of a resource that is not served any more, nothing is there either.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, for what must be there.
    pub(crate) async fn get(&self, object: &DynamicObject) -> Result<DynamicObject> {
        let found = self.find(object).await?;
        found.with_context(|| format!("{} is gone", object.name_any()))
    }

    /// The objects of this kind in this namespace.
    pub(crate) async fn list(&self, api_version: &str, kind: &str) -> Result<Vec<DynamicObject>> {
        let resource = resource(api_version, kind);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client().clone(), self.name(), &resource);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// Asks for its deletion.
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
        eventually(SETTLED, &format!("{} to be gone", object.name_any()), || async {
            let found = self.find(object).await?;
            ensure!(found.is_none(), "{:?}", found.map(|found| found.metadata));
            anyhow::Ok(())
        })
        .await
    }

    /// Returns once the collector has come round: it has collected what was made now. What it heard of before, it has had in its hands.
    pub(crate) async fn wait_for_round(&self) -> Result<()> {
        static CANARIES: AtomicUsize = AtomicUsize::new(0);
        for _ in 0..2 {
            // An owner that nobody has asked for yet.
            let uid = format!("nobody-{}", CANARIES.fetch_add(1, Ordering::Relaxed));
            let nobody = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": uid});
            let canary = self.create(config_map("canary").owner(nobody)).await?;
            self.wait_until_gone(&canary).await?;
        }
        Ok(())
    }

    fn api(&self, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object.types.as_ref().context("it says not what it is")?;
        let resource = resource(&types.api_version, &types.kind);
        let client = self.client().clone();
        Ok(match object.namespace() {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        })
    }
}

/// The plurals of all kinds here are regular.
fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Looks again and again for as long as said, and fails at once when it is otherwise.
///
/// For what must not happen, which nobody can wait for; after [`DynamicClient::wait_for_round`] it has had its chance.
pub(crate) async fn stays<F>(span: Duration, mut look: impl FnMut() -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let end = Instant::now() + span;
    let mut interval = interval(INTERVAL);
    while Instant::now() < end {
        look().await?;
        interval.tick().await;
    }
    look().await
}
