//! Read-only views of the graph, for the debug pages.

use std::collections::BTreeSet;

use super::{Edge, Graph, Id, Kind, Node};
use crate::{
    identity::Identity,
    metadata::{Finalizers, PartialMetadata, PartialObject, Reference},
    uid::Uid,
    verdict::{DeletionStage, OwnerState, Verdict, decide},
};

/// The number of blocking dependents that a view names.
const NAMED: usize = 5;

/// One node, as the debug pages show it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeView {
    /// Its identity.
    pub(crate) identity: Identity,
    /// The version in which a watch has reported it; empty if none has.
    pub(crate) version: Box<str>,
    /// Whether it is known only from references, because no watch reports it.
    pub(crate) is_virtual: bool,
    /// Whether it is proven absent, and others still refer to it.
    pub(crate) is_absent: bool,
    /// How far its deletion has progressed.
    pub(crate) stage: DeletionStage,
    /// The number of references to it.
    pub(crate) dependents: u32,
    /// The number of references to it that block its deletion.
    pub(crate) blocking: u32,
    /// Some of the dependents that block its deletion.
    pub(crate) blockers: Vec<Identity>,
    /// Its owners, whether it blocks their deletion, and their states; the state is `None` if a
    /// request is needed to find it out.
    pub(crate) owners: Vec<(Identity, bool, Option<OwnerState>)>,
    /// The action that the collector would take, if no request is needed to decide.
    pub(crate) verdict: Option<Verdict>,
}

impl NodeView {
    /// Returns the apiVersions and kinds of the object and its owners.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        let owners = self.owners.iter().map(|(owner, ..)| owner);
        let all = std::iter::once(&self.identity).chain(owners);
        all.map(|identity| (&*identity.api_version, &*identity.kind))
    }

    /// Returns whether one of its owners was deleted with `Orphan` before this dependent was found.
    pub(crate) fn has_orphaned_owner(&self) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|(.., owner_state)| *owner_state == Some(OwnerState::Orphaned))
    }
}

/// A part of the graph: nodes and edges.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GraphSnapshot {
    /// The nodes, sorted by UID.
    pub(crate) nodes: Vec<NodeView>,
    /// The edges as pairs of UIDs, from dependent to owner.
    pub(crate) edges: Vec<(Box<str>, Box<str>)>,
}

impl GraphSnapshot {
    /// Sorts the nodes and edges by UID.
    pub fn sort(&mut self) {
        self.nodes.sort_by(|a, b| a.identity.uid.cmp(&b.identity.uid));
        self.edges.sort();
    }
}

impl Graph {
    pub(super) fn identity(&self, id: Id) -> Identity {
        let node = &self.nodes[id];
        self.build_identity(node.kind, self.namespace_of(id), &node.name, node.uid)
    }

    pub(super) fn build_identity(&self, kind: u32, namespace: Option<&str>, name: &str, uid: Uid) -> Identity {
        let (api_version, kind) = match self.kinds.get(kind).map(AsRef::as_ref) {
            Some(Kind { api_version, kind }) => (api_version.clone(), kind.clone()),
            None => Default::default(),
        };
        Identity {
            api_version,
            kind,
            namespace: namespace.map(Into::into),
            name: name.into(),
            uid: self.uids.text(uid).into(),
        }
    }

    /// Returns the owner of an edge, as the dependent's reference denotes it.
    pub(super) fn referenced_owner(&self, edge: Id) -> Identity {
        let Edge { owner, dependent, .. } = self.edges[edge];
        let (kind, name) = self.reference_coordinates(edge);
        self.build_identity(kind, self.namespace_of(dependent), name, self.nodes[owner].uid)
    }

    fn owner_references(&self, id: Id) -> Vec<Reference> {
        let reference = |edge| {
            let Identity {
                api_version,
                kind,
                name,
                uid,
                ..
            } = self.referenced_owner(edge);
            Reference {
                api_version,
                kind,
                name,
                uid,
                blocks: self.edges[edge].blocks,
            }
        };
        self.references_of(id).map(reference).collect()
    }

    /// Returns the object as watches have reported it.
    pub(super) fn partial_object(&self, id: Id) -> PartialObject {
        let node = &self.nodes[id];
        let version = match node.version {
            super::NO_VERSION => String::new(),
            version => version.to_string(),
        };
        PartialObject {
            metadata: PartialMetadata {
                namespace: self.namespace_of(id).map(Into::into),
                name: node.name.clone(),
                uid: self.uids.text(node.uid).into(),
                resource_version: version.into(),
                deleting: node.is_deleting(),
                finalizers: Finalizers {
                    foreground: node.flags.has(super::Flags::FOREGROUND),
                    orphan: node.flags.has(super::Flags::ORPHAN),
                },
                owner_references: self.owner_references(id),
            },
        }
    }

