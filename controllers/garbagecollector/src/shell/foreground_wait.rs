//! The wait of an owner in foreground deletion for resources that are not synced.
//!
//! What the watches have reported of synced resources decides, as in kube-controller-manager: a
//! dependent that turns up later is collected in the background. A resource that is not synced may
//! contain dependents that block the owner, so it delays the end of the deletion, but by at most
//! [`LIMIT`]. An attempt that has to wait ends, so it holds no worker.

use std::{collections::HashSet, time::Duration};

use parking_lot::Mutex;
use portreeve_garbagecollector_graph::{Identity, Uid};
use tokio::time::Instant;

use super::{
    CollectorContext, failures::Task, list_failures::LIMIT, lists::may_contain_dependents, monitors::MonitorState,
};

/// How often an owner that waits is processed again. It is also queued when a resource is synced,
/// but a resource that could not be read for a moment is not synced anew.
const INTERVAL: Duration = Duration::from_secs(10);

/// The owners that wait for resources to be synced.
#[derive(Default)]
pub(super) struct SyncWaits(Mutex<HashSet<Uid>>);

/// Returns when an owner is processed again that waits for resources which have not been synced
/// since these times. Returns `None` if it waits for none of them any longer.
fn next_attempt(unsynced_since: impl Iterator<Item = Instant>, now: Instant) -> Option<Instant> {
    let ends = unsynced_since.map(|since| since + LIMIT).filter(|end| *end > now);
    ends.max().map(|end| end.min(now + INTERVAL))
}

impl CollectorContext {
    /// Returns when to process the owner again if its finalizer `foregroundDeletion` has to stay,
    /// because a resource that may contain dependents is not synced.
    pub(super) fn wait_for_sync(&self, owner: &Identity) -> Option<Instant> {
        let uid = self.graph.lock().uid(&owner.uid)?;
        let now = Instant::now();
        // Before the check, so that no resource is synced unnoticed in between.
        self.sync_waits.0.lock().insert(uid);
        let (unsynced, next) = {
            let states = self.watched.borrow();
            let may_matter = |state: &&MonitorState| {
                may_contain_dependents(&state.resource, owner.namespace.as_deref()) && !state.is_synced()
            };
            let unsynced: Vec<_> = states.iter().filter(may_matter).collect();
            let next = if states.is_empty() {
                // Discovery has not answered yet, so the dependents may be of any resource.
                Some(now + INTERVAL)
            } else {
                next_attempt(unsynced.iter().map(|state| state.unsynced_since(now)), now)
            };
            let names: Vec<_> = unsynced.iter().map(ToString::to_string).collect();
            (names.join("; "), next)
        };
        let next = next.filter(|_| {
            let reason = format!("waiting for resources that are not synced and may contain dependents: {unsynced}");
            self.failed(Task::Collect(uid), reason, false);
            !self.has_failed_long(Task::Collect(uid))
        });
        if next.is_some() {
            self.metrics.count_attempt("noop", "unsynced");
            return next;
        }
        self.sync_waits.0.lock().remove(&uid);
        if !unsynced.is_empty() {
            tracing::warn!(%owner, unsynced, "finishing foreground deletion without resources that are not synced");
        }
        None
    }

    /// Queues the owners that wait for resources to be synced.
    pub(super) fn end_sync_waits(&self) {
        let waiting = std::mem::take(&mut *self.sync_waits.0.lock());
        self.continue_owners(waiting.into_iter().map(Task::Collect));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_waits_until_each_resource_is_synced_or_has_not_been_for_the_limit() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let next = |unsynced: &[u64], now: u64| {
            let next = next_attempt(unsynced.iter().map(|since| at(*since)), at(now));
            next.map(|next| next.duration_since(start).as_secs())
        };
        assert_eq!(next(&[], 100), None);
        assert_eq!(next(&[100], 100), Some(110));
        assert_eq!(next(&[75], 100), Some(105));
        assert_eq!(next(&[70], 100), None, "it has not been synced for the limit");
        assert_eq!(next(&[0, 72, 0], 100), Some(102), "others do not matter");
    }
}
