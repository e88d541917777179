//! Reports the state of a Foo by its status and by events.
//!
//! Architecture Invariant: pure. The time is an argument.

use jiff::Timestamp;
use portreeve_api::conditions::{self, ConditionStatus, ConditionUpdate};
use portreeve_reconcile::{Effect, EventContent, EventSeverity, Target};

use crate::{
    api::{FOOS, FooStatus},
    deployment::{self, CachedDeployment},
    foo::CachedFoo,
    observe::Observed,
};

/// The state of a Foo, as its conditions and an event report it.
pub(crate) struct Verdict {
    ready: ConditionStatus,
    conflict: ConditionStatus,
    reason: &'static str,
    message: String,
    available_replicas: i32,
    /// The selector of the Deployment, if it has the one that the Foo asks for or admission has
    /// changed that.
    label_selector: Option<String>,
    event: Option<EventSeverity>,
}

impl Verdict {
    /// Returns the verdict on the Deployment with the name that the Foo asks for, or `None` if it
    /// has drifted and an apply must repair it first.
    pub(crate) fn of(observed: &Observed, deployment: &CachedDeployment) -> Option<Self> {
        let foo = &*observed.foo;
        if !deployment.is_controlled_by(foo) {
            return Some(Self::conflict(foo));
        }
        if deployment.metadata.is_terminating() {
            return Some(Self::terminating());
        }
        let desired = deployment::desired(foo).body;
        let differences = deployment.differences(&desired);
        if differences.is_empty() {
            return Some(Self::synced(deployment));
        }
        let admitted = observed.admitted.as_ref();
        admitted
            .is_some_and(|admitted| admitted.explains(deployment, &desired))
            .then(|| Self {
                reason: "ChangedByAdmission",
                message: format!(
                    "Admission changed what the controller applied to the Deployment: {}",
                    differences.join(", ")
                ),
                ..Self::synced(deployment)
            })
    }

    fn synced(deployment: &CachedDeployment) -> Self {
        Self {
            ready: ConditionStatus::True,
            conflict: ConditionStatus::False,
            reason: "Synced",
            message: String::new(),
            available_replicas: deployment.status.available_replicas,
            label_selector: deployment.label_selector(),
            event: Some(EventSeverity::Normal),
        }
    }

    fn terminating() -> Self {
        Self {
            ready: ConditionStatus::False,
            conflict: ConditionStatus::False,
            reason: "DeploymentTerminating",
            message: String::new(),
            available_replicas: 0,
            label_selector: None,
            event: None,
        }
    }

    fn conflict(foo: &CachedFoo) -> Self {
        let name = &foo.spec.deployment_name;
        Self {
            ready: ConditionStatus::False,
            conflict: ConditionStatus::True,
            reason: "ErrResourceExists",
            // The message of sample-controller, word for word.
            message: format!("Resource {name:?} already exists and is not managed by Foo"),
            available_replicas: 0,
            label_selector: None,
            event: Some(EventSeverity::Warning),
        }
    }

