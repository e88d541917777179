//! A stage for tables: objects that are created and seen one by one, and attempts that are made one by one.

use super::{
    collector::Collector,
    world::{Place, World, reference},
};
use crate::{Reference, Seen, verdict::Policy};

pub(super) const PODS: &str = "v1/Pod";
pub(super) const NODES: &str = "v1/Node";
pub(super) const SECRETS: &str = "v1/Secret";
pub(super) const ROLES: &str = "rbac.authorization.k8s.io/v1/Role";
pub(super) const OLD_ROLES: &str = "rbac.authorization.k8s.io/v1beta1/Role";
pub(super) const DEPLOYMENTS: &str = "apps/v1/Deployment";
/// Served by nobody any more.
pub(super) const OLD_DEPLOYMENTS: &str = "extensions/v1beta1/Deployment";

/// An object by kind, namespace, name and UID.
pub(super) type Named = (&'static str, &'static str, &'static str, &'static str);

pub(super) struct Stage {
    pub(super) world: World,
    pub(super) collector: Collector,
}

fn place(object: Named) -> Place {
    let namespace = (!object.1.is_empty()).then(|| object.1.into());
    (object.0.to_owned(), namespace, object.2.into())
}

pub(super) fn owner(object: Named) -> Reference {
    reference(object.0, object.2, object.3, false)
}

impl Stage {
    pub(super) fn new() -> Self {
        let kinds = [
            (PODS, true),
            (NODES, false),
            (SECRETS, true),
            (ROLES, true),
            (DEPLOYMENTS, true),
        ];
        let mut world = World::new(&kinds);
        world.alias(OLD_ROLES, ROLES);
        let mut collector = Collector::default();
        for (kind, _) in kinds {
            collector.list(&world, kind);
        }
        Self { world, collector }
    }

    /// Makes the object, with these owners, and shows nothing of it.
    pub(super) fn make(&mut self, object: Named, owners: &[Named]) {
        let owners = owners.iter().copied().map(owner).collect();
        let made = self
            .world
            .create(object.0, Some(object.1), object.2, Some(object.3), owners);
        assert!(made.is_some(), "{object:?} is there already");
    }

    pub(super) fn see(&mut self, object: Named) {
        self.collector.see(&self.world, &place(object));
    }

    pub(super) fn make_and_see(&mut self, object: Named, owners: &[Named]) {
        self.make(object, owners);
        self.see(object);
    }

    /// Deletes the object, and shows nothing of that.
    pub(super) fn end(&mut self, object: Named) -> Seen {
        let seen = Seen {
            metadata: self.world.objects[&place(object)].meta.clone(),
        };
        self.world.delete(&place(object), Policy::Background);
        seen
    }

    pub(super) fn end_and_see(&mut self, object: Named) {
        let seen = self.end(object);
        self.collector.see_end(object.0, &seen);
    }

    /// The end of an object that the collector itself has deleted.
    pub(super) fn see_end(&mut self, object: Named) {
        assert!(!self.is_there(object), "{object:?} is there");
        let mut seen = Seen::default();
        seen.metadata.uid = object.3.into();
        self.collector.see_end(object.0, &seen);
    }

    pub(super) fn change(&mut self, object: Named, owners: &[Named]) {
        let owners = owners.iter().copied().map(owner).collect();
        self.world
            .change(&place(object), |object| object.meta.owner_references = owners);
    }

    pub(super) fn is_there(&self, object: Named) -> bool {
        self.world.objects.contains_key(&place(object))
    }

    /// One attempt, at the object that has waited longest: what was asked of the apiserver.
    pub(super) fn attempt(&mut self) -> Vec<String> {
        self.world.asked.clear();
        if !self.collector.begin() {
            let later = std::mem::take(&mut self.collector.later);
            self.collector.attempts.extend(later);
            assert!(self.collector.begin(), "there is nothing to attempt");
        }
        while !self.collector.under_way.is_empty() {
            self.collector.step(&mut self.world, 0);
        }
        assert!(self.world.crimes.is_empty(), "{:?}", self.world.crimes);
        self.world.asked.clone()
    }

    /// What waits for an attempt, by UID, in its order.
    pub(super) fn queue(&self) -> Vec<String> {
        self.collector.queue()
    }

    /// What the graph shows of edges, as `dependent -> owner`.
    pub(super) fn edges(&self) -> Vec<String> {
        let shape = self.collector.graph.shape(&[]);
        shape
            .edges
            .iter()
            .map(|(dependent, owner)| format!("{dependent} -> {owner}"))
            .collect()
    }

    /// Whether the node is one that no watch has shown; `None` when there is none.
    pub(super) fn is_virtual(&self, uid: &str) -> Option<bool> {
        let graph = &self.collector.graph;
        Some(graph.view(graph.uid(uid)?)?.is_virtual)
    }

    /// What people were told of.
    pub(super) fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.collector.invalid)
    }
}
