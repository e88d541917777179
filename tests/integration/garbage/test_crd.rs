//! A CustomResourceDefinition whose schema accepts anything.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::fixtures::{LIMIT, dynamic_client::DynamicClient, object_builder::ObjectBuilder};

pub(super) const GROUP: &str = "mygroup.example.com";
pub(super) const VERSION: &str = "v1beta1";

pub(super) struct TestCrd {
    api: Api<CustomResourceDefinition>,
    client: Client,
    kind: String,
    is_namespaced: bool,
}

impl TestCrd {
    /// Creates a CRD of a namespaced kind. Its name is derived from the namespace, so it is
    /// unique.
    pub(super) async fn namespaced(dynamic_client: &DynamicClient) -> Result<Self> {
        Self::create(dynamic_client, true).await
    }

    /// Creates a CRD of a cluster-scoped kind.
    pub(super) async fn cluster_scoped(dynamic_client: &DynamicClient) -> Result<Self> {
        Self::create(dynamic_client, false).await
    }

    async fn create(dynamic_client: &DynamicClient, is_namespaced: bool) -> Result<Self> {
        let (_, suffix) = dynamic_client.name().rsplit_once('-').unwrap_or_default();
        let crd = Self {
            api: Api::all(dynamic_client.client().clone()),
            client: dynamic_client.client().clone(),
            kind: format!("foo{suffix}a"),
            is_namespaced,
        };
        crd.create_again().await?;
        Ok(crd)
    }

    /// Creates the CRD again under the same name, and waits until its objects are served.
    pub(super) async fn create_again(&self) -> Result<()> {
        self.create_unserved().await?;
        self.wait_until_served(true).await
    }

    /// Creates the CRD again under the same name. The apiserver serves its objects only
    /// later.
    pub(super) async fn create_unserved(&self) -> Result<()> {
        self.create_with(json!([version(VERSION, true)])).await
    }

    /// Creates the CRD again under the same name, with the versions that
    /// [`TestCrd::break_conversion`] gives it, and waits until its objects are served.
    pub(super) async fn create_again_with_both_versions(&self) -> Result<()> {
        self.create_with(json!([version("v1", true), version(VERSION, false)]))
            .await?;
        self.wait_until_served(true).await
    }

    async fn create_with(&self, versions: Value) -> Result<()> {
        let Self { kind, .. } = self;
        let manifest = json!({
            "metadata": {"name": self.name(), "labels": {"kind": kind}},
            "spec": {
                "group": GROUP,
                "names": {"kind": kind, "listKind": format!("{kind}List"), "singular": kind, "plural": self.plural()},
                "scope": if self.is_namespaced { "Namespaced" } else { "Cluster" },
                "versions": versions,
            },
        });
        let crd = serde_json::from_value(manifest)?;
        self.api.create(&PostParams::default(), &crd).await?;
        Ok(())
    }

    /// Deletes the CRD, and waits until its objects are no longer served.
    pub(super) async fn delete(&self) -> Result<()> {
        self.api.delete(&self.name(), &DeleteParams::default()).await?;
        self.wait_until_served(false).await
    }

    /// Deletes the CRD although its objects cannot be read, and waits until its objects are no
    /// longer served.
    pub(super) async fn delete_without_objects(&self) -> Result<()> {
        self.api.delete(&self.name(), &DeleteParams::default()).await?;
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.api.patch(&self.name(), &PatchParams::default(), &patch).await?;
        self.wait_until_served(false).await
    }

    /// Deletes the CRD by a deletion of the collection, which skips its finalizer, and waits until
    /// its objects are no longer served. They stay in etcd.
    pub(super) async fn delete_as_collection(&self) -> Result<()> {
        let selected = ListParams::default().labels(&format!("kind={}", self.kind));
        self.api.delete_collection(&DeleteParams::default(), &selected).await?;
        self.wait_until_served(false).await
    }

    /// Returns a builder of an object of this kind.
    pub(super) fn instance(&self, name: &str) -> ObjectBuilder {
        self.instance_in(VERSION, name)
    }

    /// Returns a builder of an object of this kind in another version.
    pub(super) fn instance_in(&self, version: &str, name: &str) -> ObjectBuilder {
        ObjectBuilder::new(&format!("{GROUP}/{version}"), &self.kind, name)
    }

    /// Returns the name of the CRD, which is that of the resource in annotations.
    pub(super) fn name(&self) -> String {
        format!("{}.{GROUP}", self.plural())
    }

    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the name of the resource in metrics and in `/readyz`.
    pub(super) fn resource(&self, version: &str) -> String {
        format!("{}.{version}.{GROUP}", self.plural())
    }

    /// Makes another version the storage and preferred version, and sets a conversion webhook that
    /// does not exist.
    pub(super) async fn break_conversion(&self, certificate: &[u8]) -> Result<()> {
        let mut crd = json!(self.api.get(&self.name()).await?);
        let service = json!({"name": "foobar", "namespace": "default"});
        let certificate = k8s_openapi::ByteString(certificate.to_vec());
        crd["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"service": service, "caBundle": certificate},
                "conversionReviewVersions": ["v1", "v1beta1"],
            },
        });
        crd["spec"]["versions"] = json!([version("v1", true), version(VERSION, false)]);
        let crd = serde_json::from_value(crd)?;
        self.api.replace(&self.name(), &PostParams::default(), &crd).await?;
        Ok(())
    }

    /// Removes the conversion webhook, so that the resource can be listed again.
    pub(super) async fn repair_conversion(&self) -> Result<()> {
        let mut crd = json!(self.api.get(&self.name()).await?);
        crd["spec"]["conversion"] = json!({"strategy": "None"});
        let crd = serde_json::from_value(crd)?;
        self.api.replace(&self.name(), &PostParams::default(), &crd).await?;
        Ok(())
    }

    async fn wait_until_served(&self, expected: bool) -> Result<()> {
        self.wait_until_served_by(&self.client, expected).await
    }

    /// Waits until the apiserver of this client serves the objects, or no longer serves them.
    pub(super) async fn wait_until_served_by(&self, client: &Client, expected: bool) -> Result<()> {
        let what = format!("served = {expected} for {}", self.plural());
        eventually(LIMIT, &what, || async {
            let request = http::Request::get(format!("/apis/{GROUP}/{VERSION}/{}", self.plural()));
            let result = client.request::<Value>(request.body(Vec::new())?).await;
            let is_served = match result {
                Ok(_) => true,
                Err(kube::Error::Api(status)) if status.code == 404 => false,
                Err(error) => return Err(error.into()),
            };
            ensure!(is_served == expected, "served = {is_served}");
            Ok(())
        })
        .await
    }

    /// Returns the name of the resource in paths.
    pub(super) fn plural(&self) -> String {
        format!("{}s", self.kind)
    }
}

fn version(name: &str, is_stored: bool) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": anything}})
}
