//! Decides what to do for a Foo, given its Deployments.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::{
    FOOS, FooStatus,
    conditions::{self, ConditionStatus, ConditionUpdate},
};
use portreeve_reconcile::{Effect, EventContent, EventSeverity, Plan, Propagation, Target};

use crate::{
    CachedFoo,
    deployment::{self, CachedDeployment, DEPLOYMENTS},
};

/// Everything that a decision knows about a Foo.
pub(crate) struct Observed {
    pub(crate) foo: Arc<CachedFoo>,
    /// The Deployment with the name that the Foo asks for, whoever owns it.
    pub(crate) deployment: Option<Arc<CachedDeployment>>,
    /// Deployments that the Foo controls under names that it asked for earlier.
    pub(crate) outdated: Vec<Arc<CachedDeployment>>,
}

pub(crate) fn decide(observed: &Observed, now: Timestamp) -> Plan {
    let Observed {
        foo,
        deployment,
        outdated,
    } = observed;
    if foo.metadata.is_terminating() {
        return Plan::nothing();
    }
    let Some(deployment) = deployment else {
        return Plan::of(creation(foo));
    };
    if !deployment.is_controlled_by(foo) {
        // Keep the outdated Deployments: until the conflict ends, only they run.
        return Plan::of(conflict(foo, now));
    }
    if deployment.metadata.is_terminating() {
        return Plan::of(report(foo, &Verdict::TERMINATING, 0, now));
    }
    if deployment.has_drifted_from(foo) {
        return Plan::of(vec![Effect::Apply {
            object: deployment::desired(foo),
            uid: Arc::clone(&deployment.metadata.uid),
            version: Arc::clone(&deployment.metadata.resource_version),
        }]);
    }
    let mut effects: Vec<_> = outdated
        .iter()
        .filter(|outdated| !outdated.metadata.is_terminating())
        .map(|outdated| Effect::Delete {
            target: Target::of(&DEPLOYMENTS, &outdated.metadata),
            propagation: Propagation::Background,
        })
        .collect();
    effects.extend(report(foo, &Verdict::SYNCED, deployment.status.available_replicas, now));
    Plan::of(effects)
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
/// reason.
pub(crate) fn refused(observed: &Observed, why: &str, now: Timestamp) -> Plan {
    let available_replicas = observed
        .deployment
        .as_ref()
        .map(|deployment| deployment.status.available_replicas);
    let verdict = Verdict {
        ready: ConditionStatus::False,
        conflict: ConditionStatus::False,
        reason: if available_replicas.is_some() {
            "FailedUpdate"
        } else {
            "FailedCreate"
        },
        message: why.to_owned(),
        event: Some(EventSeverity::Warning),
    };
    Plan::of(report(
        &observed.foo,
        &verdict,
        available_replicas.unwrap_or_default(),
        now,
    ))
}

/// The state of a Foo, as its conditions and an event report it.
struct Verdict {
    ready: ConditionStatus,
    conflict: ConditionStatus,
    reason: &'static str,
    message: String,
    event: Option<EventSeverity>,
}

impl Verdict {
    const SYNCED: Self = Self {
        ready: ConditionStatus::True,
        conflict: ConditionStatus::False,
        reason: "Synced",
        message: String::new(),
        event: Some(EventSeverity::Normal),
    };
    const TERMINATING: Self = Self {
        ready: ConditionStatus::False,
        conflict: ConditionStatus::False,
        reason: "DeploymentTerminating",
        message: String::new(),
        event: None,
    };
}

fn conflict(foo: &CachedFoo, now: Timestamp) -> Vec<Effect> {
    let name = &foo.spec.deployment_name;
    let verdict = Verdict {
        ready: ConditionStatus::False,
        conflict: ConditionStatus::True,
        reason: "ErrResourceExists",
        // The message of sample-controller, word for word.
        message: format!("Resource {name:?} already exists and is not managed by Foo"),
        event: Some(EventSeverity::Warning),
    };
    report(foo, &verdict, 0, now)
}

/// Returns the effects that report `verdict`: a status patch unless the status is already correct,
/// and an event if condition Ready changes.
fn report(foo: &CachedFoo, verdict: &Verdict, available_replicas: i32, now: Timestamp) -> Vec<Effect> {
    let condition_update = |type_, status| ConditionUpdate {
        type_,
        status,
        reason: verdict.reason,
        message: &verdict.message,
    };
    let condition_updates = [
        condition_update("Ready", verdict.ready),
        condition_update("Conflict", verdict.conflict),
    ];
    let generation = foo.metadata.generation;
    let status = FooStatus {
        available_replicas,
        observed_generation: generation,
        conditions: conditions::set_status_conditions(&foo.status.conditions, &condition_updates, generation, now),
    };
    if status == foo.status {
        return Vec::new();
    }
    let target = Target::of(&FOOS, &foo.metadata);
    let before = conditions::find_status_condition(&foo.status.conditions, "Ready");
    let is_new = before.is_none_or(|before| {
        (before.status, &*before.reason, &before.message) != (verdict.ready, verdict.reason, &verdict.message)
    });
    let event = verdict.event.filter(|_| is_new).map(|type_| {
        let note = EventContent {
            type_,
            reason: verdict.reason,
            action: "Sync",
            message: if verdict.message.is_empty() {
                "Foo synced successfully".to_owned()
            } else {
                verdict.message.clone()
            },
            report_once: None,
        };
        Effect::Event(target.clone(), note)
    });
    // The event follows the status patch: if the cache was stale, the apiserver rejects the patch,
    // and no event is sent.
    let patch = Effect::PatchStatus {
        target: target.clone(),
        status: serde_json::json!(status),
    };
    [patch].into_iter().chain(event).collect()
}

#[cfg(test)]
mod tests;
