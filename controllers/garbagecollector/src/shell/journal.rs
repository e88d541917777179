//! The last decisions, and why they were made.

use std::collections::VecDeque;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    Identity, Intent,
    verdict::{Policy, Standing},
};

/// How many decisions are kept.
const KEPT: usize = 1_000;

/// What was done to an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Action {
    Delete(Policy),
    Release,
    Finish,
    Orphan,
}

/// One decision that was carried out, or that failed.
pub(super) struct Decision {
    pub(super) at: Timestamp,
    pub(super) action: Action,
    pub(super) item: Identity,
    pub(super) owners: Vec<(Identity, Standing)>,
    pub(super) result: String,
}

#[derive(Default)]
pub(super) struct Journal(Mutex<VecDeque<Decision>>);

impl Action {
    pub(super) fn of(intent: &Intent) -> Self {
        match intent {
            Intent::Delete { policy, .. } => Self::Delete(*policy),
            Intent::Release { .. } => Self::Release,
            Intent::Finish { .. } => Self::Finish,
        }
    }

    /// The value of the label `action`.
    pub(super) fn metric(self) -> &'static str {
        match self {
            Self::Delete(_) => "delete",
            Self::Orphan => "orphan",
            Self::Release | Self::Finish => "unblock",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Delete(Policy::Background) => "delete",
            Self::Delete(Policy::Foreground) => "delete in the foreground",
            Self::Delete(Policy::Orphan) => "delete, orphaning its dependents",
            Self::Release => "remove owner references",
            Self::Finish => "remove the finalizer foregroundDeletion",
            Self::Orphan => "orphan its dependents",
        }
    }
}

impl Journal {
    pub(super) fn write(&self, decision: Decision) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(decision);
    }

    /// What is kept, the latest first; of one object alone if a UID is given.
    pub(super) fn read(&self, uid: Option<&str>) -> Value {
        let kept = self.0.lock();
        let wanted = kept
            .iter()
            .rev()
            .filter(|decision| uid.is_none_or(|uid| *decision.item.uid == *uid));
        let decisions = wanted.map(|decision| {
            let owners = decision.owners.iter();
            let owners = owners.map(|(owner, standing)| json!({ "owner": owner.to_json(), "state": standing.word() }));
            json!({
                "time": decision.at.to_string(),
                "action": decision.action.word(),
                "object": decision.item.to_json(),
                "owners": owners.collect::<Vec<_>>(),
                "result": decision.result,
            })
        });
        json!({ "kept": KEPT, "decisions": decisions.collect::<Vec<_>>() })
    }
}
