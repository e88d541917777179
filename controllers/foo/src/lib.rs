//! foo-controller: keeps one Deployment for each Foo, as Kubernetes' sample-controller does, and repairs it.
//!
//! This crate is the shape that a controller of one's own has: a [`DESCRIPTOR`], an `observe` that reads caches, and a pure
//! `decide` (in `decide.rs`) on what was observed.
//!
//! Architecture Invariant: no client, no async, no clock.

mod decide;
mod deployment;

use jiff::Timestamp;
use kube::CustomResourceExt;
use portreeve_api::{FOOS, Foo, FooSpec, FooStatus, Metadata, ObjectKey};
use portreeve_informer::{Delta, Index, Informer, Projection, Watch, indexes};
use portreeve_reconcile::{BuildError, Controller, Descriptor, Effect, Plan, Reconciler, Rule, Setup};
use serde::Deserialize;

use crate::{
    decide::Observed,
    deployment::{DEPLOYMENTS, SeenDeployment},
};

/// The name under which sample-controller writes; kept, so that it can be replaced in place.
const FIELD_MANAGER: &str = "sample-controller";

/// The plug.
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
        // Asked for by clusters that enforce permissions on blockOwnerDeletion.
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
                .help("The number of Foos that are synced concurrently")
                .default_value("5")
                .value_parser(clap::value_parser!(u16).range(1..)),
        ]
    },
    build,
};

fn build(setup: &mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError> {
    let workers = setup.flag::<u16>("concurrent-foo-syncs")?;
    let foos: Informer<SeenFoo> = setup.informer(Watch::all(FOOS));
    let deployments: Informer<SeenDeployment> = setup.informer(Watch::all(DEPLOYMENTS));
    let wanting = foos.index("deploymentName", |foo: &SeenFoo| {
        vec![scoped(&foo.metadata, &foo.spec.deployment_name)]
    });
    let reconciler = FooReconciler {
        foos: foos.clone(),
        owned: deployments.index("controller", indexes::by_controller),
        deployments: deployments.clone(),
    };
    let controller = setup
        .keyed("Foos", reconciler)
        .workers(workers.into())
        .field_manager(FIELD_MANAGER)
        .watch(&foos, |delta| [delta.key()])
        // With many Foos at once, all Deployments come before any status.
        .watch_routinely(&deployments, move |delta| concerned(delta, &wanting));
    Ok(controller.build())
}

/// What is kept of a Foo.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct SeenFoo {
    pub(crate) metadata: Metadata,
    pub(crate) spec: FooSpec,
    #[serde(default)]
    pub(crate) status: FooStatus,
}

impl Projection for SeenFoo {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// The Foos that a change of a Deployment concerns: the one that owns it, and those that want its name (their conflict ends with
/// it).
fn concerned(delta: &Delta<SeenDeployment>, wanting: &Index<SeenFoo>) -> Vec<ObjectKey> {
    let deployment = &delta.change.object().metadata;
    let owner = deployment.controller().filter(|owner| *owner.kind == *FOOS.kind);
    let owner = owner.map(|owner| deployment.key().sibling(&*owner.name));
    let wanted_by = wanting.get(&scoped(deployment, &deployment.name));
    let wanted_by = wanted_by.iter().map(|foo| foo.metadata.key());
    owner.into_iter().chain(wanted_by).collect()
}

/// A name together with the namespace that it is in.
fn scoped(metadata: &Metadata, name: &str) -> Box<str> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{name}").into()
}

struct FooReconciler {
    foos: Informer<SeenFoo>,
    deployments: Informer<SeenDeployment>,
    owned: Index<SeenDeployment>,
}

impl Reconciler for FooReconciler {
    type Observed = Observed;

    fn observe(&self, key: &ObjectKey) -> Option<Observed> {
        let foo = self.foos.get(key)?;
        // A reference from another namespace owns nothing, whatever UID it names.
        let mut owned = self.owned.get(&foo.metadata.uid);
        owned.retain(|deployment| {
            let Metadata { namespace, name, .. } = &deployment.metadata;
            *namespace == foo.metadata.namespace && **name != *foo.spec.deployment_name
        });
        owned.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Some(Observed {
            deployment: self.deployments.get(&key.sibling(foo.spec.deployment_name.as_str())),
            outdated: owned,
            foo,
        })
    }

    fn decide(&self, seen: &Observed, now: Timestamp) -> Plan {
        decide::decide(seen, now)
    }

    fn refused(&self, seen: &Observed, _effect: &Effect, why: &str, now: Timestamp) -> Plan {
        decide::refused(seen, why, now)
    }
}
