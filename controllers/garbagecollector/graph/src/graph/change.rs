//! Applies events of watches and answers of the apiserver to the graph.

use super::{Flags, FollowUps, Graph, Id, Monitor, NO_VERSION, NONE, Node, Watched};
use crate::{identity::Identity, metadata::PartialObject, uid::Uid};

/// Parses a resourceVersion. Returns `None` unless it is a number in the form that Kubernetes
/// writes.
pub(super) fn number(version: &str) -> Option<u64> {
    let number = version.parse().ok().filter(|number| *number != NO_VERSION)?;
    let is_plain = !version.starts_with(['0', '+']);
    is_plain.then_some(number)
}

/// What an object waits for before it is deleted.
struct FinalizerState {
    is_orphaning: bool,
    is_waiting: bool,
}

impl FinalizerState {
    fn of(node: &Node) -> Self {
        Self {
            is_orphaning: node.is_orphaning(),
            is_waiting: node.is_waiting_for_dependents(),
        }
    }
}

impl Graph {
    /// Adds a monitor for a resource whose objects are of this kind.
    pub fn add_monitor(&mut self, api_version: &str, kind: &str) -> Monitor {
        self.last_serial += 1;
        let watched = Watched {
            kind: self.kind(api_version, kind),
            serial: self.last_serial,
            generation: 0,
            version: NO_VERSION,
            nodes: 0,
            listed: 0,
            has_gaps: false,
            is_connected: false,
            is_checked: false,
            is_outdated: false,
            is_separate: false,
        };
        let free = self.monitors.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.monitors.push(None);
            self.monitors.len() - 1
        });
        self.monitors[place] = Some(watched);
        Monitor(u16::try_from(place).unwrap_or(u16::MAX))
    }

    /// Removes the monitor of a resource that is no longer watched. Its nodes become virtual,
    /// because the end of a watch proves nothing. If the resource has a store of its own, nothing
    /// will show a restore of that store, so the proofs about its objects are dropped.
    pub fn remove_monitor(&mut self, monitor: Monitor, follow_ups: &mut FollowUps) {
        self.invalidate_monitor(monitor, follow_ups);
        self.release_lost(monitor);
        if let Some(watched) = self.monitors.get_mut(usize::from(monitor.0)).and_then(Option::take) {
            if watched.is_separate {
                self.drop_proofs_of(watched.kind);
            }
            self.kinds.release(watched.kind);
        }
    }

    /// Begins a list of the resource.
    pub fn begin_list(&mut self, monitor: Monitor) {
        if let Some(watched) = self.watched(monitor) {
            watched.generation = watched.generation.wrapping_add(1);
            watched.listed = 0;
            watched.has_gaps = false;
            watched.is_connected = false;
        }
    }

    /// Completes the list at `version`. Objects missing from it are gone, unless the list has gaps,
    /// has no numeric version, or is older than what was seen before: then their nodes become
    /// virtual. In the last case resourceVersions have decreased, and all proofs that rest on the
    /// same store are dropped. Returns whether they have decreased.
    pub fn complete_list(&mut self, monitor: Monitor, version: Option<&str>, follow_ups: &mut FollowUps) -> bool {
        self.resume(monitor);
        let listed = version.and_then(number);
        let Some(watched) = self.watched(monitor) else {
            return false;
        };
        let (has_gaps, kind) = (watched.has_gaps, watched.kind);
        let (generation, before) = (watched.generation, watched.version);
        let has_decreased = listed.is_some_and(|listed| listed < before);
        let lacks_some = watched.nodes != watched.listed;
        if has_decreased {
            self.go_back(Some(monitor), follow_ups);
        }
        if let Some(watched) = self.watched(monitor) {
            watched.version = listed.unwrap_or(before);
            watched.is_connected = version.is_some();
            watched.is_checked = listed.is_some();
            watched.is_outdated = false;
        }
        let is_proof = listed.is_some() && !has_decreased && !has_gaps;
        self.find_lost(monitor, kind, is_proof, follow_ups);
        if !lacks_some {
            return has_decreased;
        }
        for id in self.nodes_of(monitor, |missing| missing != generation) {
            if is_proof {
                self.remove(id, follow_ups);
            } else {
                self.lose(id, follow_ups);
            }
        }
        has_decreased
    }

    /// Returns the nodes of a resource whose generation `of` accepts.
    pub(super) fn nodes_of(&self, monitor: Monitor, of: impl Fn(u32) -> bool) -> Vec<Id> {
        let nodes = self.nodes.iter();
        nodes
            .filter(|(_, node)| node.is_observed() && node.monitor == monitor && of(node.generation))
            .map(|(id, _)| id)
            .collect()
    }

    pub(super) fn watched(&mut self, monitor: Monitor) -> Option<&mut Watched> {
        self.monitors.get_mut(usize::from(monitor.0)).and_then(Option::as_mut)
    }

    /// Records that an object exists, in this state.
    pub fn observe(&mut self, monitor: Monitor, seen: &PartialObject, follow_ups: &mut FollowUps) {
        let Some(&Some(Watched {
            kind,
            generation,
            is_connected,
            ..
        })) = self.monitors.get(usize::from(monitor.0))
        else {
            return;
        };
        let meta = &seen.metadata;
        let uid = self.uids.intern(&meta.uid);
        let version = number(&meta.resource_version).unwrap_or(NO_VERSION);
        let known = self.find(uid);
        if known.is_some_and(|id| self.is_anothers(id, monitor, version)) {
            return;
        }
        let id = known.unwrap_or_else(|| {
            self.kinds.acquire(kind);
            let namespace = self.namespace(meta.namespace.as_deref());
            self.insert(uid, kind, namespace, &meta.name)
        });
        let before = FinalizerState::of(&self.nodes[id]);
        self.set_lost(id, false);
        let is_known = self.nodes[id].is_observed() && self.nodes[id].monitor == monitor;
        self.enlist(id, monitor, generation, version);
        let is_new = !self.nodes[id].is_observed();
        // Names do not change, so an object that the same monitor has reported before still has
        // its name.
        let is_it = is_known
            || self.nodes[id].kind == kind
                && *self.nodes[id].name == *meta.name
                && self.is_namespace(self.nodes[id].namespace, meta.namespace.as_deref());
        if !is_it {
            self.rename(id, kind, meta.namespace.as_deref(), &meta.name);
        }
        self.nodes[id].set_observed(meta);
        if is_new {
            let tally = &mut self.tallies[kind as usize];
            tally.observed += 1;
            tally.virtual_ -= 1;
            let observed = self.identity(id);
            // The object exists after all, so no proof for its UID holds.
            self.absent.forget_object(uid, &observed);
        }
        if is_new || !is_it {
            self.check_references_to(id, follow_ups);
        }
        let has_new_owners = self.set_owners(id, &meta.owner_references, follow_ups);
        let is_relisted = is_known && !is_connected;
        self.queue_observed(id, &before, has_new_owners, is_relisted, follow_ups);
    }

    /// Queues what follows from the state in which an object was reported.
    fn queue_observed(
        &mut self,
        id: Id,
        before: &FinalizerState,
        has_new_owners: bool,
        is_relisted: bool,
        follow_ups: &mut FollowUps,
    ) {
        let node = &self.nodes[id];
        let uid = node.uid;
        let FinalizerState {
            is_orphaning,
            is_waiting,
        } = FinalizerState::of(node);
        if is_waiting {
            self.waiting.insert(id);
        } else {
            self.waiting.remove(&id);
        }
        if is_waiting && !before.is_waiting {
            self.begin(id, follow_ups);
        }
        // A list may show an object in the same state although the collector has changed it,
        // because etcd was restored. So everything that is listed again is processed again.
        if is_orphaning && (!before.is_orphaning || is_relisted) {
            follow_ups.orphan.push(uid);
        }
        if is_relisted {
            // What was known of the owners may have been dropped when the watch ended.
            follow_ups.attempt.extend(self.unknown_owners(id));
        }
        // New references of a waiting owner may close a cycle of waiting owners.
        let is_changed = !before.is_waiting || has_new_owners || is_relisted;
        if is_waiting && is_changed || is_relisted && self.is_due(id) {
            follow_ups.attempt.push(uid);
        }
    }

    /// Returns whether a later monitor has reported the object, and this version is not newer.
    fn is_anothers(&self, id: Id, monitor: Monitor, version: u64) -> bool {
        let node = &self.nodes[id];
        let serial = |monitor: Monitor| {
            let watched = self.monitors.get(usize::from(monitor.0)).and_then(Option::as_ref);
            watched.map_or(0, |watched| watched.serial)
        };
        node.is_observed()
            && node.monitor != monitor
            && version <= node.version
            && serial(node.monitor) > serial(monitor)
    }

    /// Returns whether a watch has reported the object in a later version than this answer.
    pub fn is_newer_than(&self, seen: &PartialObject) -> bool {
        let id = self.uids.find(&seen.metadata.uid).and_then(|uid| self.find(uid));
        let then = number(&seen.metadata.resource_version);
        id.map(|id| &self.nodes[id])
            .is_some_and(|node| node.is_observed() && then.is_none_or(|then| then < node.version))
    }

    /// Records the monitor, list and version in which the node was seen.
    fn enlist(&mut self, id: Id, monitor: Monitor, generation: u32, version: u64) {
        let node = &self.nodes[id];
        if node.is_observed()
            && let Some(former) = {
                let (former, listed) = (node.monitor, node.generation);
                self.watched(former).map(|watched| (watched, listed))
            }
        {
            let (watched, listed) = former;
            watched.nodes -= 1;
            watched.listed -= u32::from(listed == watched.generation);
        }
        if let Some(watched) = self.watched(monitor) {
            watched.nodes += 1;
            watched.listed += 1;
            watched.version = watched.version.max(version);
        }
        let node = &mut self.nodes[id];
        (node.monitor, node.generation, node.version) = (monitor, generation, version);
    }

    /// Keeps the last known state of an object that exists but could not be decoded.
    pub fn keep_undecodable(&mut self, monitor: Monitor, uid: &str) {
        let known = self.uids.find(uid).and_then(|uid| self.find(uid));
        let Some(id) = known.filter(|id| !self.is_lost(*id)) else {
            if let Some(watched) = self.watched(monitor) {
                watched.has_gaps = true;
            }
            return;
        };
        let version = self.nodes[id].version;
        if self.nodes[id].is_observed()
            && self.nodes[id].monitor == monitor
            && let Some(generation) = self.watched(monitor).map(|watched| watched.generation)
        {
            self.enlist(id, monitor, generation, version);
        }
    }

    /// Records an observed deletion.
    pub fn deleted(&mut self, monitor: Monitor, seen: &PartialObject, follow_ups: &mut FollowUps) {
        let meta = &seen.metadata;
        let version = number(&meta.resource_version).unwrap_or(NO_VERSION);
        let kind = self.watched(monitor).map(|watched| {
            watched.version = watched.version.max(version);
            watched.kind
        });
        let Some(id) = self.uids.find(&meta.uid).and_then(|uid| self.find(uid)) else {
            return;
        };
        if self.nodes[id].is_observed() {
            return self.remove(id, follow_ups);
        }
        // A virtual node has the coordinates of its first reference, which may be wrong. They
        // cannot be used for a proof of absence, so use those of the event.
        if let Some(kind) = kind {
            let owner = self.build_identity(kind, meta.namespace.as_deref(), &meta.name, self.nodes[id].uid);
            self.prove_absent(&owner, true, follow_ups);
        }
    }

    /// Records the observed deletion of an object whose last state could not be decoded.
    pub fn deleted_by_name(
        &mut self,
        monitor: Monitor,
        namespace: Option<&str>,
        name: &str,
        follow_ups: &mut FollowUps,
    ) {
        let found = self.nodes.iter().find(|(_, node)| {
            node.is_observed()
                && node.monitor == monitor
                && *node.name == *name
                && self.is_namespace(node.namespace, namespace)
        });
        if let Some(id) = found.map(|(id, _)| id) {
            self.remove(id, follow_ups);
        }
    }

    /// Records that the apiserver no longer has an object that the collector tried to change at
    /// `version`. Does nothing if a watch has reported the object in another version since.
    pub fn mark_gone(&mut self, uid: Uid, version: &str, follow_ups: &mut FollowUps) {
        if let Some(id) = self.find(uid)
            && self.nodes[id].is_observed()
            && number(version) == Some(self.nodes[id].version)
        {
            self.remove(id, follow_ups);
        }
    }

    /// Records that the apiserver does not have an owner. Does nothing if a watch has reported the
    /// owner meanwhile.
    pub fn mark_absent(&mut self, owner: &Identity, follow_ups: &mut FollowUps) {
        self.prove_absent(owner, false, follow_ups);
    }

    /// Does the same as [`Graph::mark_absent`]. `is_observed` says whether a watch has reported the
    /// deletion.
    fn prove_absent(&mut self, owner: &Identity, is_observed: bool, follow_ups: &mut FollowUps) {
        let Some(id) = self.uids.find(&owner.uid).and_then(|uid| self.find(uid)) else {
            return;
        };
        let node = &self.nodes[id];
        let is_it = self.is_kind_of_group(node.kind, &owner.api_version, &owner.kind) && *node.name == *owner.name;
        let is_there = owner.namespace.is_none() || self.is_namespace(node.namespace, owner.namespace.as_deref());
        if node.is_observed() && is_it && is_there {
            return;
        }
        self.absent.add(node.uid, owner, is_observed);
        for edge in self.references_to(id) {
            let dependent = &self.nodes[self.edges[edge].dependent];
            let is_meant =
                owner.namespace.is_none() || self.is_namespace(dependent.namespace, owner.namespace.as_deref());
            if is_meant && self.names_owner(edge, owner) {
                follow_ups.attempt.push(dependent.uid);
            }
        }
        if !self.nodes[id].is_observed() && is_it && is_there {
            self.set_lost(id, false);
            // A deleted object no longer blocks the deletion of its owners.
            self.set_owners(id, &[], follow_ups);
            self.settle_if_there(id, follow_ups);
        }
    }

    /// Records that the object is gone. The node stays as long as others refer to it.
    pub(super) fn remove(&mut self, id: Id, follow_ups: &mut FollowUps) {
        let uid = self.nodes[id].uid;
        self.unobserve(id);
        if self.nodes[id].dependent_count > 0 {
            let identity = self.identity(id);
            self.absent.add(uid, &identity, true);
            self.begin(id, follow_ups);
        }
        self.set_owners(id, &[], follow_ups);
        self.settle_if_there(id, follow_ups);
    }

    /// Does the same as [`Graph::settle`], unless the node owned itself and was removed with its
    /// last reference.
    fn settle_if_there(&mut self, id: Id, follow_ups: &mut FollowUps) {
        if self.nodes.has(id) {
            self.settle(id, follow_ups);
        }
    }

    /// Makes a node virtual, because what was seen of it no longer proves that it exists. Queues an
    /// attempt to read it.
    fn lose(&mut self, id: Id, follow_ups: &mut FollowUps) {
        self.unobserve(id);
        follow_ups.attempt.push(self.nodes[id].uid);
        self.settle(id, follow_ups);
    }

    /// Starts the cascade of the node: queues an attempt for each dependent.
    fn begin(&mut self, id: Id, follow_ups: &mut FollowUps) {
        if self.nodes[id].dependent_count == 0 {
            return;
        }
        if !self.nodes[id].flags.has(Flags::CASCADING) {
            self.nodes[id].flags.set(Flags::CASCADING, true);
            follow_ups.cascades_started.push(self.nodes[id].uid);
        }
        let dependents = self.dependents(id).map(|dependent| self.nodes[dependent].uid);
        follow_ups.attempt.extend(dependents);
    }

    /// Queues what follows when a node may have lost a dependent, or may no longer exist itself.
    pub(super) fn settle(&mut self, id: Id, follow_ups: &mut FollowUps) {
        let node = &mut self.nodes[id];
        if node.dependent_count == 0 && node.flags.has(Flags::CASCADING) {
            node.flags.set(Flags::CASCADING, false);
            follow_ups.cascades_finished.push(node.uid);
        }
        if node.is_waiting_for_dependents() && node.blocking == 0 {
            follow_ups.attempt.push(node.uid);
        }
        if !node.is_observed() && node.dependent_count == 0 && node.owners.is_none() {
            self.take_out(id, follow_ups);
        }
    }

    /// Returns whether a dependent in the namespace `dependent` may refer to an owner in the
    /// namespace `owner`. Both arguments are numbers of namespaces.
    pub(super) fn may_refer(owner: u32, dependent: u32) -> bool {
        owner == NONE || owner == dependent
    }
}
