//! Cycles of waiting owners: objects in foreground deletion of which each blocks the deletion of
//! the next, so that none of them would ever be deleted.
//!
//! The last object that becomes part of a cycle is queued by the change that makes it so, and its
//! attempt breaks the cycle. An object in several cycles is queued again by each change of its
//! references.

use std::collections::{HashMap, VecDeque};

use super::{
    Graph, Id,
    attempt::{Attempt, AttemptStep, Intent, NoopReason, ReadRequest, ReadResult},
};
use crate::{
    identity::Identity,
    metadata::{PartialMetadata, PartialObject},
    verdict::KeepReason,
};

impl Graph {
    /// Returns a shortest cycle of waiting owners through this node, or `None`. The first member is
    /// the node itself. Each member has a reference that blocks the deletion of the next, and the
    /// last one has such a reference to the first.
    pub(super) fn waiting_cycle(&self, id: Id) -> Option<Vec<Id>> {
        let mut references_to = self.references_to(id);
        // A cascade usually runs from the owners to the dependents, so this ends most searches.
        let is_blocked_by_waiting = references_to.any(|edge| {
            let edge = &self.edges[edge];
            edge.blocks && self.nodes[edge.dependent].is_waiting_for_dependents()
        });
        if !is_blocked_by_waiting || !self.nodes[id].is_waiting_for_dependents() {
            return None;
        }
        let mut reached_from = HashMap::new();
        let mut open = VecDeque::from([id]);
        while let Some(member) = open.pop_front() {
            for edge in self.references_of(member) {
                let edge = &self.edges[edge];
                if !edge.blocks || !self.nodes[edge.owner].is_waiting_for_dependents() {
                    continue;
                }
                if edge.owner == id {
                    let before = |member: &Id| reached_from.get(member).copied();
                    let mut members: Vec<_> = std::iter::successors(Some(member), before).collect();
                    members.reverse();
                    return Some(members);
                }
                reached_from.entry(edge.owner).or_insert_with(|| {
                    open.push_back(edge.owner);
                    member
                });
            }
        }
        None
    }

    /// Returns the next step of an attempt on an object in a cycle of waiting owners: reads every
    /// member, and then unsets `blockOwnerDeletion` in the object's references to the next member.
    pub(super) fn break_cycle(&self, id: Id, attempt: &Attempt) -> AttemptStep {
        let kept = AttemptStep::Noop(NoopReason::Kept(KeepReason::WaitsForDependents));
        let members = self.waiting_cycle(id).unwrap_or_default();
        let members: Vec<_> = members.into_iter().map(|member| self.identity(member)).collect();
        let Some(first) = members.first() else { return kept };
        let Some((item, seen)) = &attempt.live else {
            return AttemptStep::Read(ReadRequest {
                identity: first.clone(),
                is_item: true,
            });
        };
        let next = |place: usize| members.get(place + 1).unwrap_or(first);
        for (place, member) in members.iter().enumerate().skip(1) {
            match attempt.fact(member) {
                None => {
                    return AttemptStep::Read(ReadRequest {
                        identity: member.clone(),
                        is_item: false,
                    });
                }
                Some(ReadResult::Found(seen)) if is_blocking(seen, next(place)) => {}
                Some(ReadResult::Unknown) => return AttemptStep::Noop(NoopReason::Unknown),
                // The graph lags. The watch will report what has changed.
                Some(ReadResult::Found(_) | ReadResult::Absent | ReadResult::Misplaced) => return kept,
            }
        }
        if !is_blocking(seen, next(0)) {
            return kept;
        }
        AttemptStep::Apply(Intent::BreakCycle {
            item: item.clone(),
            version: seen.metadata.resource_version.clone(),
            references: blocking_references(&seen.metadata, next(0)).collect(),
            cycle: members.into_iter().skip(1).collect(),
        })
    }
}

/// Returns whether the object waits for its dependents and blocks the deletion of that owner.
fn is_blocking(seen: &PartialObject, owner: &Identity) -> bool {
    seen.metadata.is_waiting_for_dependents() && blocking_references(&seen.metadata, owner).next().is_some()
}

fn blocking_references<'a>(
    metadata: &'a PartialMetadata,
    owner: &'a Identity,
) -> impl Iterator<Item = (usize, Box<str>)> + 'a {
    let references = metadata.owner_references.iter().enumerate();
    let blocking = references.filter(|(_, reference)| reference.blocks && reference.uid == owner.uid);
    blocking.map(|(place, reference)| (place, reference.uid.clone()))
}
