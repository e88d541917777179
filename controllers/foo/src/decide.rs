//! Decides what to do for a Foo, given its Deployments.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_reconcile::{Effect, Plan, Propagation, Target};

use crate::{
    api::{FOOS, FooStatus},
    deployment::{self, DEPLOYMENTS},
    foo::CachedFoo,
    observe::{Demand, Observed},
    report::{Renaming, Verdict, report},
};

pub(crate) fn decide(observed: &Observed, now: Timestamp) -> Plan {
    let foo = &*observed.foo;
    if foo.metadata.is_terminating() {
        return Plan::nothing();
    }
    let Some(deployment) = &observed.deployment else {
        return Plan::of(creation(foo));
    };
    let Some(verdict) = Verdict::of(observed, deployment) else {
        return Plan::of(vec![Effect::Apply {
            object: deployment::desired(foo),
            uid: Arc::clone(&deployment.metadata.uid),
            version: Arc::clone(&deployment.metadata.resource_version),
        }]);
    };
    let is_due = |demand: Demand| match demand {
        // In a conflict with anybody else, the outdated Deployments are the only ones that run.
        Demand::Deadlocked => true,
        Demand::Waiting => verdict.is_ready(),
        Demand::None => verdict.is_ready() && deployment.is_available(),
    };
    let outdated = observed.outdated.iter();
    let (due, kept): (Vec<_>, Vec<_>) = outdated
        .filter(|outdated| !outdated.deployment.metadata.is_terminating())
        .partition(|outdated| is_due(outdated.demand));
    let deletions = due.into_iter().map(|outdated| Effect::Delete {
        target: Target::of(&DEPLOYMENTS, &outdated.deployment.metadata),
        propagation: Propagation::Background,
    });
    let kept: Vec<_> = kept.into_iter().map(|outdated| &*outdated.deployment).collect();
    let renaming = Renaming::of(observed, &verdict, &kept);
    let report = report(observed, &verdict, renaming, now);
    Plan::of(deletions.chain(report).collect())
}

/// Returns the effects that create the Deployment.
///
/// If the Foo has a status, its Deployment existed before. If somebody deleted both, the cache may
/// have learned only of the Deployment's deletion, and nobody would ever delete a Deployment that
/// is created now. So the apiserver must first confirm that the Foo still exists.
fn creation(foo: &CachedFoo) -> Vec<Effect> {
    let create = Effect::Create(deployment::desired(foo));
    if foo.status == FooStatus::default() {
        return vec![create];
    }
    let present = Effect::RequirePresent {
        resource: FOOS,
        key: foo.metadata.key(),
        uid: Arc::clone(&foo.metadata.uid),
    };
    vec![present, create]
}

/// Returns the plan after the apiserver rejected a write: it sets Ready to false and reports the
/// reason. After a rejected deletion, the Deployment that the Foo asks for is as it was, so only
/// Renaming has the reason.
pub(crate) fn refused(observed: &Observed, effect: &Effect, why: &str, now: Timestamp) -> Plan {
    let unchanged = match (effect, &observed.deployment) {
        (Effect::Delete { .. }, Some(deployment)) => Verdict::of(observed, deployment),
        _ => None,
    };
    if let Some(verdict) = unchanged {
        return Plan::of(report(observed, &verdict, Some(Renaming::failed(why)), now));
    }
    let verdict = Verdict::refused(observed, why);
    let outdated = observed.outdated.iter().map(|outdated| &*outdated.deployment);
    let kept: Vec<_> = outdated
        .filter(|outdated| !outdated.metadata.is_terminating())
        .collect();
    let renaming = Renaming::of(observed, &verdict, &kept);
    Plan::of(report(observed, &verdict, renaming, now))
}

#[cfg(test)]
mod tests;
