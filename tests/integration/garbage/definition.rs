//! A CustomResourceDefinition whose objects may hold anything.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::{dynamic_client::DynamicClient, object_builder::ObjectBuilder};
use crate::support::LIMIT;

const GROUP: &str = "mygroup.example.com";
const VERSION: &str = "v1beta1";

pub(super) struct Definition {
    api: Api<CustomResourceDefinition>,
    client: Client,
    kind: String,
    is_namespaced: bool,
}

impl Definition {
    /// Creates one whose objects are in namespaces. Its name is made of that of the namespace, so that no two are the same.
    pub(super) async fn namespaced(dynamic_client: &DynamicClient) -> Result<Self> {
        Self::create(dynamic_client, true).await
    }

    /// The same for objects without a namespace.
    pub(super) async fn for_cluster(dynamic_client: &DynamicClient) -> Result<Self> {
        Self::create(dynamic_client, false).await
    }

    async fn create(dynamic_client: &DynamicClient, is_namespaced: bool) -> Result<Self> {
        let (_, suffix) = dynamic_client.name().rsplit_once('-').unwrap_or_default();
        let definition = Self {
            api: Api::all(dynamic_client.client().clone()),
            client: dynamic_client.client().clone(),
            kind: format!("foo{suffix}a"),
            is_namespaced,
        };
        definition.create_again().await?;
        Ok(definition)
    }

    /// Creates it under the same name as before, and waits until its objects are served.
    pub(super) async fn create_again(&self) -> Result<()> {
        self.create_unserved().await?;
        self.wait_until_served(true).await
    }

    /// Creates it under the same name as before. Objects are served later.
    pub(super) async fn create_unserved(&self) -> Result<()> {
        let Self { kind, .. } = self;
        let manifest = json!({
            "metadata": {"name": self.name()},
            "spec": {
                "group": GROUP,
                "names": {"kind": kind, "listKind": format!("{kind}List"), "singular": kind, "plural": self.plural()},
                "scope": if self.is_namespaced { "Namespaced" } else { "Cluster" },
                "versions": [version(VERSION, true)],
            },
        });
        let definition = serde_json::from_value(manifest)?;
        self.api.create(&PostParams::default(), &definition).await?;
        Ok(())
    }

    /// Deletes it, and waits until its objects are not served any more.
    pub(super) async fn delete(&self) -> Result<()> {
        self.api.delete(&self.name(), &DeleteParams::default()).await?;
        self.wait_until_served(false).await
    }

    /// An object of it.
    pub(super) fn instance(&self, name: &str) -> ObjectBuilder {
        ObjectBuilder::new(&format!("{GROUP}/{VERSION}"), &self.kind, name)
    }

    /// The name of its resource in metrics and in /readyz.
    pub(super) fn resource(&self, version: &str) -> String {
        format!("{}.{version}.{GROUP}", self.plural())
    }

    /// Stores and prefers another version from now on, into which nothing can be converted: nobody is there to do it.
    pub(super) async fn break_conversion(&self, certificate: &[u8]) -> Result<()> {
        let mut definition = json!(self.api.get(&self.name()).await?);
        let service = json!({"name": "foobar", "namespace": "default"});
        let certificate = k8s_openapi::ByteString(certificate.to_vec());
        definition["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"service": service, "caBundle": certificate},
                "conversionReviewVersions": ["v1", "v1beta1"],
            },
        });
        definition["spec"]["versions"] = json!([version("v1", true), version(VERSION, false)]);
        let definition = serde_json::from_value(definition)?;
        self.api
            .replace(&self.name(), &PostParams::default(), &definition)
            .await?;
        Ok(())
    }

    async fn wait_until_served(&self, expected: bool) -> Result<()> {
        let what = format!("whether {} are served to be {expected}", self.plural());
        eventually(LIMIT, &what, || async {
            let request = http::Request::get(format!("/apis/{GROUP}/{VERSION}/{}", self.plural()));
            let answer = self.client.request::<Value>(request.body(Vec::new())?).await;
            let is_served = match answer {
                Ok(_) => true,
                Err(kube::Error::Api(status)) if status.code == 404 => false,
                Err(error) => return Err(error.into()),
            };
            ensure!(is_served == expected, "{is_served}");
            Ok(())
        })
        .await
    }

    fn name(&self) -> String {
        format!("{}.{GROUP}", self.plural())
    }

    /// What its resource is called in paths.
    pub(super) fn plural(&self) -> String {
        format!("{}s", self.kind)
    }
}

fn version(name: &str, is_stored: bool) -> Value {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    json!({"name": name, "served": true, "storage": is_stored, "schema": {"openAPIV3Schema": anything}})
}
