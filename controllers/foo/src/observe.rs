//! The observed state of a Foo, and the Foos that a change affects.
//!
//! Architecture Invariant: pure. The caches are an argument.

use std::{iter, sync::Arc};

use portreeve_api::{Metadata, ObjectKey};
use portreeve_informer::Change;

use crate::{admitted::Admitted, api::FOOS, deployment::CachedDeployment, foo::CachedFoo};

/// The longest cycle of Foos waiting for each other's names that is detected. It bounds the time
/// of one observation to about a millisecond.
const LONGEST_CYCLE: usize = 1_000;

/// The caches of Foos and Deployments.
pub(crate) trait Caches {
    /// Returns the Foo with this key.
    fn foo(&self, key: &ObjectKey) -> Option<Arc<CachedFoo>>;

    /// Returns the Foos that ask for the Deployment with this key.
    fn foos_asking_for(&self, deployment: &ObjectKey) -> Vec<Arc<CachedFoo>>;

    /// Returns the Deployment with this key, whoever owns it.
    fn deployment(&self, key: &ObjectKey) -> Option<Arc<CachedDeployment>>;

    /// Returns the Deployments in the namespace of this Foo that it controls.
    fn deployments_controlled_by(&self, foo: &Metadata) -> Vec<Arc<CachedDeployment>>;
}

/// Everything that a decision knows about a Foo.
pub(crate) struct Observed {
    pub(crate) foo: Arc<CachedFoo>,
    /// The Deployment with the name that the Foo asks for, whoever owns it.
    pub(crate) deployment: Option<Arc<CachedDeployment>>,
    /// What admission made of the last write of this Deployment, if that differs from it.
    pub(crate) admitted: Option<Admitted>,
    /// Sorted by name.
    pub(crate) outdated: Vec<OutdatedDeployment>,
}

/// A Deployment that the Foo controls under another name than the one it asks for.
pub(crate) struct OutdatedDeployment {
    pub(crate) deployment: Arc<CachedDeployment>,
    pub(crate) demand: Demand,
}

/// Whether other Foos wait for the name of an outdated Deployment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Demand {
    /// No other Foo asks for the name.
    None,
    /// Another Foo asks for it.
    Waiting,
    /// Another Foo asks for it, and the controlling Foo waits for that Foo, directly or through
    /// others. Nobody can continue before one of their Deployments is deleted, and nobody else
    /// asks for their names.
    Deadlocked,
}

/// Returns what the caches know about the Foo with this key.
pub(crate) fn observe(caches: &impl Caches, key: &ObjectKey, admitted: Option<Admitted>) -> Option<Observed> {
    let foo = caches.foo(key)?;
    let name = foo.spec.deployment_name.as_str();
    let mut owned = caches.deployments_controlled_by(&foo.metadata);
    owned.retain(|deployment| *deployment.metadata.name != *name);
    owned.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let outdated = owned.into_iter().map(|deployment| OutdatedDeployment {
        demand: demand(caches, &foo, &deployment),
        deployment,
    });
    Some(Observed {
        outdated: outdated.collect(),
        deployment: caches.deployment(&key.with_name(name)),
        admitted,
        foo,
    })
}

fn demand(caches: &impl Caches, foo: &Arc<CachedFoo>, outdated: &CachedDeployment) -> Demand {
    let asking = asking_for(caches, &outdated.metadata.key());
    if !asking.iter().any(|other| other.metadata.uid != foo.metadata.uid) {
        return Demand::None;
    }
    match end_of_cycle(caches, foo) {
        Some(end) if end == outdated.metadata.key() => Demand::Deadlocked,
        _ => Demand::Waiting,
    }
}

/// Returns the Foos that ask for the Deployment with this key and can create it.
fn asking_for(caches: &impl Caches, deployment: &ObjectKey) -> Vec<Arc<CachedFoo>> {
    let mut asking = caches.foos_asking_for(deployment);
    asking.retain(|foo| !foo.metadata.is_terminating());
    asking
}

/// Follows the Foos that wait for each other, from `foo` to the Foo that holds the name it asks
/// for, and so on. Returns the Deployment of `foo` at which the cycle closes. Returns `None` if
/// there is no cycle, or the name of one of its Deployments becomes free anyway, or another Foo
/// asks for one of the names: it could get the name first, and a Foo of the cycle would be left
/// without a Deployment.
fn end_of_cycle(caches: &impl Caches, foo: &Arc<CachedFoo>) -> Option<ObjectKey> {
    let mut waiting = Arc::clone(foo);
    for _ in 0..LONGEST_CYCLE {
        let key = waiting.metadata.key().with_name(waiting.spec.deployment_name.as_str());
        let deployment = caches.deployment(&key)?;
        if deployment.metadata.is_terminating() {
            return None;
        }
        if asking_for(caches, &key).len() > 1 {
            return None;
        }
        let holder = deployment.metadata.controller()?;
        if *holder.uid == *foo.metadata.uid {
            return Some(key);
        }
        waiting = caches.foo(&key.with_name(&*holder.name))?;
        let is_waiting = *waiting.metadata.uid == *holder.uid && *waiting.spec.deployment_name != *key.name;
        if !is_waiting || waiting.metadata.is_terminating() {
            return None;
        }
    }
    None
}

/// Returns the Foos that a change of a Foo affects: the Foo itself, and the Foos that control the
/// Deployments with the names that it asks for and asked for before. They may delete them now: the
/// first because the name is wanted, the second because fewer Foos want it.
pub(crate) fn foos_for_foo(caches: &impl Caches, change: &Change<CachedFoo>) -> Vec<ObjectKey> {
    let foo = change.object();
    let key = foo.metadata.key();
    let before = match change {
        Change::Updated { old, .. } if old.spec.deployment_name != foo.spec.deployment_name => Some(old),
        _ => None,
    };
    let holders = iter::once(foo).chain(before).filter_map(|foo| {
        let wanted = caches.deployment(&key.with_name(foo.spec.deployment_name.as_str()))?;
        controlling_foo(&wanted.metadata).filter(|holder| *holder != key)
    });
    iter::once(key.clone()).chain(holders).collect()
}

/// Returns the Foos that a change of a Deployment affects: its owner, and the Foos that ask for its
/// name, whose conflict may end.
pub(crate) fn foos_for_deployment(caches: &impl Caches, deployment: &Metadata) -> Vec<ObjectKey> {
    let asking = caches.foos_asking_for(&deployment.key());
    let asking = asking.iter().map(|foo| foo.metadata.key());
    controlling_foo(deployment).into_iter().chain(asking).collect()
}

fn controlling_foo(deployment: &Metadata) -> Option<ObjectKey> {
    let owner = deployment.controller().filter(|owner| *owner.kind == *FOOS.kind)?;
    Some(deployment.key().with_name(&*owner.name))
}
