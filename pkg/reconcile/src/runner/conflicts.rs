//! How long the same write of a key has met with conflicts.
//!
//! A conflict means that the cache was stale, and it usually ends with the next watch event. If the
//! cache does not change, the next plan sends the same write again. After a while this counts as a
//! rejection, because something else may answer like that: an aggregated API or a proxy, and a
//! watch that is stuck.
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

use crate::{Applied, Effect, group_informers::StaleSignal};

/// How long the same write must meet with conflicts to count as rejected. A cache is usually stale
/// for milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// The last write of each key, if it met with a conflict.
#[derive(Default)]
pub(super) struct Conflicts {
    /// Bounded by the currently failing keys.
    conflicts: Mutex<HashMap<ObjectKey, Conflict>>,
    /// Notified once for each write that conflicts for this long, because its cache may be
    /// outdated.
    stale: StaleSignal,
}

struct Conflict {
    write: u64,
    since: Instant,
    is_notified: bool,
}

impl Conflicts {
    pub(super) fn new(stale: StaleSignal) -> Self {
        Self {
            conflicts: Mutex::default(),
            stale,
        }
    }

    /// Returns the result of a plan, in which a conflict that lasts is a rejection.
    pub(super) fn judge(&self, key: &ObjectKey, applied: Applied, now: Instant) -> Applied {
        let mut conflicts = self.conflicts.lock();
        let Applied::Stale(error) = applied else {
            conflicts.remove(key);
            return applied;
        };
        let Some(write) = identity(&error.effect).filter(|_| error.is_answer()) else {
            conflicts.remove(key);
            return Applied::Stale(error);
        };
        let new = || Conflict {
            write,
            since: now,
            is_notified: false,
        };
        let conflict = conflicts.entry(key.clone()).or_insert_with(new);
        if conflict.write != write {
            *conflict = new();
        }
        if now.duration_since(conflict.since) < LIMIT {
            return Applied::Stale(error);
        }
        if !std::mem::replace(&mut conflict.is_notified, true) {
            self.stale.notify();
        }
        Applied::Refused(error)
    }

    /// Forgets a key without an object.
    pub(super) fn clear(&self, key: &ObjectKey) {
        self.conflicts.lock().remove(key);
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
        Effect::Replace {
            target, subresource, ..
        } => {
            (subresource, &target.resource, &target.key, &target.uid, &target.version).hash(&mut hasher);
        }
        Effect::Delete { target, .. } => {
            ("delete", &target.resource, &target.key, &target.uid, &target.version).hash(&mut hasher);
        }
        Effect::Read { .. }
        | Effect::List { .. }
        | Effect::RequireAbsent { .. }
        | Effect::RequirePresent { .. }
        | Effect::Event(..)
        | Effect::Count { .. }
        | Effect::ObserveLatency { .. } => return None,
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use kube::core::Status;
    use portreeve_api::Resource;

    use super::*;
    use crate::{EffectError, Propagation, Target};

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    fn key() -> ObjectKey {
        ObjectKey::namespaced("n", "a")
    }

    /// Returns the result of a deletion in this version.
    fn conflict(version: &str) -> Applied {
        let target = Target {
            resource: PODS,
            key: key(),
            uid: "u".into(),
            version: version.into(),
        };
        let propagation = Propagation::Background;
        let status = Status::failure("changed", "Conflict").with_code(409);
        let source = kube::Error::Api(status.boxed());
        Applied::Stale(EffectError::of(&Effect::Delete { target, propagation }, source))
    }

    /// Judges results at these seconds. Returns which were rejections, and whether the cache was
    /// reported as outdated after each.
    fn judged(results: impl IntoIterator<Item = (u64, Applied)>) -> Vec<(bool, bool)> {
        let stale = StaleSignal::default();
        let conflicts = Conflicts::new(stale.clone());
        let began = Instant::now();
        results
            .into_iter()
            .map(|(second, applied)| {
                let judged = conflicts.judge(&key(), applied, began + Duration::from_secs(second));
                let is_stale = stale.notified().now_or_never().is_some();
                (matches!(judged, Applied::Refused(_)), is_stale)
            })
            .collect()
    }

    #[test]
    fn a_conflict_of_the_same_write_that_lasts_is_a_rejection_and_reported_as_stale_once() {
        let results = [0, 4, 5, 20].map(|second| (second, conflict("1")));
        assert_eq!(
            judged(results),
            [(false, false), (false, false), (true, true), (true, false)]
        );
    }

    #[test]
    fn another_version_and_another_result_start_over() {
        let results = [
            (0, conflict("1")),
            (4, conflict("2")),
            (8, conflict("2")),
            (9, conflict("2")),
        ];
        assert_eq!(
            judged(results),
            [(false, false), (false, false), (false, false), (true, true)]
        );
        let results = [(0, conflict("1")), (4, Applied::Done), (8, conflict("1"))];
        assert!(judged(results).iter().all(|judged| *judged == (false, false)));
    }
}
