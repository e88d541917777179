//! Objects as the apiserver sends them.

use std::borrow::Cow;

use kube::core::{ClusterResourceScope, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An object whose JSON stays as it is, so that a patch changes nothing else. kube's types for
/// reviews ask for a [`kube::Resource`], but read no metadata.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct RawObject {
    pub(crate) value: Value,
    #[serde(skip)]
    metadata: ObjectMeta,
}

impl kube::Resource for RawObject {
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
