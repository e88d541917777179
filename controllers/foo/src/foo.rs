//! The Foos in the cache.

use portreeve_api::Metadata;
use portreeve_informer::Projection;
use serde::Deserialize;

use crate::api::{FooSpec, FooStatus};

/// The fields of a Foo that the informer stores.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedFoo {
    pub(crate) metadata: Metadata,
    pub(crate) spec: FooSpec,
    #[serde(default)]
    pub(crate) status: FooStatus,
}

impl Projection for CachedFoo {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
