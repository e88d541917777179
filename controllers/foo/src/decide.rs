//! What to do about a Foo: one look at its Deployment, one plan.

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

/// All that is known about a Foo.
pub(crate) struct Observed {
    pub(crate) foo: Arc<CachedFoo>,
    /// The Deployment of the name that the Foo asks for, whoever it belongs to.
    pub(crate) deployment: Option<Arc<CachedDeployment>>,
    /// Deployments that belong to the Foo under names that it asked for once.
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
        // The outdated ones stay: they are all that runs until the conflict ends.
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

/// The Deployment is made; and made anew only while the Foo is there for certain. Somebody who deletes both may have the Deployment's
/// end heard of first, and then nobody would ever delete the new one.
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

/// What to say about a write that was refused: the Foo is not ready, and why.
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

/// What is said of a Foo, in conditions and in an event.
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
        // sample-controller's words.
        message: format!("Resource {name:?} already exists and is not managed by Foo"),
        event: Some(EventSeverity::Warning),
    };
    report(foo, &verdict, 0, now)
}

/// The status that says so, if it does not say so yet, and the event, if that is news.
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
    let is_news = before.is_none_or(|before| {
        (before.status, &*before.reason, &before.message) != (verdict.ready, verdict.reason, &verdict.message)
    });
    let event = verdict.event.filter(|_| is_news).map(|type_| {
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
    // The event after the status: a status that was decided on a stale cache is refused, and then there is no news.
    let patch = Effect::PatchStatus {
        target: target.clone(),
        status: serde_json::json!(status),
    };
    [patch].into_iter().chain(event).collect()
}

#[cfg(test)]
mod tests;
