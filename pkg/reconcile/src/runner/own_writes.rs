//! Recognizes the watch events of the status patches with which failed runs report their failure.
//!
//! Such an event must not run the key again: the run would be neither delayed by the backoff nor
//! limited by the retry budget, and if the message differs each time, it would patch again. The
//! event contains no other change. A patch succeeds only on the version that its run observed, so
//! no other change is between the two versions.

use std::collections::{HashMap, hash_map::Entry};

use parking_lot::Mutex;
use portreeve_api::{Metadata, ObjectKey};
use portreeve_workqueue::Lane;

/// The last reported failure of each key, until its watch event or the next run of the key. So it
/// is bounded by the failing keys.
#[derive(Default)]
pub(super) struct OwnWrites(Mutex<HashMap<ObjectKey, OwnWrite>>);

struct OwnWrite {
    uid: Box<str>,
    state: State,
}

enum State {
    /// The patch was sent. Its watch event may precede the response, so the last event is held back
    /// until then, with its version and lane.
    Sent(Option<(Box<str>, Lane)>),
    /// The patch created this version.
    Done(Box<str>),
}

impl OwnWrites {
    /// Records that a patch of the object's status is about to be sent.
    pub(super) fn begin(&self, key: &ObjectKey, uid: &str) {
        let (uid, state) = (uid.into(), State::Sent(None));
        self.0.lock().insert(key.clone(), OwnWrite { uid, state });
    }

    /// Records the response to the patch, with the version that it created. Returns the lane of an
    /// event that was held back and is not the patch's own.
    pub(super) fn end(&self, key: &ObjectKey, version: Option<&str>) -> Option<Lane> {
        let mut writes = self.0.lock();
        let Entry::Occupied(mut entry) = writes.entry(key.clone()) else {
            return None;
        };
        let held = match &mut entry.get_mut().state {
            State::Sent(held) => held.take(),
            State::Done(_) => None,
        };
        match (held, version) {
            (None, Some(version)) => {
                entry.get_mut().state = State::Done(version.into());
                None
            }
            (held, version) => {
                entry.remove();
                let (_, lane) = held.filter(|(held, _)| Some(&**held) != version)?;
                Some(lane)
            }
        }
    }

    /// Returns whether an update of the object to this version needs no run now: it is the result
    /// of the patch, or the decision waits for the response to the patch.
    pub(super) fn absorbs(&self, key: &ObjectKey, updated: &Metadata, lane: Lane) -> bool {
        let mut writes = self.0.lock();
        let Some(write) = writes.get_mut(key).filter(|write| *write.uid == *updated.uid) else {
            return false;
        };
        match &mut write.state {
            State::Sent(held) => {
                *held = Some(((*updated.resource_version).into(), lane));
                true
            }
            State::Done(version) => {
                let is_own = **version == *updated.resource_version;
                writes.remove(key);
                is_own
            }
        }
    }

    /// Forgets the patch of a key that runs again.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::namespaced("n", "a")
    }

    fn absorbs(writes: &OwnWrites, uid: &str, version: &str) -> bool {
        let updated = Metadata {
            uid: uid.into(),
            resource_version: version.into(),
            ..Metadata::default()
        };
        writes.absorbs(&key(), &updated, Lane::Urgent)
    }

    #[test]
    fn the_event_of_a_patch_is_absorbed_after_the_response() {
        let writes = OwnWrites::default();
        writes.begin(&key(), "u");
        assert_eq!(writes.end(&key(), Some("7")), None);
        assert!(absorbs(&writes, "u", "7"));
        assert!(!absorbs(&writes, "u", "8"));
        assert!(writes.0.lock().is_empty());
    }

    #[test]
    fn the_event_of_a_patch_is_absorbed_before_the_response() {
        let writes = OwnWrites::default();
        writes.begin(&key(), "u");
        assert!(absorbs(&writes, "u", "6"));
        assert!(absorbs(&writes, "u", "7"));
        assert_eq!(writes.end(&key(), Some("7")), None);
        assert!(!absorbs(&writes, "u", "8"));
        assert!(writes.0.lock().is_empty());
    }

    #[test]
    fn another_change_runs_the_key() {
        let writes = OwnWrites::default();
        writes.begin(&key(), "u");
        assert!(!absorbs(&writes, "other", "5"), "another object has the same name");
        assert!(absorbs(&writes, "u", "7"));
        assert!(absorbs(&writes, "u", "8"));
        assert_eq!(writes.end(&key(), Some("7")), Some(Lane::Urgent));
        writes.begin(&key(), "u");
        assert_eq!(writes.end(&key(), Some("9")), None);
        assert!(!absorbs(&writes, "u", "10"), "the watch has skipped the patch");
        assert!(writes.0.lock().is_empty());
    }

    #[test]
    fn a_failed_patch_absorbs_nothing() {
        let writes = OwnWrites::default();
        writes.begin(&key(), "u");
        assert!(absorbs(&writes, "u", "7"));
        assert_eq!(writes.end(&key(), None), Some(Lane::Urgent));
        writes.begin(&key(), "u");
        assert_eq!(writes.end(&key(), None), None);
        assert!(writes.0.lock().is_empty());
    }

    #[test]
    fn the_next_run_forgets_the_patch() {
        let writes = OwnWrites::default();
        writes.begin(&key(), "u");
        writes.forget(&key());
        assert_eq!(writes.end(&key(), Some("7")), None);
        assert!(!absorbs(&writes, "u", "7"));
    }
}
