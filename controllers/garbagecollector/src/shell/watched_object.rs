//! The type into which the watches decode objects.

use std::ops::Deref;

use portreeve_garbagecollector_graph::PartialObject;
use portreeve_informer::WatchedObject;
use serde::Deserialize;

/// A [`PartialObject`] that a watch can decode. Only this crate can implement the informer's trait
/// for it, because the crate of the graph does not know the informer.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct WatchedPartialObject(PartialObject);

impl Deref for WatchedPartialObject {
    type Target = PartialObject;

    fn deref(&self) -> &PartialObject {
        &self.0
    }
}

impl WatchedObject for WatchedPartialObject {
    const METADATA_ONLY: bool = true;

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}
