//! The objects in which the CAs are published: the ConfigMap for clients, webhook configurations,
//! and definitions whose objects a webhook converts.
//!
//! Architecture Invariant: pure.

use std::fmt;

use data_encoding::BASE64;
use portreeve_api::{ObjectKey, Resource};
use portreeve_reconcile::{Effect, Object};
use serde_json::{Value, json};

use crate::{
    certificate::Certificate,
    stored::{AUTHORITIES, CachedBundle, CachedClientConfig},
};

const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");
const MUTATING: Resource = Resource::cluster(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
);
const VALIDATING: Resource = Resource::cluster(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
);
const DEFINITIONS: Resource = Resource::cluster(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
);

/// An object in which the CAs are published.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct BundleLocation {
    pub(crate) resource: Resource,
    pub(crate) key: ObjectKey,
}

impl BundleLocation {
    /// Returns the location of `--tls-ca-config-map`.
    pub(crate) const fn config_map(key: ObjectKey) -> Self {
        Self {
            resource: CONFIG_MAPS,
            key,
        }
    }

    /// Parses an item of `--tls-ca-bundles`, `RESOURCE/NAME`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (plural, name) = text.split_once('/')?;
        let resource = [MUTATING, VALIDATING, DEFINITIONS]
            .into_iter()
            .find(|resource| resource.plural == plural)?;
        let key = ObjectKey::cluster(name);
        Some(Self { resource, key })
    }

    /// Returns the key in the work queue, which differs from that of the Secret and of every other
    /// location.
    pub(crate) fn queue_key(&self) -> ObjectKey {
        ObjectKey::cluster(self.to_string())
    }

    /// Returns whether clients read the object themselves, so that it affects no calls of the
    /// apiserver.
    pub(crate) fn is_config_map(&self) -> bool {
        self.resource == CONFIG_MAPS
    }

    /// Returns the bundles in the object, in PEM. A definition without a webhook has none.
    pub(crate) fn bundles(&self, cached: &CachedBundle) -> Vec<String> {
        if self.resource == CONFIG_MAPS {
            return vec![cached.data.authorities.clone().unwrap_or_default()];
        }
        if self.resource == DEFINITIONS {
            let conversion = cached.spec.conversion().into_iter();
            return conversion.map(CachedClientConfig::authorities).collect();
        }
        let webhooks = cached.webhooks.iter();
        webhooks.map(|webhook| webhook.client_config.authorities()).collect()
    }

    /// Returns whether every bundle in the object contains the CA.
    pub(crate) fn trusts(&self, cached: &CachedBundle, authority: &Certificate) -> bool {
        let contains = |bundle: &String| {
            let mut authorities = Certificate::read_all(bundle).into_iter();
            authorities.any(|trusted| trusted.pem == authority.pem)
        };
        self.bundles(cached).iter().all(contains)
    }

    /// Returns the write that replaces every bundle in the object. It contains no other fields,
    /// except for the names of webhooks, so that everything else keeps its managers.
    pub(crate) fn update(&self, cached: &CachedBundle, bundle: &str) -> Effect {
        let encoded = || json!({ "caBundle": BASE64.encode(bundle.as_bytes()) });
        let (field, value) = if self.resource == CONFIG_MAPS {
            ("data", json!({ AUTHORITIES: bundle }))
        } else if self.resource == DEFINITIONS {
            (
                "spec",
                json!({ "conversion": { "webhook": { "clientConfig": encoded() } } }),
            )
        } else {
            let webhooks = cached.webhooks.iter();
            let webhooks = webhooks.map(|webhook| json!({ "name": webhook.name, "clientConfig": encoded() }));
            ("webhooks", webhooks.collect::<Vec<Value>>().into())
        };
        let mut metadata = json!({ "name": self.key.name });
        if let Some(namespace) = &self.key.namespace {
            metadata["namespace"] = (**namespace).into();
        }
        let mut body = json!({
            "apiVersion": self.resource.api_version(),
            "kind": self.resource.kind,
            "metadata": metadata,
        });
        body[field] = value;
        let metadata = &cached.metadata;
        Effect::Apply {
            object: Object {
                resource: self.resource.clone(),
                key: self.key.clone(),
                body,
            },
            uid: metadata.uid.clone(),
            version: metadata.resource_version.clone(),
        }
    }
}

/// Prints `resource/name`, as in the flag.
impl fmt::Display for BundleLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.resource.plural, self.key)
    }
}