    /// Returns whether the object is known only from references.
    pub fn is_virtual(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| !self.nodes[id].is_observed())
    }

    /// Returns whether objects refer to this owner in these coordinates, and it is neither known to
    /// exist in them nor proven absent.
    pub fn is_unproven_owner(&self, owner: &Identity) -> bool {
        let Some(id) = self.uids.find(&owner.uid).and_then(|uid| self.find(uid)) else {
            return false;
        };
        let is_meant = |edge: &Id| {
            let dependent = &self.nodes[self.edges[*edge].dependent];
            self.names_owner(*edge, owner) && self.is_namespace(dependent.namespace, owner.namespace.as_deref())
        };
        let node = &self.nodes[id];
        let is_it = *node.name == *owner.name && self.is_kind_of_group(node.kind, &owner.api_version, &owner.kind);
        !(node.is_observed() && is_it) && self.references_to(id).any(|edge| is_meant(&edge)) && !self.is_absent(owner)
    }

    /// Returns the printed identity of an object, or its UID if it has left the graph.
    pub fn name(&self, uid: Uid) -> String {
        let known = self.find(uid).map(|id| self.identity(id).to_string());
        known.unwrap_or_else(|| self.text(uid))
    }

    /// Returns the namespace and the name of an object, as in `default/web`, or its UID if it has
    /// left the graph.
    pub fn key(&self, uid: Uid) -> String {
        let Some(id) = self.find(uid) else {
            return self.text(uid);
        };
        let name = &self.nodes[id].name;
        self.namespace_of(id)
            .map_or_else(|| name.to_string(), |namespace| format!("{namespace}/{name}"))
    }

    /// Returns a view of a node.
    pub fn view(&self, uid: Uid) -> Option<NodeView> {
        self.find(uid).map(|id| self.view_of(id))
    }

    fn view_of(&self, id: Id) -> NodeView {
        let node = &self.nodes[id];
        let identity = self.identity(id);
        let seen = self.partial_object(id);
        let owner = |edge| {
            (
                self.referenced_owner(edge),
                self.edges[edge].blocks,
                self.known_owner_state(edge),
            )
        };
        let owners: Vec<_> = self.references_of(id).map(owner).collect();
        let known: Option<Vec<_>> = owners
            .iter()
            .map(|(identity, _, owner_state)| Some((identity.clone(), (*owner_state)?)))
            .collect();
        let verdict = known
            .filter(|_| node.is_observed())
            .map(|owners| decide(&self.decision_input(id, &seen, &owners)));
        NodeView {
            is_virtual: !node.is_observed(),
            is_absent: !node.is_observed() && self.is_absent(&identity),
            stage: seen.metadata.stage(),
            dependents: node.dependent_count,
            blocking: node.blocking,
            blockers: self.blockers(id),
            identity,
            owners,
            verdict,
            version: seen.metadata.resource_version,
        }
    }

    /// Returns every node that has an edge. If `around` is not empty, returns only those of its
    /// nodes that have an edge, and every node connected to them.
    pub fn select(&self, around: &[&str]) -> Vec<Uid> {
        let is_linked = |node: &Node| node.owners.is_some() || node.dependents.is_some();
        let chosen: BTreeSet<Id> = if around.is_empty() {
            let nodes = self.nodes.iter();
            nodes.filter(|(_, node)| is_linked(node)).map(|(id, _)| id).collect()
        } else {
            let known = around.iter().filter_map(|uid| self.find(self.uids.find(uid)?));
            // Objects that are proven absent are not shown.
            let linked = known.filter(|id| is_linked(&self.nodes[*id]));
            let there = linked.filter(|id| self.nodes[*id].is_observed() || !self.is_absent(&self.identity(*id)));
            self.around(there.collect())
        };
        chosen.iter().map(|id| self.nodes[*id].uid).collect()
    }

    /// Adds views of these nodes and their edges to a snapshot, if they are still in the graph.
    pub fn add_to_snapshot(&self, uids: &[Uid], snapshot: &mut GraphSnapshot) {
        for id in uids.iter().filter_map(|uid| self.find(*uid)) {
            let view = self.view_of(id);
            for edge in self.references_of(id) {
                let owner = self.uids.text(self.nodes[self.edges[edge].owner].uid);
                snapshot.edges.push((view.identity.uid.clone(), owner.into()));
            }
            snapshot.nodes.push(view);
        }
    }

    /// Returns a sorted snapshot of the selected nodes.
    #[cfg(test)]
    pub(crate) fn snapshot(&self, around: &[&str]) -> GraphSnapshot {
        let mut snapshot = GraphSnapshot::default();
        self.add_to_snapshot(&self.select(around), &mut snapshot);
        snapshot.sort();
        snapshot
    }

    /// Returns these nodes and everything that is connected with them by edges, in either
    /// direction.
    fn around(&self, mut open: Vec<Id>) -> BTreeSet<Id> {
        let mut found: BTreeSet<_> = open.iter().copied().collect();
        while let Some(id) = open.pop() {
            let owners = self.references_of(id).map(|edge| self.edges[edge].owner);
            for next in owners.chain(self.dependents(id)) {
                if found.insert(next) {
                    open.push(next);
                }
            }
        }
        found
    }

    /// Returns some of the dependents that block the deletion of a node.
    fn blockers(&self, id: Id) -> Vec<Identity> {
        let blocking = self.references_to(id).filter(|edge| self.edges[*edge].is_blocking());
        blocking
            .take(NAMED)
            .map(|edge| self.identity(self.edges[edge].dependent))
            .collect()
    }
}
