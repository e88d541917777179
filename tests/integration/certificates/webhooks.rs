//! Objects with CA bundles: webhook configurations, and definitions whose objects a webhook
//! converts. Their webhooks are never called.

use anyhow::{Context, Result, ensure};
use http::Request;
use kube::{
    Client,
    api::{Patch, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::fixtures::{LIMIT, manifests};

pub(crate) const DEFAULTS: &str = "mutatingwebhookconfigurations/defaults";
pub(crate) const CHECKS: &str = "validatingwebhookconfigurations/checks";
pub(crate) const CONVERTED: &str = "customresourcedefinitions/widgets.example.com";
pub(crate) const UNCONVERTED: &str = "customresourcedefinitions/gadgets.example.com";

/// The objects with CA bundles.
pub(crate) struct Bundles {
    client: Client,
}

impl Bundles {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates the objects of `DEFAULTS`, `CHECKS`, `CONVERTED` and `UNCONVERTED`, without bundles.
    pub(crate) async fn create(&self) -> Result<()> {
        self.apply(&configuration(DEFAULTS, &["a.example.com"])).await?;
        self.apply(&configuration(CHECKS, &["a.example.com", "b.example.com"]))
            .await?;
        self.apply(&converted(CONVERTED)).await?;
        self.create_unconverted().await
    }

    /// Creates `UNCONVERTED`, which has no webhook.
    pub(crate) async fn create_unconverted(&self) -> Result<()> {
        self.apply(&definition(UNCONVERTED, &json!({"strategy": "None"}))).await
    }

    /// Creates the objects at `locations`, without bundles.
    pub(crate) async fn create_at(&self, locations: &[String]) -> Result<()> {
        for location in locations {
            if location.starts_with("customresource") {
                self.apply(&converted(location)).await?;
            } else {
                self.apply(&configuration(location, &["a.example.com"])).await?;
            }
        }
        Ok(())
    }

    /// Applies a manifest as an administrator.
    pub(crate) async fn apply(&self, manifest: &Value) -> Result<()> {
        let administrator = PatchParams::apply("an-administrator");
        manifests::apply(&self.client, manifest, None, &administrator).await?;
        Ok(())
    }

    pub(crate) async fn get(&self, location: &str) -> Result<Value> {
        let request = Request::get(path(location)).body(Vec::new())?;
        let found = self.client.request(request).await;
        found.with_context(|| format!("failed to get {location}"))
    }

    /// Applies a JSON patch as an administrator.
    pub(crate) async fn patch(&self, location: &str, patch: Value) -> Result<()> {
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        let request = kube::core::Request::new(path(location).rsplit_once('/').context("no name")?.0);
        let name = location.split_once('/').context("no name")?.1;
        let request = request.patch(name, &PatchParams::default(), &patch)?;
        self.client.request::<Value>(request).await?;
        Ok(())
    }

    /// Returns the bundles of an object, in PEM.
    pub(crate) async fn read(&self, location: &str) -> Result<Vec<String>> {
        let object = self.get(location).await?;
        let webhooks = object["webhooks"].as_array().map_or(&[][..], Vec::as_slice);
        let conversion = object["spec"]["conversion"].get("webhook");
        let configs = webhooks
            .iter()
            .chain(conversion)
            .map(|webhook| &webhook["clientConfig"]);
        let decode = |config: &Value| {
            let encoded = config["caBundle"].as_str().unwrap_or_default();
            let bundle = data_encoding::BASE64.decode(encoded.as_bytes())?;
            anyhow::Ok(String::from_utf8(bundle)?)
        };
        configs.map(decode).collect()
    }

    /// Waits until every bundle of these objects has this content.
    pub(crate) async fn wait_until_all_are(&self, locations: &[&str], expected: &str) -> Result<()> {
        for location in locations {
            eventually(LIMIT, &format!("the CA in {location}"), || async {
                let bundles = self.read(location).await?;
                ensure!(
                    !bundles.is_empty() && bundles.iter().all(|bundle| bundle == expected),
                    "{bundles:?}"
                );
                anyhow::Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// Returns the manifest of a webhook configuration with these webhooks.
pub(crate) fn configuration(location: &str, names: &[&str]) -> Value {
    let (resource, name) = location.split_once('/').unwrap_or_default();
    let kind = if resource.starts_with("mutating") {
        "Mutating"
    } else {
        "Validating"
    };
    let webhooks = names.iter().map(|name| {
        json!({
            "name": name,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "clientConfig": client_config(),
            "rules": [{
                "apiGroups": ["example.com"], "apiVersions": ["v9"], "resources": ["nothings"], "operations": ["CREATE"],
            }],
        })
    });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": format!("{kind}WebhookConfiguration"),
        "metadata": {"name": name},
        "webhooks": webhooks.collect::<Vec<_>>(),
    })
}

fn client_config() -> Value {
    json!({"service": {"name": "portreeve-webhook", "namespace": "portreeve-system"}})
}

/// Returns the manifest of a definition whose objects a webhook converts.
fn converted(location: &str) -> Value {
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": client_config()});
    definition(location, &json!({"strategy": "Webhook", "webhook": webhook}))
}

fn definition(location: &str, conversion: &Value) -> Value {
    let (_, name) = location.split_once('/').unwrap_or_default();
    let (plural, group) = name.split_once('.').unwrap_or_default();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group,
            "names": {"kind": plural.to_uppercase(), "plural": plural},
            "scope": "Namespaced",
            "conversion": conversion,
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    })
}

fn path(location: &str) -> String {
    let group = if location.starts_with("customresource") {
        "apiextensions.k8s.io"
    } else {
        "admissionregistration.k8s.io"
    };
    format!("/apis/{group}/v1/{location}")
}
