//! The ConfigMap with the CA.

use std::{collections::BTreeMap, sync::Arc};

use portreeve_api::{AnnotatedMetadata, Metadata, ObjectKey, Resource, null_as_default};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Object, Target};
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");
/// The name of the ConfigMap.
pub(crate) const NAME: &str = "kube-root-ca.crt";
/// The key of the CA in its data.
const CA: &str = "ca.crt";
/// The annotation that describes it.
const DESCRIPTION: &str = "kubernetes.io/description";
/// The description, if nobody has written one. kube-controller-manager keeps any text, too.
const TEXT: &str = "The CA certificates that verify the kube-apiserver at its addresses inside of the cluster, \
                    such as kubernetes.default.svc. They need not verify anything else.";

/// The fields of the ConfigMap that the informer stores.
#[derive(Debug, Deserialize)]
pub(crate) struct CachedMap {
    metadata: AnnotatedMetadata<Annotations>,
    #[serde(default, deserialize_with = "null_as_default")]
    data: BTreeMap<Box<str>, Box<str>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Annotations {
    #[serde(default, rename = "kubernetes.io/description")]
    description: Box<str>,
}

impl Projection for CachedMap {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}

impl CachedMap {
    /// Returns whether the data is exactly this CA, and there is a description.
    pub(crate) fn is_right(&self, ca: &str) -> bool {
        self.data.len() == 1 && self.data.get(CA).is_some_and(|found| **found == *ca) && self.is_described()
    }

    fn is_described(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| !annotations.description.is_empty())
    }

    /// Returns the replacement of the data by this CA. The rest of the object stays.
    pub(crate) fn replace(&self, ca: &str) -> Effect {
        let removed = self.data.keys().map(|key| (key.to_string(), Value::Null));
        let mut data: Map<String, Value> = removed.collect();
        data.insert(CA.to_owned(), ca.into());
        let mut changes = json!({"data": data});
        if !self.is_described() {
            changes["metadata"]["annotations"][DESCRIPTION] = TEXT.into();
        }
        Effect::Replace {
            target: Target::of(&CONFIG_MAPS, &self.metadata.base),
            subresource: None,
            changes,
        }
    }
}

/// Returns the creation of the ConfigMap in a namespace.
pub(crate) fn create(namespace: &Arc<str>, ca: &str) -> Effect {
    Effect::Create(Object {
        resource: CONFIG_MAPS,
        key: ObjectKey::namespaced(Arc::clone(namespace), NAME),
        body: json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace, "annotations": {DESCRIPTION: TEXT}},
            "data": {CA: ca},
        }),
    })
}
