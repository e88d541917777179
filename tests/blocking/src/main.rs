//! A daemon with one controller that copies each ConfigMap of a namespace, and that blocks the
//! worker runtime for ever on the ConfigMap that `--trap` names.

use std::{process::ExitCode, sync::Arc, thread};

use clap::Arg;
use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, Resource};
use portreeve_informer::{Informer, Projection, Watch};
use portreeve_reconcile::{Descriptor, Effect, KeyedController, Object, Plan, Reconciler};
use serde::Deserialize;
use serde_json::json;

const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");
const SUFFIX: &str = "-copy";

const BLOCKING: Descriptor = Descriptor {
    name: "blocking-controller",
    log_target: module_path!(),
    aliases: &[],
    on_by_default: true,
    in_testenv: false,
    crds: &[],
    policies: &[],
    rules: &[],
    webhooks: Vec::new,
    flags: || {
        vec![
            Arg::new("configmap-namespace")
                .long("configmap-namespace")
                .required(true),
            Arg::new("trap").long("trap").default_value(""),
        ]
    },
    build: |ctx| {
        let namespace: String = ctx.flag("configmap-namespace")?;
        let maps: Informer<CachedConfigMap> = ctx.informer(Watch {
            namespace: Some(namespace.into()),
            ..Watch::all(CONFIG_MAPS)
        });
        let reconciler = BlockingReconciler {
            maps: maps.clone(),
            trap: ctx.flag("trap")?,
        };
        let controller = KeyedController::new(ctx, "ConfigMaps", reconciler);
        Ok(controller.watch(&maps, |delta| [delta.key()]).build())
    },
};

fn main() -> ExitCode {
    portreeve_daemon::main(&[BLOCKING])
}

#[derive(Deserialize)]
struct CachedConfigMap {
    metadata: Metadata,
}

impl Projection for CachedConfigMap {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

struct BlockingReconciler {
    maps: Informer<CachedConfigMap>,
    trap: String,
}

impl Reconciler for BlockingReconciler {
    type Observed = (ObjectKey, Option<Arc<CachedConfigMap>>);

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        if *key.name == self.trap {
            loop {
                thread::park();
            }
        }
        let original = self.maps.get(key).filter(|_| !key.name.ends_with(SUFFIX))?;
        let copy = key.with_name(format!("{}{SUFFIX}", original.metadata.name));
        let present = self.maps.get(&copy);
        Some((copy, present))
    }

    fn decide(&self, (copy, present): &Self::Observed, _now: Timestamp) -> Plan {
        if present.is_some() {
            return Plan::nothing();
        }
        let metadata = json!({"name": copy.name, "namespace": copy.namespace});
        Plan::of(vec![Effect::Create(Object {
            resource: CONFIG_MAPS,
            key: copy.clone(),
            body: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
        })])
    }
}
