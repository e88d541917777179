//! A custom controller: for each ConfigMap with the label `example.dev/copy-to=NAME`, it maintains
//! a copy under that name.

mod webhooks;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, OwnerReference, Resource};
use portreeve_informer::{Delta, Informer, Projection, Watch};
use portreeve_reconcile::{Descriptor, Effect, KeyedController, Object, Plan, Reconciler, Rule};
use serde::Deserialize;
use serde_json::json;

const LABEL: &str = "example.dev/copy-to";
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// The descriptor of the controller, for `portreeve_daemon::main`.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "copy-controller",
    log_target: module_path!(),
    aliases: &["copy"],
    on_by_default: true,
    in_testenv: false,
    crds: &[],
    policies: &[],
    rules: &[Rule {
        groups: &[""],
        resources: &["configmaps", "configmaps/finalizers"], // the latter for `blockOwnerDeletion`
        verbs: &["create", "list", "patch", "update", "watch"],
    }],
    webhooks: webhooks::declared,
    flags: Vec::new,
    build: |ctx| {
        let maps: Informer<CachedConfigMap> = ctx.informer(Watch::all(CONFIG_MAPS));
        let controller = KeyedController::new(ctx, "ConfigMaps", CopyReconciler(maps.clone())).workers(2);
        Ok(controller.watch(&maps, keys_for_config_map).build())
    },
};

/// The fields of a ConfigMap that the informer stores: only those that decisions need.
#[derive(Deserialize)]
struct CachedConfigMap {
    metadata: Metadata,
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl Projection for CachedConfigMap {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Returns the keys that a change affects: the ConfigMap itself and, if it is a copy, its original.
fn keys_for_config_map(delta: &Delta<CachedConfigMap>) -> Vec<ObjectKey> {
    let owner = delta.change.object().metadata.controller();
    let original = owner.map(|owner| delta.key().with_name(&*owner.name));
    original.into_iter().chain([delta.key()]).collect()
}

struct CopyReconciler(Informer<CachedConfigMap>);

impl Reconciler for CopyReconciler {
    type Observed = (Arc<CachedConfigMap>, ObjectKey, Option<Arc<CachedConfigMap>>);

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        let original = self.0.get(key)?;
        let name = original.metadata.labels.get(LABEL)?;
        let copy = key.with_name(&**name);
        let present = self.0.get(&copy);
        Some((original, copy, present))
    }

    fn decide(&self, (original, key, present): &Self::Observed, _now: Timestamp) -> Plan {
        let owner = OwnerReference::controller_owner_ref(&CONFIG_MAPS, &original.metadata);
        let metadata = json!({"name": key.name, "namespace": key.namespace, "ownerReferences": [owner]});
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": original.data});
        let (resource, key) = (CONFIG_MAPS, key.clone());
        let object = Object { resource, key, body };
        let Some(present) = present else {
            return Plan::of(vec![Effect::Create(object)]);
        };
        let owner = present.metadata.controller();
        if owner.is_none_or(|owner| *owner.uid != *original.metadata.uid) {
            tracing::debug!("left a ConfigMap that the original does not control");
            return Plan::nothing();
        }
        if present.data == original.data {
            return Plan::nothing();
        }
        let Metadata {
            uid,
            resource_version: version,
            ..
        } = present.metadata.clone();
        Plan::of(vec![Effect::Apply { object, uid, version }])
    }
}