    pub(crate) fn refused(observed: &Observed, why: &str) -> Self {
        let deployment = observed.deployment.as_deref();
        let own = deployment.filter(|deployment| deployment.is_controlled_by(&observed.foo));
        Self {
            ready: ConditionStatus::False,
            conflict: if deployment.is_some() && own.is_none() {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason: if deployment.is_some() {
                "FailedUpdate"
            } else {
                "FailedCreate"
            },
            message: why.to_owned(),
            available_replicas: own.map_or(0, |own| own.status.available_replicas),
            label_selector: None,
            event: Some(EventSeverity::Warning),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready == ConditionStatus::True
    }
}

/// The state of a rename: whether outdated Deployments are kept, and why.
pub(crate) struct Renaming {
    status: ConditionStatus,
    reason: &'static str,
    message: String,
}

impl Renaming {
    const TYPE: &'static str = "Renaming";
    const FAILED_DELETE: &'static str = "FailedDelete";
    const NOT_OBSERVED: &'static str = "DeploymentNotObserved";
    const UNAVAILABLE: &'static str = "DeploymentUnavailable";

    /// Returns the state, or `None` if the Foo keeps no outdated Deployment and has never done so.
    pub(crate) fn of(observed: &Observed, verdict: &Verdict, kept: &[&CachedDeployment]) -> Option<Self> {
        let foo = &*observed.foo;
        let [first, others @ ..] = kept else {
            conditions::find_status_condition(&foo.status.conditions, Self::TYPE)?;
            return Some(Self {
                status: ConditionStatus::False,
                reason: "Renamed",
                message: String::new(),
            });
        };
        let (old, new) = (&*first.metadata.name, &foo.spec.deployment_name);
        let more = match others.len() {
            0 => String::new(),
            1 => " and another one".to_owned(),
            others => format!(" and {others} others"),
        };
        let is_observed = observed.deployment.as_ref().is_some_and(|new| new.is_observed());
        let (reason, hint) = if !verdict.is_ready() {
            (verdict.reason, "")
        } else if is_observed {
            (Self::UNAVAILABLE, "")
        } else {
            (Self::NOT_OBSERVED, "; no Deployment controller has observed it yet")
        };
        Some(Self {
            status: ConditionStatus::True,
            reason,
            message: format!("Keeping Deployment {old:?}{more} until Deployment {new:?} is available{hint}"),
        })
    }

    /// Returns the state after the deletion of an outdated Deployment was rejected.
    pub(crate) fn failed(why: &str) -> Self {
        Self {
            status: ConditionStatus::True,
            reason: Self::FAILED_DELETE,
            message: why.to_owned(),
        }
    }
}

/// Returns the effects that report the state: a status patch unless the status is already correct,
/// and events if condition Ready changes, a rename begins, or a deletion fails.
pub(crate) fn report(
    observed: &Observed,
    verdict: &Verdict,
    renaming: Option<Renaming>,
    now: Timestamp,
) -> Vec<Effect> {
    let foo = &*observed.foo;
    let of_verdict = |type_, status| ConditionUpdate {
        type_,
        status,
        reason: verdict.reason,
        message: &verdict.message,
    };
    let mut updates = vec![
        of_verdict("Ready", verdict.ready),
        of_verdict("Conflict", verdict.conflict),
    ];
    updates.extend(renaming.as_ref().map(|renaming| ConditionUpdate {
        type_: Renaming::TYPE,
        status: renaming.status,
        reason: renaming.reason,
        message: &renaming.message,
    }));
    let generation = foo.metadata.generation;
    let status = FooStatus {
        available_replicas: verdict.available_replicas,
        observed_generation: generation,
        label_selector: (verdict.label_selector.clone()).unwrap_or_else(|| deployment::label_selector(foo)),
        conditions: conditions::set_status_conditions(&foo.status.conditions, &updates, generation, now),
    };
    if status == foo.status {
        return Vec::new();
    }
    let target = Target::of(&FOOS, &foo.metadata);
    // The events follow the status patch: if the cache was stale, the apiserver rejects the patch,
    // and no event is sent.
    let patch = Effect::PatchStatus {
        target: target.clone(),
        status: serde_json::json!(status),
    };
    let events = [verdict_event(foo, verdict), renaming_event(foo, renaming)];
    let events = events.into_iter().flatten();
    let events = events.map(|content| Effect::Event(target.clone(), content));
    [patch].into_iter().chain(events).collect()
}

/// Returns the event about the verdict, if condition Ready changes.
fn verdict_event(foo: &CachedFoo, verdict: &Verdict) -> Option<EventContent> {
    let type_ = verdict.event?;
    let before = conditions::find_status_condition(&foo.status.conditions, "Ready");
    let is_new = before.is_none_or(|before| {
        (before.status, &*before.reason, &before.message) != (verdict.ready, verdict.reason, &verdict.message)
    });
    is_new.then(|| EventContent {
        type_,
        reason: verdict.reason,
        action: "Sync",
        message: if verdict.message.is_empty() {
            "Foo synced successfully".to_owned()
        } else {
            verdict.message.clone()
        },
        report_once: None,
    })
}

/// Returns the event about a rename that begins to wait for the new Deployment, or whose deletion
/// of the old one fails.
fn renaming_event(foo: &CachedFoo, renaming: Option<Renaming>) -> Option<EventContent> {
    let renaming = renaming.filter(|renaming| renaming.status == ConditionStatus::True)?;
    let before = conditions::find_status_condition(&foo.status.conditions, Renaming::TYPE);
    let before = before.filter(|before| before.status == ConditionStatus::True);
    if renaming.reason == Renaming::FAILED_DELETE {
        let is_new =
            before.is_none_or(|before| (&*before.reason, &before.message) != (renaming.reason, &renaming.message));
        return is_new.then(|| EventContent::warning(renaming.reason, "Sync", renaming.message));
    }
    // A rename may begin in a conflict or with a rejected Deployment, and wait only later.
    let is_waiting = |reason: &str| [Renaming::NOT_OBSERVED, Renaming::UNAVAILABLE].contains(&reason);
    let is_new = is_waiting(renaming.reason) && !before.is_some_and(|before| is_waiting(&before.reason));
    is_new.then(|| EventContent::normal("Renaming", "Sync", renaming.message))
}
