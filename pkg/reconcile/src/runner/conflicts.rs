//! How long the same write of a key has met with conflicts.
//!
//! A conflict means that the cache was stale, and it usually ends with the next watch event. If the
//! cache does not change, the next plan sends the same write again. After a while this counts as a
//! rejection, because something else may answer like that: an aggregated API or a proxy, and a watch
//! that is stuck.
//!
//! It reads no clock: the time is an argument.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use tokio::time::Instant;

use crate::{Applied, Effect};

/// How long the same write must meet with conflicts to count as rejected. A cache is usually stale
/// for milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// The last write of each key, if it met with a conflict. Bounded by the currently failing keys.
#[derive(Default)]
pub(super) struct Conflicts(Mutex<HashMap<ObjectKey, Conflict>>);

struct Conflict {
    write: u64,
    since: Instant,
}

impl Conflicts {
    /// Returns the result of a plan, in which a conflict that lasts is a rejection.
    pub(super) fn judge(&self, key: &ObjectKey, applied: Applied, now: Instant) -> Applied {
        let mut conflicts = self.0.lock();
        let Applied::Stale(error) = applied else {
            conflicts.remove(key);
            return applied;
        };
        let Some(write) = identity(&error.effect).filter(|_| error.is_answer()) else {
            conflicts.remove(key);
            return Applied::Stale(error);
        };
        let conflict = conflicts
            .entry(key.clone())
            .or_insert(Conflict { write, since: now });
        if conflict.write != write {
            *conflict = Conflict { write, since: now };
        }
        if now.duration_since(conflict.since) < LIMIT {
            Applied::Stale(error)
        } else {
            Applied::Refused(error)
        }
    }

    /// Forgets a key without an object.
    pub(super) fn clear(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

/// Returns a hash of the object that a write changes, in the version of the decision. Another write
/// shows that the cache has changed.
fn identity(effect: &Effect) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    match effect {
        Effect::Create(object) => ("create", &object.resource, &object.key).hash(&mut hasher),
        Effect::Apply { object, uid, version } => {
            ("apply", &object.resource, &object.key, uid, version).hash(&mut hasher);
        }
        Effect::PatchStatus { target, .. } => {
            ("status", &target.resource, &target.key, &target.uid, &target.version).hash(&mut hasher);
        }
        Effect::Delete { target, .. } => {
            ("delete", &target.resource, &target.key, &target.uid, &target.version).hash(&mut hasher);
        }
        Effect::RequireAbsent { .. }
        | Effect::RequirePresent { .. }
        | Effect::Event(..)
        | Effect::Count { .. }
        | Effect::ObserveLatency { .. } => return None,
    }
    Some(hasher.finish())
}
