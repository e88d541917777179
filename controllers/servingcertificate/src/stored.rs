//! The cached fields of the Secret and of the objects that publish CAs.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use portreeve_api::{Metadata, Resource};
use portreeve_informer::Projection;
use serde::{Deserialize, Deserializer};

pub(crate) const SECRETS: Resource = Resource::namespaced("", "v1", "Secret", "secrets");

/// The keys of the Secret. `ca.crt` has the newest CA first.
pub(crate) const AUTHORITIES: &str = "ca.crt";
pub(crate) const AUTHORITY_KEY: &str = "ca.key";
pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const CERTIFICATE_KEY: &str = "tls.key";

/// The fields of the Secret that decisions need.
#[derive(Deserialize)]
pub(crate) struct CachedSecret {
    pub(crate) metadata: Metadata,
    /// In Base64, as the apiserver returns it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) data: BTreeMap<String, String>,
}

impl CachedSecret {
    /// Returns the text of a key. Returns an empty text if it is absent or no text.
    pub(crate) fn text(&self, key: &str) -> String {
        decode(self.data.get(key).map(String::as_str).unwrap_or_default())
    }
}

impl Projection for CachedSecret {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The fields of an object that publishes CAs, whichever its kind is.
#[derive(Deserialize)]
pub(crate) struct CachedBundle {
    pub(crate) metadata: Metadata,
    /// Of a ConfigMap.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) data: CachedData,
    /// Of a webhook configuration.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) webhooks: Vec<CachedWebhook>,
    /// Of a CustomResourceDefinition.
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) spec: CachedSpec,
}

impl Projection for CachedBundle {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The data of a ConfigMap.
#[derive(Default, Deserialize)]
pub(crate) struct CachedData {
    /// The CAs in PEM.
    #[serde(default, rename = "ca.crt")]
    pub(crate) authorities: Option<String>,
}

/// A webhook of a configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedWebhook {
    pub(crate) name: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) client_config: CachedClientConfig,
}

/// How the apiserver calls a webhook.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedClientConfig {
    #[serde(default)]
    ca_bundle: Option<String>,
}

impl CachedClientConfig {
    /// Returns the CAs in PEM. Returns an empty text if there are none.
    pub(crate) fn authorities(&self) -> String {
        decode(self.ca_bundle.as_deref().unwrap_or_default())
    }
}

/// The specification of a CustomResourceDefinition.
#[derive(Default, Deserialize)]
pub(crate) struct CachedSpec {
    #[serde(default, deserialize_with = "null_as_default")]
    conversion: CachedConversion,
}

#[derive(Default, Deserialize)]
struct CachedConversion {
    #[serde(default)]
    strategy: Option<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    webhook: CachedConversionWebhook,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CachedConversionWebhook {
    #[serde(default, deserialize_with = "null_as_default")]
    client_config: CachedClientConfig,
}

impl CachedSpec {
    /// Returns how the apiserver calls the webhook that converts objects, if one does.
    pub(crate) fn conversion(&self) -> Option<&CachedClientConfig> {
        let is_webhook = self.conversion.strategy.as_deref() == Some("Webhook");
        is_webhook.then_some(&self.conversion.webhook.client_config)
    }
}

/// Returns the text that is encoded in Base64. Returns an empty text if it is no text.
fn decode(encoded: &str) -> String {
    let decoded = BASE64.decode(encoded.as_bytes()).unwrap_or_default();
    String::from_utf8(decoded).unwrap_or_default()
}

fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
