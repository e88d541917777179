//! The most recent decisions, with their reasons.

use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use portreeve_garbagecollector_graph::{Identity, Intent, OwnerState, PropagationPolicy};
use serde_json::{Value, json};

/// The maximum number of decisions that are kept.
const CAPACITY: usize = 1_000;

/// The action of a decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Action {
    Delete(PropagationPolicy),
    RemoveReferences,
    BreakCycle,
    RemoveFinalizer,
    Orphan,
}

/// A decision that was carried out, failed, or was only observed.
pub(super) struct Decision {
    pub(super) at: Timestamp,
    pub(super) action: Action,
    pub(super) item: Identity,
    pub(super) owners: Vec<(Identity, OwnerState)>,
    pub(super) result: String,
}

#[derive(Default)]
pub(super) struct DecisionLog(Mutex<VecDeque<Decision>>);

impl Action {
    pub(super) fn of(intent: &Intent) -> Self {
        match intent {
            Intent::Delete { policy, .. } => Self::Delete(*policy),
            Intent::RemoveReferences { .. } => Self::RemoveReferences,
            Intent::BreakCycle { .. } => Self::BreakCycle,
            Intent::RemoveFinalizer { .. } => Self::RemoveFinalizer,
        }
    }

    /// Returns the value of the metric label `action`.
    pub(super) fn metric(self) -> &'static str {
        match self {
            Self::Delete(_) => "delete",
            Self::Orphan => "orphan",
            Self::RemoveReferences | Self::BreakCycle | Self::RemoveFinalizer => "unblock",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Delete(PropagationPolicy::Background) => "delete",
            Self::Delete(PropagationPolicy::Foreground) => "delete in the foreground",
            Self::Delete(PropagationPolicy::Orphan) => "delete, orphaning its dependents",
            Self::RemoveReferences => "remove owner references",
            Self::BreakCycle => "unset blockOwnerDeletion",
            Self::RemoveFinalizer => "remove the finalizer foregroundDeletion",
            Self::Orphan => "orphan its dependents",
        }
    }
}

impl DecisionLog {
    pub(super) fn write(&self, decision: Decision) {
        let mut kept = self.0.lock();
        if kept.len() == CAPACITY {
            kept.pop_front();
        }
        kept.push_back(decision);
    }

    /// Returns the decisions that are kept, the latest first. If `uid` is given, returns only those
    /// on that object.
    pub(super) fn read(&self, uid: Option<&str>) -> Value {
        let kept = self.0.lock();
        let wanted = kept
            .iter()
            .rev()
            .filter(|decision| uid.is_none_or(|uid| *decision.item.uid == *uid));
        let decisions = wanted.map(|decision| {
            let owners = decision.owners.iter();
            let owners =
                owners.map(|(owner, owner_state)| json!({ "owner": owner.to_json(), "state": owner_state.word() }));
            json!({
                "time": decision.at.to_string(),
                "action": decision.action.word(),
                "object": decision.item.to_json(),
                "owners": owners.collect::<Vec<_>>(),
                "result": decision.result,
            })
        });
        json!({ "kept": CAPACITY, "decisions": decisions.collect::<Vec<_>>() })
    }
}
