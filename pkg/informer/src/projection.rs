//! What is decoded of each object.

use portreeve_api::Metadata;

/// The part of each object that an informer stores: a struct with the fields that decisions need.
///
/// It is decoded directly from the response bytes. Fields that the struct does not name, above all
/// `managedFields`, are skipped and never stored. Keep a field that is only compared or passed on
/// as a whole (a Pod template) as raw JSON.
pub trait Projection: serde::de::DeserializeOwned + Send + Sync + 'static {
    /// Whether to request only `PartialObjectMetadata` from the apiserver.
    const METADATA_ONLY: bool = false;

    /// The metadata of the object.
    fn metadata(&self) -> &Metadata;
}

/// The type into which a list or a watch decodes each object: a [`Projection`], or only the fields
/// that a [`crate::Sink`] with its own model needs.
pub trait WatchedObject: serde::de::DeserializeOwned + Send + 'static {
    /// Whether to request only `PartialObjectMetadata` from the apiserver.
    const METADATA_ONLY: bool = false;

    /// `metadata.name`. An object without a name counts as undecodable.
    fn name(&self) -> &str;

    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> &str;
}

impl<T: Projection> WatchedObject for T {
    const METADATA_ONLY: bool = <T as Projection>::METADATA_ONLY;

    fn name(&self) -> &str {
        &self.metadata().name
    }

    fn resource_version(&self) -> &str {
        &self.metadata().resource_version
    }
}
