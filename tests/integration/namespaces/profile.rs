//! The profile of namespace-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    core::{NamespaceResourceScope, ObjectMeta},
};
use portreeve_testing::eventually;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    fixtures::{LIMIT, metric_family::Family, namespace::NamespaceFixture},
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

/// More objects than the controller deletes one by one.
const MANY: usize = 12;

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_namespace::DESCRIPTOR,
    reach: Reach::Cluster,
    reads: Reads::InEachWave,
    objects: &[],
    metadata: Some(super::environment::NAMESPACES),
    queues: &["namespace"],
    families: &[
        Family::gauge("namespace_controller_oldest_terminating_seconds", ""),
        Family::gauge("namespace_controller_stuck_namespaces", ""),
        Family::gauge("namespace_controller_terminating_namespaces", ""),
    ],
    kubernetes_role: Some("system:controller:namespace-controller"),
    use_permissions: |fixture, _| async move { use_permissions(&fixture).await }.boxed(),
    work: |wave| async move { Ok(Box::new(Tenants::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { pending(&fixture).await }.boxed(),
};

/// Creates a namespace with a few objects and with many.
async fn create_tenant(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: named(name.to_owned()),
        ..Namespace::default()
    };
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("failed to create namespace {name}"))?;
    create::<Secret>(client, name, 2).await?;
    create::<ConfigMap>(client, name, MANY).await
}

async fn create<K>(client: &Client, namespace: &str, count: usize) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Default + Serialize + DeserializeOwned,
    K: std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    for number in 0..count {
        let mut object = K::default();
        *object.meta_mut() = named(format!("object-{number}"));
        api.create(&PostParams::default(), &object).await?;
    }
    Ok(())
}

fn named(name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        ..ObjectMeta::default()
    }
}

pub(super) async fn delete_tenant(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let deleted = namespaces.delete(name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("failed to delete namespace {name}"))?;
    Ok(())
}

/// Deletes a namespace whose content needs both kinds of deletions, and a ConfigMap that stays for
/// a while, so that the controller watches it.
async fn use_permissions(fixture: &NamespaceFixture) -> Result<()> {
    let client = fixture.namespace.client();
    let name = format!("{}-used", fixture.name());
    create_tenant(client, &name).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &name);
    let mut held = ConfigMap {
        metadata: named("held".to_owned()),
        ..ConfigMap::default()
    };
    held.metadata.finalizers = Some(vec!["example.com/a-test".to_owned()]);
    maps.create(&PostParams::default(), &held).await?;
    delete_tenant(client, &name).await?;
    eventually(LIMIT, "only the held ConfigMap to be left", || async {
        let left = maps.list_metadata(&ListParams::default()).await?.items.len();
        ensure!(left == 1, "{left} ConfigMaps are left");
        anyhow::Ok(())
    })
    .await?;
    maps.patch(
        "held",
        &kube::api::PatchParams::default(),
        &kube::api::Patch::Merge(serde_json::json!({"metadata": {"finalizers": null}})),
    )
    .await?;
    wait_until_gone(client, &name).await
}

/// Waits until a namespace no longer exists.
pub(super) async fn wait_until_gone(client: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    eventually(LIMIT, &format!("namespace {name} to be gone"), || async {
        let found = namespaces.get_opt(name).await?;
        let status = found.and_then(|namespace| namespace.status);
        ensure!(status.is_none(), "it still exists: {status:?}");
        anyhow::Ok(())
    })
    .await
}

async fn pending(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
    let mut tenants = Tenants::of(fixture);
    let name = tenants.create("pending").await?;
    delete_tenant(fixture.namespace.client(), &name).await?;
    tenants.kept = None;
    Ok(Box::new(tenants))
}

/// Namespaces that are deleted one wave after their creation.
struct Tenants {
    client: Client,
    prefix: String,
    /// The namespace that the next wave deletes.
    kept: Option<String>,
    all: Vec<String>,
}

impl Tenants {
    fn of(fixture: &NamespaceFixture) -> Self {
        Self {
            client: fixture.namespace.client().clone(),
            prefix: fixture.name().to_owned(),
            kept: None,
            all: Vec::new(),
        }
    }

    async fn create(&mut self, name: &str) -> Result<String> {
        let name = format!("{}-{name}", self.prefix);
        create_tenant(&self.client, &name).await?;
        self.all.push(name.clone());
        self.kept = Some(name.clone());
        Ok(name)
    }
}

impl Expected for Tenants {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let namespaces: Api<Namespace> = Api::all(self.client.clone());
            let left = namespaces.list_metadata(&ListParams::default()).await?.items;
            let left: Vec<_> = left
                .iter()
                .map(ResourceExt::name_any)
                .filter(|name| self.all.contains(name))
                .collect();
            let kept: Vec<_> = self.kept.iter().cloned().collect();
            ensure!(left == kept, "found namespaces {left:?}, expected {kept:?}");
            Ok(())
        };
        checked.boxed()
    }

    fn verify(&self) -> BoxFuture<'_, Result<()>> {
        let verified = async {
            if let Some(name) = &self.kept {
                let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), name);
                let maps = maps.list_metadata(&ListParams::default()).await?.items;
                // Another controller adds one of its own.
                let own = maps.iter().filter(|map| map.name_any().starts_with("object-"));
                let count = own.count();
                ensure!(count == MANY, "namespace {name} has {count} ConfigMaps");
            }
            Ok(())
        };
        verified.boxed()
    }
}

impl Work for Tenants {
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            if let Some(doomed) = self.kept.take() {
                delete_tenant(&self.client, &doomed).await?;
            }
            self.create(&format!("wave-{}", wave.number)).await?;
            Ok(())
        };
        work.boxed()
    }
}
