//! The cached fields of the Secret and of the ConfigMap.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use portreeve_api::Metadata;
use portreeve_informer::Projection;
use serde::{Deserialize, Deserializer};

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
        let encoded = self.data.get(key).map(String::as_bytes).unwrap_or_default();
        let decoded = BASE64.decode(encoded).unwrap_or_default();
        String::from_utf8(decoded).unwrap_or_default()
    }
}

impl Projection for CachedSecret {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The fields of the ConfigMap that decisions need.
#[derive(Deserialize)]
pub(crate) struct CachedConfigMap {
    pub(crate) metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) data: BTreeMap<String, String>,
}

impl Projection for CachedConfigMap {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

fn null_as_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
