//! How long a proof of absence is used.
//!
//! A proof holds until etcd is restored from a backup. A restore interrupts every watch, so a proof
//! is used without another read only while the watch of the owner's resource is open, and it is
//! dropped when that watch resumes. A proof about a kind without a watch is not used while a watch
//! has resumed and its versions have not been checked. If resourceVersions are seen to decrease,
//! all proofs that rest on the same store are dropped.

use std::collections::HashSet;

use super::{FollowUps, Graph, Monitor, NO_VERSION, change::number};
use crate::{absent_owner_cache::group_of, metadata::Reference};

impl Graph {
    /// Records that the watch of a resource has ended.
    pub fn disconnect(&mut self, monitor: Monitor) {
        if let Some(watched) = self.watched(monitor) {
            watched.is_connected = false;
        }
    }

    /// Records that the watch of a resource has resumed. Drops the proofs about its objects, and
    /// those that a read has given about kinds that no monitor watches.
    ///
    /// Deletions that a watch has reported stay proofs if their kind is no longer served, because
    /// no read could prove them again. They are not used until [`Graph::confirm_versions`].
    pub fn resume(&mut self, monitor: Monitor) {
        let Some(watched) = self.watched(monitor) else { return };
        let (resumed, is_separate) = (watched.kind, watched.is_separate);
        if std::mem::replace(&mut watched.is_connected, true) {
            return;
        }
        watched.is_checked = false;
        if self.absent.len() == 0 {
            return;
        }
        let kept = self.monitors.iter().flatten().map(|watched| watched.kind);
        let kept = kept.filter(|kind| *kind != resumed).collect();
        self.drop_proofs_except(&kept, is_separate.then_some(resumed), Some(resumed));
    }

    /// Records that the versions of a resource have not decreased since its watch resumed.
    pub fn confirm_versions(&mut self, monitor: Monitor) {
        if let Some(watched) = self.watched(monitor) {
            watched.is_checked = true;
        }
    }

    /// Records whether the resourceVersions of a resource are independent of those of others.
    pub fn set_separate(&mut self, monitor: Monitor, is_separate: bool) {
        if let Some(watched) = self.watched(monitor) {
            watched.is_separate = is_separate;
        }
    }

    /// Records that resourceVersions have decreased: those of this monitor's resource, or those of
    /// the main store. Drops all proofs that rest on the same store, and queues attempts that read
    /// the owners again. Returns whether it is the main store, of which all resources must be
    /// listed again.
    pub fn go_back(&mut self, monitor: Option<Monitor>, follow_ups: &mut FollowUps) -> bool {
        let watched = monitor.and_then(|monitor| self.watched(monitor));
        let separate = watched
            .filter(|watched| watched.is_separate)
            .map(|watched| watched.kind);
        let monitors = self.monitors.iter().flatten();
        let others = monitors
            .filter(|watched| watched.is_separate)
            .map(|watched| watched.kind);
        let others = others.collect();
        self.drop_proofs_except(&others, separate, None);
        let is_meant = |kind: u32, is_separate: bool| separate.map_or(!is_separate, |meant| meant == kind);
        for watched in self.monitors.iter_mut().flatten() {
            if is_meant(watched.kind, watched.is_separate) {
                watched.is_connected = false;
                watched.is_outdated = true;
                watched.version = NO_VERSION;
            }
        }
        let nodes = self.nodes.iter();
        let unsure = nodes.filter(|(id, node)| {
            !node.is_observed() && !self.is_lost(*id) && separate.is_none_or(|kind| node.kind == kind)
        });
        follow_ups.attempt.extend(unsure.map(|(_, node)| node.uid));
        separate.is_none()
    }

    /// Drops the proofs about objects of this kind, in every version.
    pub(super) fn drop_proofs_of(&mut self, kind: u32) {
        self.drop_proofs_except(&HashSet::new(), Some(kind), None);
    }

    /// Drops the proofs about objects of all kinds but these, in every version. If `only` is given,
    /// drops only those of that kind. If `resumed` is given, keeps the deletions that the watches
    /// of other kinds have reported.
    fn drop_proofs_except(&mut self, kept: &HashSet<u32>, only: Option<u32>, resumed: Option<u32>) {
        let kinds = &self.kinds;
        let texts = |number: u32| kinds.get(number).map(|kind| (group_of(&kind.api_version), &*kind.kind));
        let kept: HashSet<_> = kept.iter().filter_map(|number| texts(*number)).collect();
        let (only, resumed) = (only.and_then(texts), resumed.and_then(texts));
        self.absent.retain(|group, kind, is_observed| {
            if let Some(only) = only {
                return (group, kind) != only;
            }
            let is_of_another = resumed.is_some_and(|resumed| (group, kind) != resumed);
            kept.contains(&(group, kind)) || is_observed && is_of_another
        });
    }

    /// Returns whether proofs about the objects of this kind are used without another read: the
    /// watch of the kind must be open, in any version. For a kind without a monitor, the watch of
    /// any other resource must be open, no open watch may have resumed without a check of its
    /// versions, and the API must not have a store of its own.
    pub(super) fn is_proof_current(&self, reference: &Reference) -> bool {
        let group = group_of(&reference.api_version);
        let (mut needs_read, mut is_any_connected) = (false, false);
        for watched in self.monitors.iter().flatten() {
            let Some(kind) = self.kinds.get(watched.kind) else {
                continue;
            };
            if group_of(&kind.api_version) == group {
                let is_it = *kind.kind == *reference.kind;
                if is_it && watched.is_connected {
                    return true;
                }
                needs_read |= is_it || watched.is_separate;
            }
            if watched.is_connected && !watched.is_separate {
                is_any_connected = true;
                needs_read |= !watched.is_checked;
            }
        }
        !needs_read && is_any_connected
    }

    /// Returns the latest resourceVersion that was seen of a resource; 0 if none was.
    pub fn latest_version(&self, monitor: Monitor) -> u64 {
        let watched = self.monitors.get(usize::from(monitor.0)).and_then(Option::as_ref);
        watched.map_or(NO_VERSION, |watched| watched.version)
    }

    /// Returns whether resourceVersions have decreased, and the resource has not been listed again.
    pub fn is_outdated(&self, monitor: Monitor) -> bool {
        let watched = self.monitors.get(usize::from(monitor.0)).and_then(Option::as_ref);
        watched.is_some_and(|watched| watched.is_outdated)
    }

    /// Returns the monitor that has reported an object, and the resourceVersion. Returns `None` if
    /// the version may be that of a former store.
    pub fn observed_version(&self, uid: &str) -> Option<(Monitor, u64)> {
        let node = &self.nodes[self.find(self.uids.find(uid)?)?];
        let is_known = node.is_observed() && !self.is_outdated(node.monitor);
        is_known.then_some((node.monitor, node.version))
    }

    /// Returns whether a response shows that resourceVersions have decreased. `known` is the
    /// version that was known when the request was sent.
    pub fn has_decreased(known: u64, response: &str) -> bool {
        number(response).is_some_and(|version| version < known)
    }
}
