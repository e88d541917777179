//! Limits the reads of objects whose resource cannot be read.
//!
//! A read may be rejected with 403, or with a 404 of the whole resource; it may fail in the
//! apiserver, or have no response. Then one object probes the resource: its attempts are repeated
//! with a backoff. The attempts of all other objects that need such a read end without a request,
//! until a probe succeeds or the resource is listed.

use std::collections::HashMap;

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::Uid;

/// The resources that cannot be read, with the object whose attempts probe each.
#[derive(Default)]
pub(super) struct ReadGates(Mutex<HashMap<Resource, Option<Uid>>>);

impl ReadGates {
    /// Returns whether an attempt on this object may read the resource. The first object that asks
    /// for a resource without a probe becomes its probe.
    pub(super) fn admits(&self, resource: &Resource, uid: Uid) -> bool {
        let mut closed = self.0.lock();
        closed
            .get_mut(resource)
            .is_none_or(|probe| *probe.get_or_insert(uid) == uid)
    }

    /// Returns whether only another object may read the resource.
    pub(super) fn excludes(&self, resource: &Resource, uid: Uid) -> bool {
        let closed = self.0.lock();
        closed
            .get(resource)
            .is_some_and(|probe| probe.is_some_and(|probe| probe != uid))
    }

    /// Records that the resource could not be read. Returns whether that is new.
    pub(super) fn close(&self, resource: &Resource) -> bool {
        let mut closed = self.0.lock();
        let is_new = !closed.contains_key(resource);
        closed.entry(resource.clone()).or_default();
        is_new
    }

    /// Records that the resource can be read. Returns whether it could not be read before.
    pub(super) fn open(&self, resource: &Resource) -> bool {
        self.0.lock().remove(resource).is_some()
    }

    /// Ends the probes of an object, except those that its next attempt needs. Returns whether
    /// there was one, so that another object has to take over.
    pub(super) fn release(&self, uid: Uid, is_needed: impl Fn(&Resource) -> bool) -> bool {
        let mut is_released = false;
        for (closed, probe) in &mut *self.0.lock() {
            if *probe == Some(uid) && !is_needed(closed) {
                *probe = None;
                is_released = true;
            }
        }
        is_released
    }
}

#[cfg(test)]
mod tests {
    use portreeve_garbagecollector_graph::{FollowUps, Graph, PartialObject};

    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");
    const NODES: Resource = Resource::cluster("", "v1", "Node", "nodes");

    #[test]
    fn one_object_at_a_time_probes_a_closed_resource() {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        let [a, b] = ["a", "b"].map(|text| {
            let mut pod = PartialObject::default();
            pod.metadata.uid = text.into();
            graph.observe(pods, &pod, &mut FollowUps::default());
            graph.uid(text).unwrap()
        });
        let gates = ReadGates::default();
        assert!(gates.admits(&PODS, a) && gates.admits(&PODS, b));
        assert!(gates.close(&PODS) && !gates.close(&PODS));
        assert!(gates.admits(&PODS, a) && !gates.admits(&PODS, b) && gates.admits(&NODES, b));
        assert!(gates.excludes(&PODS, b) && !gates.excludes(&PODS, a) && !gates.excludes(&NODES, b));
        assert!(!gates.release(b, |_| false) && !gates.release(a, |needed| *needed == PODS));
        assert!(!gates.admits(&PODS, b));
        assert!(gates.release(a, |_| false));
        assert!(gates.admits(&PODS, b) && !gates.admits(&PODS, a));
        assert!(gates.open(&PODS) && !gates.open(&PODS));
        assert!(gates.admits(&PODS, a) && gates.admits(&PODS, b));
    }
}
