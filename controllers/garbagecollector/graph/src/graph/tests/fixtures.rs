//! A fixture for table tests: creates objects, shows them to the collector and runs attempts, one
//! at a time.

use super::{
    collector::Collector,
    simulation::{ObjectLocation, Simulation, reference},
};
use crate::{FollowUps, Graph, Monitor, PartialMetadata, PartialObject, Reference, verdict::PropagationPolicy};

pub(super) const PODS: &str = "v1/Pod";
pub(super) const NODES: &str = "v1/Node";
pub(super) const SECRETS: &str = "v1/Secret";
pub(super) const ROLES: &str = "rbac.authorization.k8s.io/v1/Role";
pub(super) const OLD_ROLES: &str = "rbac.authorization.k8s.io/v1beta1/Role";
pub(super) const DEPLOYMENTS: &str = "apps/v1/Deployment";
/// No apiserver serves this kind any more.
pub(super) const OLD_DEPLOYMENTS: &str = "extensions/v1beta1/Deployment";

/// An object by kind, namespace, name and UID.
pub(super) type Named = (&'static str, &'static str, &'static str, &'static str);

pub(super) struct Fixture {
    pub(super) simulation: Simulation,
    pub(super) collector: Collector,
}

fn place(object: Named) -> ObjectLocation {
    let namespace = (!object.1.is_empty()).then(|| object.1.into());
    (object.0.to_owned(), namespace, object.2.into())
}

pub(super) fn owner(object: Named) -> Reference {
    reference(object.0, object.2, object.3, false)
}

/// Returns a graph with a monitor for each of these kinds.
pub(super) fn monitored<const KINDS: usize>(kinds: [(&str, &str); KINDS]) -> (Graph, FollowUps, [Monitor; KINDS]) {
    let mut graph = Graph::default();
    let monitors = kinds.map(|(api_version, kind)| graph.add_monitor(api_version, kind));
    (graph, FollowUps::default(), monitors)
}

/// Returns an object whose UID is its name, as are those of its owners, which are given by kind.
pub(super) fn seen(name: &str, version: &str, owners: &[(&str, &str)]) -> PartialObject {
    let owners = owners.iter().map(|(kind, owner)| reference(kind, owner, owner, false));
    PartialObject {
        metadata: PartialMetadata {
            name: name.into(),
            uid: name.into(),
            resource_version: version.into(),
            owner_references: owners.collect(),
            ..PartialMetadata::default()
        },
    }
}

impl Fixture {
    pub(super) fn new() -> Self {
        let kinds = [
            (PODS, true),
            (NODES, false),
            (SECRETS, true),
            (ROLES, true),
            (DEPLOYMENTS, true),
        ];
        let mut simulation = Simulation::new(&kinds);
        simulation.alias(OLD_ROLES, ROLES);
        let mut collector = Collector::default();
        for (kind, _) in kinds {
            collector.list(&simulation, kind);
        }
        Self { simulation, collector }
    }

    /// Creates the object with these owners, without showing it to the collector.
    pub(super) fn create(&mut self, object: Named, owners: &[Named]) {
        let owners = owners.iter().copied().map(owner).collect();
        let made = self
            .simulation
            .create(object.0, Some(object.1), object.2, Some(object.3), owners);
        assert!(made.is_some(), "{object:?} already exists");
    }

    pub(super) fn observe(&mut self, object: Named) {
        self.collector.observe(&self.simulation, &place(object));
    }

    pub(super) fn create_and_observe(&mut self, object: Named, owners: &[Named]) {
        self.create(object, owners);
        self.observe(object);
    }

    /// Deletes the object, without showing that to the collector.
    pub(super) fn delete(&mut self, object: Named) -> PartialObject {
        let seen = PartialObject {
            metadata: self.simulation.objects[&place(object)].meta.clone(),
        };
        self.simulation.delete(&place(object), PropagationPolicy::Background);
        seen
    }

    pub(super) fn delete_and_observe(&mut self, object: Named) {
        let seen = self.delete(object);
        self.collector.observe_deleted(object.0, &seen);
    }

    /// Shows the collector the deletion of an object that it has deleted itself.
    pub(super) fn observe_deleted(&mut self, object: Named) {
        assert!(!self.is_there(object), "{object:?} still exists");
        let mut seen = PartialObject::default();
        seen.metadata.uid = object.3.into();
        self.collector.observe_deleted(object.0, &seen);
    }

    pub(super) fn change(&mut self, object: Named, owners: &[Named]) {
        let owners = owners.iter().copied().map(owner).collect();
        self.simulation
            .change(&place(object), |object| object.meta.owner_references = owners);
    }

    pub(super) fn is_there(&self, object: Named) -> bool {
        self.simulation.objects.contains_key(&place(object))
    }

    /// Runs one attempt to process the object that has waited longest. Returns the requests that it
    /// sent.
    pub(super) fn attempt(&mut self) -> Vec<String> {
        self.simulation.requests.clear();
        if !self.collector.begin() {
            let later = std::mem::take(&mut self.collector.later);
            self.collector.attempts.extend(later);
            assert!(self.collector.begin(), "no object waits for an attempt");
        }
        self.collector.finish_attempts(&mut self.simulation);
        assert!(
            self.simulation.violations.is_empty(),
            "{:?}",
            self.simulation.violations
        );
        self.simulation.requests.clone()
    }

    /// Returns the UIDs of the objects that wait for an attempt, in order.
    pub(super) fn queue(&self) -> Vec<String> {
        self.collector.queue()
    }

    /// Returns the edges that the graph shows, as `dependent -> owner`.
    pub(super) fn edges(&self) -> Vec<String> {
        let snapshot = self.collector.graph.snapshot(&[]);
        snapshot
            .edges
            .iter()
            .map(|(dependent, owner)| format!("{dependent} -> {owner}"))
            .collect()
    }

    /// Returns whether no watch has reported the node; `None` if there is no node.
    pub(super) fn is_virtual(&self, uid: &str) -> Option<bool> {
        let graph = &self.collector.graph;
        Some(graph.view(graph.uid(uid)?)?.is_virtual)
    }

    /// Returns the invalid references that were reported, and forgets them.
    pub(super) fn take_invalid_references(&mut self) -> Vec<String> {
        std::mem::take(&mut self.collector.invalid)
    }
}
