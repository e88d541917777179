//! Test controllers that watch the ConfigMaps of one namespace and misbehave in different ways.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, Resource};
use portreeve_informer::{Informer, Projection, Watch};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, Effect, KeyedController, Object, Plan, Reconciler, Registrations,
};
use serde::Deserialize;
use serde_json::json;

use crate::fixtures::{barrier::Barrier, object_builder::CONFIG_MAPS};

const AUTOSCALERS: Resource = Resource::namespaced(
    "autoscaling",
    "v1",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
);
/// The flag that names the namespace to watch.
const NAMESPACE: &str = "configmap-namespace";

/// A controller that panics in its first decision. Afterwards it copies each ConfigMap.
pub(crate) const PANICKY: &[Descriptor] = &[descriptor("panicky-controller", one_flag, |ctx| {
    let decisions = AtomicUsize::new(0);
    copier(ctx, "Panicky", move || {
        assert!(
            decisions.fetch_add(1, Ordering::Relaxed) > 0,
            "the first decision panics on purpose"
        );
    })
})];

/// A controller that reads autoscalers in a version that is not the preferred one, and
/// the garbage collector.
pub(crate) const AUTOSCALERS_AND_COLLECTOR: &[Descriptor] = &[
    descriptor("autoscaler-controller", Vec::new, |ctx| {
        let autoscalers = ctx.informer::<CachedObject>(Watch::all(AUTOSCALERS));
        let keyed = KeyedController::new(ctx, "Autoscaler", Idle);
        Ok(keyed.watch(&autoscalers, |delta| [delta.key()]).build())
    }),
    Descriptor {
        on_by_default: true,
        in_testenv: false,
        ..portreeve_garbagecollector::DESCRIPTOR
    },
];

/// Blocks the worker of [`BLOCKED`].
pub(crate) static BARRIER: Barrier = Barrier::closed();

/// A controller that blocks its thread in each decision until a test opens the barrier. Then it
/// copies each ConfigMap.
pub(crate) const BLOCKED: &[Descriptor] = &[descriptor("blocked-controller", one_flag, |ctx| {
    copier(ctx, "Blocked", || BARRIER.pass())
})];

/// Returns the flag that restricts a test controller to `namespace`.
pub(crate) fn in_namespace(namespace: &str) -> String {
    format!("--{NAMESPACE}={namespace}")
}

type Build = fn(&Context<'_>) -> Result<Registrations, BuildError>;

pub(crate) const fn descriptor(name: &'static str, flags: fn() -> Vec<clap::Arg>, build: Build) -> Descriptor {
    Descriptor {
        name,
        log_target: module_path!(),
        aliases: &[],
        on_by_default: true,
        in_testenv: false,
        crds: &[],
        policies: &[],
        rules: &[],
        webhooks: Vec::new,
        flags,
        build,
    }
}

pub(crate) fn one_flag() -> Vec<clap::Arg> {
    vec![clap::Arg::new(NAMESPACE).long(NAMESPACE).required(true)]
}

pub(crate) fn config_map_informer(ctx: &Context<'_>) -> Result<Informer<CachedObject>, BuildError> {
    let namespace: String = ctx.flag(NAMESPACE)?;
    Ok(ctx.informer(Watch {
        namespace: Some(namespace.into()),
        ..Watch::all(CONFIG_MAPS)
    }))
}

fn copier(
    ctx: &Context<'_>,
    queue: &'static str,
    misbehave: impl Fn() + Send + Sync + 'static,
) -> Result<Registrations, BuildError> {
    let maps = config_map_informer(ctx)?;
    let reconciler = Copier {
        maps: maps.clone(),
        misbehave: Box::new(misbehave),
    };
    Ok(KeyedController::new(ctx, queue, reconciler)
        .watch(&maps, |delta| [delta.key()])
        .build())
}

pub(crate) fn idle(ctx: &Context<'_>, queue: &'static str) -> Result<Registrations, BuildError> {
    let maps = config_map_informer(ctx)?;
    let keyed = KeyedController::new(ctx, queue, Idle);
    Ok(keyed.watch(&maps, |delta| [delta.key()]).build())
}

#[derive(Deserialize)]
pub(crate) struct CachedObject {
    metadata: Metadata,
}

impl Projection for CachedObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Keeps an empty ConfigMap `NAME-copy` for each ConfigMap.
struct Copier {
    maps: Informer<CachedObject>,
    /// Called at each decision.
    misbehave: Box<dyn Fn() + Send + Sync>,
}

impl Reconciler for Copier {
    type Observed = (ObjectKey, Option<Arc<CachedObject>>);

    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed> {
        let original = self.maps.get(key).filter(|map| !map.metadata.name.ends_with("-copy"))?;
        let copy = key.with_name(format!("{}-copy", original.metadata.name));
        let present = self.maps.get(&copy);
        Some((copy, present))
    }

    fn decide(&self, (key, present): &Self::Observed, _now: Timestamp) -> Plan {
        (self.misbehave)();
        if present.is_some() {
            return Plan::nothing();
        }
        let metadata = json!({"name": key.name, "namespace": key.namespace});
        Plan::of(vec![Effect::Create(Object {
            resource: CONFIG_MAPS,
            key: key.clone(),
            body: json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
        })])
    }
}

struct Idle;

impl Reconciler for Idle {
    type Observed = ();

    fn observe(&self, _key: &ObjectKey) -> Option<()> {
        Some(())
    }

    fn decide(&self, (): &(), _now: Timestamp) -> Plan {
        Plan::nothing()
    }
}
