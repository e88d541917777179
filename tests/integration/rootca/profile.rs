//! The profile of root-ca-certificate-publisher-controller.

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use crate::{
    fixtures::{LIMIT, metric_family::Family, namespace::NamespaceFixture, object_builder::CONFIG_MAPS},
    namespaces::environment::NAMESPACES,
    profile::{Expected, Profile, Reach, Reads, Wave, Work},
};

/// The name of the ConfigMap.
pub(super) const NAME: &str = "kube-root-ca.crt";

/// In seconds: 1 ms, and twice as long each time.
const DURATIONS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

pub(crate) static PROFILE: Profile = Profile {
    descriptor: portreeve_rootca::DESCRIPTOR,
    reach: Reach::OwnKinds,
    reads: Reads::InEachWave,
    objects: &[CONFIG_MAPS],
    metadata: Some(NAMESPACES),
    queues: &["root_ca_cert_publisher"],
    families: &[
        Family::counter("root_ca_cert_publisher_sync_total", "code"),
        Family::histogram("root_ca_cert_publisher_sync_duration_seconds", "code", DURATIONS),
    ],
    kubernetes_role: Some("system:controller:root-ca-cert-publisher"),
    use_permissions: |fixture, _| async move { use_permissions(&fixture).await }.boxed(),
    work: |wave| async move { Ok(Box::new(Published::of(&wave.fixture)) as Box<dyn Work>) }.boxed(),
    pending: |fixture| async move { pending(&fixture).await }.boxed(),
};

fn ensure_right(map: &ConfigMap) -> Result<()> {
    let data = map.data.as_ref().context("it has no data")?;
    let is_right = data.len() == 1 && data.get("ca.crt").is_some_and(|pem| pem.starts_with("-----BEGIN"));
    ensure!(is_right, "{data:?}");
    ensure!(!map.annotations()["kubernetes.io/description"].is_empty());
    Ok(())
}

/// Waits until the ConfigMap has a CA and another UID than this, and returns it.
pub(super) async fn wait_for_map(maps: &Api<ConfigMap>, uid: Option<&str>) -> Result<ConfigMap> {
    eventually(LIMIT, "the ConfigMap with the CA", || async {
        let map = maps.get_opt(NAME).await?.context("it does not exist")?;
        ensure!(map.uid().as_deref() != uid, "it is the deleted one");
        ensure_right(&map)?;
        anyhow::Ok(map)
    })
    .await
}

async fn spoil(maps: &Api<ConfigMap>) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {"ca.crt": "wrong", "other": "x"}}));
    maps.patch(NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn use_permissions(fixture: &NamespaceFixture) -> Result<()> {
    let maps: Api<ConfigMap> = fixture.namespace.api();
    let map = wait_for_map(&maps, None).await?;
    maps.delete(NAME, &DeleteParams::default()).await?;
    wait_for_map(&maps, map.uid().as_deref()).await?;
    spoil(&maps).await?;
    wait_for_map(&maps, None).await?;
    Ok(())
}

async fn pending(fixture: &NamespaceFixture) -> Result<Box<dyn Expected>> {
    let published = Published::of(fixture);
    let map = serde_json::from_value(json!({"metadata": {"name": NAME}, "data": {"ca.crt": "wrong"}}))?;
    published.0.create(&PostParams::default(), &map).await?;
    Ok(Box::new(published))
}

/// The ConfigMap of a namespace, which is changed in each wave.
struct Published(Api<ConfigMap>);

impl Published {
    fn of(fixture: &NamespaceFixture) -> Self {
        Self(fixture.namespace.api())
    }
}

impl Expected for Published {
    fn check(&self) -> BoxFuture<'_, Result<()>> {
        let checked = async {
            let map = self.0.get_opt(NAME).await?;
            ensure_right(&map.context("the ConfigMap does not exist")?)
        };
        checked.boxed()
    }
}

impl Work for Published {
    fn wave<'a>(&'a mut self, _: &'a Wave) -> BoxFuture<'a, Result<()>> {
        let work = async {
            wait_for_map(&self.0, None).await?;
            spoil(&self.0).await
        };
        work.boxed()
    }
}
