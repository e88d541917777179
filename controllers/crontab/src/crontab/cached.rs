//! The fields of a CronTab that the informer stores.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_api::{AnnotatedMetadata, Metadata};
use portreeve_informer::Projection;
use serde::{Deserialize, de::IgnoredAny};

use crate::api::CronTabV2Status;

use super::spec::{Spec, Version};

/// The fields of a CronTab that the informer stores, in the structure of v2.
#[derive(Debug)]
pub(crate) struct CachedCronTab {
    /// The version that the object was read in.
    pub(super) version: Version,
    pub(super) metadata: AnnotatedMetadata<Annotations>,
    pub(super) spec: Option<Spec>,
    pub(super) status: Option<CronTabV2Status>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Annotations {
    #[serde(rename = "stable.example.com/run-now")]
    pub(super) run_now: Option<Arc<str>>,
    /// Only whether it exists: then the object is converted.
    #[serde(rename = "stable.example.com/v2")]
    pub(super) v2_only: Option<IgnoredAny>,
}

impl Projection for CachedCronTab {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}
