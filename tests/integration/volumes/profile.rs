//! The profiles of both controllers.

use anyhow::{Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use kube::{
    ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use portreeve_api::Resource;
use portreeve_testing::eventually;
use serde_json::json;

use crate::{
    fixtures::{
        LIMIT,
        dynamic_client::{DynamicClient, Policy},
        namespace::NamespaceFixture,
        object_builder::{ObjectBuilder, claim, persistent_volume},
    },
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

pub(super) const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
pub(super) const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

pub(crate) static CLAIMS: Profile = Profile {
    descriptor: portreeve_volumeprotection::CLAIM_PROTECTION,
    reach: Reach::OwnKinds,
    reads: Reads::InEachWave,
    objects: &[
        Resource::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
        Resource::namespaced("", "v1", "Pod", "pods"),
    ],
    metadata: None,
    queues: &["pvcprotection"],
    families: &[],
    kubernetes_role: Some("system:controller:pvc-protection-controller"),
    use_permissions: |fixture, _| async move { Protected::claims(&fixture).use_permissions().await }.boxed(),
    work: |wave| async move { Ok(Box::new(Protected::claims(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { Protected::claims(&fixture).pending().await }.boxed(),
};

pub(crate) static VOLUMES: Profile = Profile {
    descriptor: portreeve_volumeprotection::VOLUME_PROTECTION,
    reach: Reach::OwnKinds,
    reads: Reads::InEachWave,
    objects: &[Resource::cluster("", "v1", "PersistentVolume", "persistentvolumes")],
    metadata: None,
    queues: &["pvprotection"],
    families: &[],
    kubernetes_role: Some("system:controller:pv-protection-controller"),
    use_permissions: |fixture, _| async move { Protected::volumes(&fixture).use_permissions().await }.boxed(),
    work: |wave| async move { Ok(Box::new(Protected::volumes(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { Protected::volumes(&fixture).pending().await }.boxed(),
};

pub(super) async fn wait_for_finalizers(
    client: &DynamicClient,
    object: &DynamicObject,
    expected: &[&str],
) -> Result<()> {
    eventually(LIMIT, &format!("the finalizers of {}", object.name_any()), || async {
        let found = client.get(object).await?;
        ensure!(found.finalizers() == expected, "{:?}", found.finalizers());
        anyhow::Ok(())
    })
    .await
}

/// Deletes a Pod as its node would: at once.
pub(super) async fn delete_pod(client: &DynamicClient, pod: &DynamicObject) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    client.api(pod)?.delete(&pod.name_any(), &now).await?;
    Ok(())
}

/// Sets the phase of a volume, as the controller that binds volumes does.
pub(super) async fn set_phase(client: &DynamicClient, volume: &DynamicObject, phase: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"status": {"phase": phase}}));
    let parameters = PatchParams::default();
    client
        .api(volume)?
        .patch_status(&volume.name_any(), &parameters, &patch)
        .await?;
    Ok(())
}

/// Objects with a finalizer, of which each wave creates one and deletes the last one.
struct Protected {
    client: DynamicClient,
    build: fn(&str) -> ObjectBuilder,
    finalizer: &'static str,
    is_namespaced: bool,
    prefix: String,
    kept: Option<DynamicObject>,
}

impl Protected {
    fn claims(fixture: &NamespaceFixture) -> Self {
        Self {
            client: DynamicClient::of(&fixture.namespace),
            build: claim,
            finalizer: CLAIM_FINALIZER,
            is_namespaced: true,
            prefix: "claim-".to_owned(),
            kept: None,
        }
    }

    /// The names begin with that of the namespace.
    fn volumes(fixture: &NamespaceFixture) -> Self {
        Self {
            build: persistent_volume,
            finalizer: VOLUME_FINALIZER,
            is_namespaced: false,
            prefix: format!("{}-volume-", fixture.name()),
            ..Self::claims(fixture)
        }
    }

    async fn create(&self, name: &str) -> Result<DynamicObject> {
        let object = (self.build)(&format!("{}{name}", self.prefix));
        if self.is_namespaced {
            self.client.create(object).await
        } else {
            self.client.create_for_cluster(object).await
        }
    }

    async fn strip(&self, object: &DynamicObject) -> Result<()> {
        self.client
            .patch(object, json!({"metadata": {"finalizers": null}}))
            .await
    }

    async fn use_permissions(&self) -> Result<()> {
        let object = self.create("used").await?;
        self.strip(&object).await?;
        wait_for_finalizers(&self.client, &object, &[self.finalizer]).await?;
        self.client.delete(&object, Policy::Unspecified).await?;
        self.client.wait_until_gone(&object).await
    }

    async fn pending(mut self) -> Result<Box<dyn Expected>> {
        let deleted = self.create("deleted").await?;
        self.client.delete(&deleted, Policy::Unspecified).await?;
        let stripped = self.create("stripped").await?;
        self.strip(&stripped).await?;
        self.kept = Some(stripped);
        Ok(Box::new(self))
    }
}

impl Expected for Protected {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let Some(kept) = &self.kept else { return Ok(()) };
            let all = self.client.api(kept)?.list(&ListParams::default()).await?.items;
            let own: Vec<_> = all
                .into_iter()
                .filter(|object| object.name_any().starts_with(&self.prefix))
                .collect();
            let names: Vec<_> = own.iter().map(ResourceExt::name_any).collect();
            ensure!(
                names == [kept.name_any()],
                "found {names:?}, expected {}",
                kept.name_any()
            );
            ensure!(own[0].finalizers() == [self.finalizer], "{:?}", own[0].finalizers());
            Ok(())
        };
        checked.boxed()
    }
}

impl Work for Protected {
    fn wave<'a>(&'a mut self, wave: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            let last = self.kept.take();
            let next = self.create(&wave.number.to_string()).await?;
            self.strip(&next).await?;
            self.kept = Some(next);
            if let Some(last) = last {
                self.client.delete(&last, Policy::Unspecified).await?;
            }
            Ok(())
        };
        work.boxed()
    }
}
