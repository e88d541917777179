//! Objects as the apiserver sends them.

use std::borrow::Cow;

use kube::core::{ClusterResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object whose JSON stays as it is, so that a patch changes nothing else. kube's types for
/// reviews ask for a [`kube::Resource`], but read no metadata.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct RawObject<V = Value> {
    pub(crate) value: V,
    #[serde(skip)]
    metadata: ObjectMeta,
}

/// What is read of an object that is too complex to be decoded.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Outline {
    pub(crate) metadata: OutlineMetadata,
}

/// The metadata of an [`Outline`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct OutlineMetadata {
    pub(crate) deletion_timestamp: Option<String>,
}

impl<V> kube::Resource for RawObject<V> {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
