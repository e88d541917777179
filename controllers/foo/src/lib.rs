//! foo-controller: keeps one Deployment for each Foo, as Kubernetes' sample-controller does, and
//! corrects drift in it.
//!
//! This crate shows the structure of a custom controller: a [`DESCRIPTOR`], an `observe` that reads
//! caches (in `observe.rs`), and a pure `decide` (in `decide.rs`) on what was observed.
//!
//! # Renames
//!
//! A Foo that asks for another name keeps its outdated Deployment until the new one is available,
//! with these exceptions (`observe.rs`):
//!
//! - Another Foo asks for the outdated name: the Deployment is deleted once the new one exists.
//! - Foos wait for each other in a cycle: each deletes its outdated Deployment, because no new one
//!   can exist before and no Foo is sure to see the cycle first.
//!
//! A change of a Foo also queues the Foo that controls the Deployment that it asks for. So each
//! change that closes a cycle or begins a wait queues a Foo that can act. The property tests run
//! the same observations on a model with stale caches.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod admission;
mod admitted;
pub mod api;
mod decide;
mod deployment;
mod foo;
mod observe;
mod report;

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use portreeve_api::{Metadata, ObjectKey};
use portreeve_informer::{Index, Informer, Watch, indexes};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, Effect, KeyedController, Plan, Reconciler, Registrations, RequestState, Rule,
};

use crate::{
    admitted::Admitted,
    api::FOOS,
    deployment::{CachedDeployment, DEPLOYMENTS},
    foo::CachedFoo,
    observe::{Caches, Observed},
};

/// The field manager of sample-controller. Sharing it allows this controller to replace
/// sample-controller in place.
const FIELD_MANAGER: &str = "sample-controller";

/// The descriptor of foo-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "foo-controller",
    log_target: module_path!(),
    aliases: &["foo"],
    on_by_default: true,
    in_testenv: false,
    crds: &[include_str!("../crds.yaml")],
    policies: &[],
    rules: &[
        Rule {
            groups: &["samplecontroller.k8s.io"],
            resources: &["foos"],
            verbs: &["get", "list", "watch"],
        },
        Rule {
            groups: &["samplecontroller.k8s.io"],
            resources: &["foos/status"],
            verbs: &["patch"],
        },
        // Required by clusters that enforce permissions on blockOwnerDeletion.
        Rule {
            groups: &["samplecontroller.k8s.io"],
            resources: &["foos/finalizers"],
            verbs: &["update"],
        },
        Rule {
            groups: &["apps"],
            resources: &["deployments"],
            verbs: &["create", "delete", "list", "patch", "watch"],
        },
    ],
    webhooks: admission::webhooks,
    flags: || {
        vec![
            clap::Arg::new("concurrent-foo-syncs")
                .long("concurrent-foo-syncs")
                .value_name("N")
                .help("The number of Foos that are allowed to sync concurrently")
                .default_value("5")
                .value_parser(clap::value_parser!(u16).range(1..)),
        ]
    },
    build,
};

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let workers = ctx.flag::<u16>("concurrent-foo-syncs")?;
    let foos: Informer<CachedFoo> = ctx.informer(Watch::all(FOOS));
    let deployments: Informer<CachedDeployment> = ctx.informer(Watch::all(DEPLOYMENTS));
    let caches = FooCaches {
        foos_by_deployment: foos.index("deploymentName", |foo: &CachedFoo| {
            vec![namespaced_name(&foo.metadata.key(), &foo.spec.deployment_name)]
        }),
        deployments_by_controller: deployments.index("controller", indexes::by_controller),
        foos: foos.clone(),
        deployments: deployments.clone(),
    };
    let (for_foos, for_deployments) = (caches.clone(), caches.clone());
    let controller = KeyedController::new(ctx, "foo", FooReconciler::new(caches))
        .workers(workers.into())
        .field_manager(FIELD_MANAGER)
        .watch(&foos, move |delta| observe::foos_for_foo(&for_foos, &delta.change))
        // Changes of Deployments are routine, so that with many Foos all Deployments are
        // created before any status is written.
        .watch_routine(&deployments, move |delta| {
            observe::foos_for_deployment(&for_deployments, &delta.change.object().metadata)
        });
    Ok(controller.build())
}

/// Returns `<namespace>/<name>`, with the namespace of `key`.
fn namespaced_name(key: &ObjectKey, name: &str) -> Box<str> {
    let namespace = key.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

#[derive(Clone)]
struct FooCaches {
    foos: Informer<CachedFoo>,
    foos_by_deployment: Index<CachedFoo>,
    deployments: Informer<CachedDeployment>,
    deployments_by_controller: Index<CachedDeployment>,
}

impl Caches for FooCaches {
    fn foo(&self, key: &ObjectKey) -> Option<Arc<CachedFoo>> {
        self.foos.get(key)
    }

    fn foos_asking_for(&self, deployment: &ObjectKey) -> Vec<Arc<CachedFoo>> {
        self.foos_by_deployment
            .get(&namespaced_name(deployment, &deployment.name))
    }

    fn deployment(&self, key: &ObjectKey) -> Option<Arc<CachedDeployment>> {
        self.deployments.get(key)
    }

    fn deployments_controlled_by(&self, foo: &Metadata) -> Vec<Arc<CachedDeployment>> {
        self.deployments_by_controller.get(&indexes::controlled_by(foo))
    }
}

struct FooReconciler {
    caches: FooCaches,
    /// By Foo, for those whose Deployment admission has changed. A new leader learns of them by one
    /// apply each.
    admitted: Mutex<HashMap<ObjectKey, Admitted>>,
}

impl FooReconciler {
    fn new(caches: FooCaches) -> Self {
        let admitted = Mutex::default();
        Self { caches, admitted }
    }
}

impl Reconciler for FooReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let admitted = self.admitted.lock().get(key).cloned();
        let observed = observe::observe(&self.caches, key, admitted);
        if observed.is_none() {
            self.admitted.lock().remove(key);
        }
        observed
    }

    fn decide(&self, observed: &Observed, now: Timestamp) -> Plan {
        decide::decide(observed, now)
    }

    fn refused(&self, observed: &Observed, effect: &Effect, why: &str, now: Timestamp) -> Plan {
        decide::refused(observed, effect, why, now)
    }
    fn observe_request(&self, observed: &Observed, effect: &Effect, state: RequestState<'_>) -> bool {
        let (Effect::Create(written) | Effect::Apply { object: written, .. }, RequestState::Found(response)) =
            (effect, state)
        else {
            return false;
        };
        let key = observed.foo.metadata.key();
        let Some(admitted) = Admitted::of(written, response.get()) else {
            self.admitted.lock().remove(&key);
            return false;
        };
        let is_without_effect = admitted.is_without_effect(effect);
        self.admitted.lock().insert(key, admitted);
        is_without_effect
    }
}
