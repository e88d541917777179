//! A projection for controllers that need only the metadata of objects.

use portreeve_api::Metadata;
use serde::Deserialize;

use crate::Projection;

/// A projection that requests, receives and stores only metadata. It works for any resource.
#[derive(Debug, Deserialize)]
pub struct MetadataOnly {
    /// The object's metadata.
    pub metadata: Metadata,
}

impl Projection for MetadataOnly {
    const METADATA_ONLY: bool = true;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
