//! The projection for those who need to know that an object exists, and no more.

use portreeve_api::Metadata;
use serde::Deserialize;

use crate::Projection;

/// Only metadata is asked of the apiserver, sent and stored. Works for any resource.
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
