//! The profile of garbage-collector-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::{
    fixtures::{
        LIMIT,
        dynamic_client::{DynamicClient, Policy},
        expected_objects::ExpectedObjects,
        metric_family::Family,
        namespace::NamespaceFixture,
        object_builder::{CONFIG_MAPS, config_map, secret},
    },
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

const POLICIES: [Policy; 3] = [Policy::Background, Policy::Foreground, Policy::Orphan];

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_garbagecollector::DESCRIPTOR,
    reach: Reach::Cluster,
    reads: Reads::InEachWave,
    objects: &[],
    // It also watches the metadata of the resources of all other controllers.
    metadata: Some(CONFIG_MAPS),
    queues: &[
        "garbage_collector_attempt_to_delete",
        "garbage_collector_attempt_to_orphan",
    ],
    families: &[
        Family::counter("garbagecollector_controller_resources_sync_error_total", ""),
        Family::gauge("gc_breaker_tripped", ""),
    ],
    kubernetes_role: Some("system:controller:generic-garbage-collector"),
    use_permissions: |fixture, _| async move { use_permissions(&fixture).await }.boxed(),
    work: |wave| async move { Ok(Box::new(Owners::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { Pending::create(&fixture).await }.boxed(),
};

/// Makes the collector use all its verbs. The collector reads an owner that it has never observed,
/// deletes objects whose owners are absent, and removes one of two owner references.
async fn use_permissions(fixture: &NamespaceFixture) -> Result<()> {
    let maps: Api<ConfigMap> = fixture.namespace.api();
    let create = |manifest: Value| {
        let maps = maps.clone();
        async move {
            let map: ConfigMap = serde_json::from_value(manifest)?;
            anyhow::Ok(maps.create(&PostParams::default(), &map).await?)
        }
    };
    let kept_owner = create(owned("keeper", &[])).await?;
    let deleted_owner = create(owned("goer", &[])).await?;
    let (kept_owner, deleted_owner) = (
        kept_owner.uid().unwrap_or_default(),
        deleted_owner.uid().unwrap_or_default(),
    );
    create(owned("both", &[("keeper", &kept_owner), ("goer", &deleted_owner)])).await?;
    create(owned("one", &[("goer", &deleted_owner)])).await?;
    create(owned("nobodys", &[("nobody", "nobody")])).await?;
    maps.delete("goer", &DeleteParams::background()).await?;
    eventually(
        LIMIT,
        "objects without owners to be deleted, and the reference to the deleted owner to be removed",
        || async {
            for name in ["one", "nobodys"] {
                ensure!(maps.get_opt(name).await?.is_none(), "{name} still exists");
            }
            let both = maps.get("both").await?;
            ensure!(both.owner_references().len() == 1, "{:?}", both.owner_references());
            anyhow::Ok(())
        },
    )
    .await
}

/// Returns the manifest of a ConfigMap with these owners, each a name and a UID.
fn owned(name: &str, owners: &[(&str, &str)]) -> Value {
    let references = owners
        .iter()
        .map(|(owner, uid)| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}));
    let references: Vec<_> = references.collect();
    json!({"metadata": {"name": name, "ownerReferences": references}})
}

/// ConfigMaps that own Secrets, and are deleted one wave after their creation.
struct Owners {
    dynamic_client: DynamicClient,
    objects: ExpectedObjects,
    /// The owners that the next wave deletes, with the deletion policies.
    doomed: Vec<(DynamicObject, Policy)>,
}

impl Owners {
    fn of(fixture: &NamespaceFixture) -> Self {
        Self {
            dynamic_client: DynamicClient::of(&fixture.namespace),
            objects: ExpectedObjects::default(),
            doomed: Vec::new(),
        }
    }

    /// Deletes the owners of the last wave, and creates new owners with dependents.
    async fn change(&mut self, wave: usize) -> Result<()> {
        let (objects, dynamic_client) = (&mut self.objects, &self.dynamic_client);
        for (owner, policy) in self.doomed.drain(..) {
            objects.delete(dynamic_client, &owner, policy).await?;
        }
        for policy in POLICIES {
            let name = format!("{policy:?}-{wave}").to_lowercase();
            let owner = objects.create_one(dynamic_client, config_map(&name)).await?;
            let child = |number| secret(&format!("{name}-{number}")).blocking(&owner, true);
            let children = objects.create(dynamic_client, (0..3).map(child)).await?;
            let first = children.first().context("no child was created")?;
            objects
                .create_one(dynamic_client, config_map(&format!("{name}-own")).owned_by(first))
                .await?;
            self.doomed.push((owner, policy));
        }
        Ok(())
    }
}

impl Expected for Owners {
    /// `verify` waits for what the collector does.
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        async { Ok(()) }.boxed()
    }

    fn verify(&self) -> BoxFuture<'_, Result<()>> {
        self.objects.verify(&self.dynamic_client).boxed()
    }
}

impl Work for Owners {
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        self.change(wave.number).boxed()
    }
}

/// Owners that were deleted before the daemon starts.
struct Pending(Owners);

impl Pending {
    async fn create(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
        let mut owners = Owners::of(fixture);
        let (objects, dynamic_client) = (&mut owners.objects, &owners.dynamic_client);
        for policy in POLICIES {
            let name = format!("{policy:?}").to_lowercase();
            let owner = objects.create_one(dynamic_client, config_map(&name)).await?;
            let child = |number| secret(&format!("{name}-{number}")).blocking(&owner, true);
            objects.create(dynamic_client, (0..2).map(child)).await?;
            objects.delete(dynamic_client, &owner, policy).await?;
        }
        Ok(Box::new(Self(owners)))
    }

    /// Creates no canary, because to collect it would be one more effect.
    async fn check(&self) -> Result<()> {
        let secrets = self.0.dynamic_client.list("v1", "Secret").await?;
        let names: Vec<_> = secrets.iter().map(ResourceExt::name_any).collect();
        ensure!(names == ["orphan-0", "orphan-1"], "{names:?}");
        ensure!(
            secrets.iter().all(|secret| secret.owner_references().is_empty()),
            "an orphaned Secret still has an owner"
        );
        let mut owners = self.0.dynamic_client.list("v1", "ConfigMap").await?;
        // Another controller adds one of its own.
        owners.retain(|map| map.name_any() != "kube-root-ca.crt");
        ensure!(owners.is_empty(), "{owners:?}");
        Ok(())
    }
}

impl Expected for Pending {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        self.check().boxed()
    }

    fn verify(&self) -> BoxFuture<'_, Result<()>> {
        self.0.verify()
    }
}
