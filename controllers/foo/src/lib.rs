//! foo-controller: keeps one Deployment for each Foo, as Kubernetes' sample-controller does, and
//! corrects drift in it.
//!
//! This crate shows the structure of a custom controller: a [`DESCRIPTOR`], an `observe` that reads
//! caches, and a pure `decide` (in `decide.rs`) on what was observed.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod decide;
mod deployment;

use jiff::Timestamp;
use kube::CustomResourceExt;
use portreeve_api::{FOOS, Foo, FooSpec, FooStatus, Metadata, ObjectKey};
use portreeve_informer::{Delta, Index, Informer, Projection, Watch, indexes};
use portreeve_reconcile::{
    BuildError, Context, Descriptor, Effect, KeyedController, Plan, Reconciler, Registrations, Rule,
};
use serde::Deserialize;

use crate::{
    decide::Observed,
    deployment::{CachedDeployment, DEPLOYMENTS},
};

/// The field manager of sample-controller. Sharing it allows this controller to replace
/// sample-controller in place.
const FIELD_MANAGER: &str = "sample-controller";

/// The descriptor of foo-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "foo-controller",
    aliases: &["foo"],
    on_by_default: true,
    crds: || vec![Foo::crd()],
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
    let foos_by_deployment = foos.index("deploymentName", |foo: &CachedFoo| {
        vec![namespaced_name(&foo.metadata, &foo.spec.deployment_name)]
    });
    let reconciler = FooReconciler {
        foos: foos.clone(),
        owned: deployments.index("controller", indexes::by_controller),
        deployments: deployments.clone(),
    };
    let controller = KeyedController::new(ctx, "Foos", reconciler)
        .workers(workers.into())
        .field_manager(FIELD_MANAGER)
        .watch(&foos, |delta| [delta.key()])
        // Changes of Deployments are routine, so that with many Foos all Deployments are
        // created before any status is written.
        .watch_routine(&deployments, move |delta| {
            foos_for_deployment(delta, &foos_by_deployment)
        });
    Ok(controller.build())
}

/// The fields of a Foo that the informer stores.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedFoo {
    pub(crate) metadata: Metadata,
    pub(crate) spec: FooSpec,
    #[serde(default)]
    pub(crate) status: FooStatus,
}

impl Projection for CachedFoo {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Returns the Foos that a change of a Deployment affects: its owner, and the Foos that ask for its
/// name, whose conflict may end.
fn foos_for_deployment(delta: &Delta<CachedDeployment>, foos_by_deployment: &Index<CachedFoo>) -> Vec<ObjectKey> {
    let deployment = &delta.change.object().metadata;
    let owner = deployment.controller().filter(|owner| *owner.kind == *FOOS.kind);
    let owner = owner.map(|owner| deployment.key().with_name(&*owner.name));
    let wanted_by = foos_by_deployment.get(&namespaced_name(deployment, &deployment.name));
    let wanted_by = wanted_by.iter().map(|foo| foo.metadata.key());
    owner.into_iter().chain(wanted_by).collect()
}

/// Returns `<namespace>/<name>`, with the namespace of `metadata`.
fn namespaced_name(metadata: &Metadata, name: &str) -> Box<str> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

struct FooReconciler {
    foos: Informer<CachedFoo>,
    deployments: Informer<CachedDeployment>,
    owned: Index<CachedDeployment>,
}

impl Reconciler for FooReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let foo = self.foos.get(key)?;
        // An owner reference is only valid within a namespace, whatever UID it has.
        let mut owned = self.owned.get(&foo.metadata.uid);
        owned.retain(|deployment| {
            let Metadata { namespace, name, .. } = &deployment.metadata;
            *namespace == foo.metadata.namespace && **name != *foo.spec.deployment_name
        });
        owned.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Some(Observed {
            deployment: self.deployments.get(&key.with_name(foo.spec.deployment_name.as_str())),
            outdated: owned,
            foo,
        })
    }

    fn decide(&self, observed: &Observed, now: Timestamp) -> Plan {
        decide::decide(observed, now)
    }

    fn refused(&self, observed: &Observed, _effect: &Effect, why: &str, now: Timestamp) -> Plan {
        decide::refused(observed, why, now)
    }
}
