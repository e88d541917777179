//! Decides what happens to an object, given the state of each of its owners. [`decide`] makes the
//! whole decision.
//!
//! It follows `attemptToDeleteItem` of Kubernetes' garbage collector.
//!
//! Architecture Invariant: pure.

/// The state of one of an object's owners.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnerState {
    /// The owner exists and keeps the object.
    Solid,
    /// The owner is proven absent.
    Dangling,
    /// The owner is proven absent. It was deleted with `Orphan` while some of its dependents could
    /// not be listed, so this dependent is orphaned now.
    Orphaned,
    /// The owner exists and waits until its dependents are deleted.
    WaitingForDependents,
    /// It is unknown whether the owner exists: its kind is not served, or the owner could not be
    /// read.
    Unknown,
    /// The object is cluster-scoped and the owner's kind is namespaced, which is invalid. The
    /// collector never deletes an object because of such a reference.
    Misplaced,
}

impl OwnerState {
    /// Returns the word for this state in logs and on pages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Solid => "present",
            Self::Dangling => "absent",
            Self::Orphaned => "absent; it was deleted with propagationPolicy Orphan",
            Self::WaitingForDependents => "waiting for its dependents to be deleted",
            Self::Unknown => "unknown",
            Self::Misplaced => "namespaced, which is invalid for the owner of a cluster-scoped object",
        }
    }
}

/// How far the deletion of an object has progressed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum DeletionStage {
    /// Nobody has requested its deletion.
    #[default]
    Present,
    /// Its deletion has been requested.
    Deleting,
    /// It is being deleted and waits until its dependents are deleted.
    WaitingForDependents,
    /// It is being deleted and waits until its dependents are orphaned.
    Orphaning,
}

/// The facts about an object that [`decide`] takes into account.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct DecisionInput {
    /// How far its deletion has progressed.
    pub(crate) stage: DeletionStage,
    /// Whether it has the finalizer `orphan`.
    pub(crate) orphan: bool,
    /// Whether it has the finalizer `foregroundDeletion`.
    pub(crate) foreground: bool,
    /// The number of its dependents.
    pub(crate) dependents: u32,
    /// The number of its dependents that block its deletion.
    pub(crate) blocking: u32,
    /// Whether there may be a cycle. If the object exists, one of its dependents waits for
    /// dependents too. If it waits itself, it belongs to a cycle of waiting owners, of which each
    /// blocks the deletion of the next.
    pub(crate) cycle: bool,
    /// The states of its owners, in the order of its references.
    pub(crate) owners: Vec<OwnerState>,
}

impl DecisionInput {
    /// Returns the positions of the references to owners in such a state.
    fn places(&self, is_meant: impl Fn(OwnerState) -> bool) -> Vec<usize> {
        let places = self.owners.iter().enumerate();
        let places = places.filter(|(_, owner_state)| is_meant(**owner_state));
        places.map(|(place, _)| place).collect()
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PropagationPolicy {
    /// The collector deletes them later.
    Background,
    /// The collector deletes them first.
    Foreground,
    /// They stay, without their references to it.
    Orphan,
}

/// The action to take on an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Do nothing.
    Keep(KeepReason),
    /// Remove the finalizer `foregroundDeletion`: no dependent blocks the deletion any longer.
    RemoveFinalizer,
    /// Unset `blockOwnerDeletion` in its reference to an owner that waits for it: it waits for that
    /// owner too.
    BreakCycle,
    /// Remove the references at these positions.
    RemoveReferences(Vec<usize>),
    /// Delete the object.
    Delete {
        /// What happens to its dependents.
        policy: PropagationPolicy,
        /// Whether to unset `blockOwnerDeletion` in its references first, to break a cycle.
        unblock: bool,
    },
}

/// Why an object is left as it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeepReason {
    /// It is already being deleted.
    BeingDeleted,
    /// It is being deleted and waits for dependents that block its deletion.
    WaitsForDependents,
    /// It has no owner.
    NoOwner,
    /// All of its owners exist and keep it.
    Owned,
    /// It is unknown whether one of its owners exists.
    OwnerUnknown,
    /// It is cluster-scoped and one of its owners is namespaced.
    OwnerMisplaced,
}

/// Returns the action to take on an object.
pub(crate) fn decide(case: &DecisionInput) -> Verdict {
    match case.stage {
        DeletionStage::Present => {}
        DeletionStage::WaitingForDependents if case.blocking == 0 => return Verdict::RemoveFinalizer,
        DeletionStage::WaitingForDependents if case.cycle => return Verdict::BreakCycle,
        DeletionStage::WaitingForDependents => return Verdict::Keep(KeepReason::WaitsForDependents),
        DeletionStage::Deleting | DeletionStage::Orphaning => return Verdict::Keep(KeepReason::BeingDeleted),
    }
    let has = |owner_state| case.owners.contains(&owner_state);
    if case.owners.is_empty() {
        Verdict::Keep(KeepReason::NoOwner)
    } else if has(OwnerState::Orphaned) {
        // The other owners decide once these references are gone, as after any orphaning.
        Verdict::RemoveReferences(case.places(|owner_state| owner_state == OwnerState::Orphaned))
    } else if has(OwnerState::Misplaced) {
        Verdict::Keep(KeepReason::OwnerMisplaced)
    } else if has(OwnerState::Unknown) {
        Verdict::Keep(KeepReason::OwnerUnknown)
    } else if has(OwnerState::Solid) {
        // The solid owner keeps the object. Another owner that waits for its dependents would wait
        // for the object forever, so the reference to it is removed.
        let released = case.places(|owner_state| owner_state != OwnerState::Solid);
        if released.is_empty() {
            Verdict::Keep(KeepReason::Owned)
        } else {
            Verdict::RemoveReferences(released)
        }
    } else if has(OwnerState::WaitingForDependents) && case.dependents > 0 {
        Verdict::Delete {
            policy: PropagationPolicy::Foreground,
            unblock: case.cycle,
        }
    } else {
        let policy = match (case.orphan, case.foreground) {
            (true, _) => PropagationPolicy::Orphan,
            (false, true) => PropagationPolicy::Foreground,
            (false, false) => PropagationPolicy::Background,
        };
        Verdict::Delete { policy, unblock: false }
    }
}

#[cfg(test)]
mod tests {
    use OwnerState::{Dangling, Misplaced, Orphaned, Solid, Unknown, WaitingForDependents};
    use proptest::prelude::*;

    use super::*;

    fn owned_by(owners: &[OwnerState]) -> DecisionInput {
        DecisionInput {
            owners: owners.to_vec(),
            ..DecisionInput::default()
        }
    }

    fn delete(policy: PropagationPolicy) -> Verdict {
        Verdict::Delete { policy, unblock: false }
    }

    #[test]
    fn owner_states_decide_the_verdict() {
        let keep = Verdict::Keep;
        let table = [
            (&[][..], keep(KeepReason::NoOwner)),
            (&[Solid], keep(KeepReason::Owned)),
            (&[Dangling], delete(PropagationPolicy::Background)),
            (&[WaitingForDependents], delete(PropagationPolicy::Background)),
            (&[Dangling, WaitingForDependents], delete(PropagationPolicy::Background)),
            (
                &[Dangling, Solid, WaitingForDependents],
                Verdict::RemoveReferences(vec![0, 2]),
            ),
            (&[Dangling, Unknown], keep(KeepReason::OwnerUnknown)),
            (&[Solid, Dangling, Unknown], keep(KeepReason::OwnerUnknown)),
            (&[Dangling, Misplaced], keep(KeepReason::OwnerMisplaced)),
            (&[Unknown, Misplaced], keep(KeepReason::OwnerMisplaced)),
            (&[Orphaned], Verdict::RemoveReferences(vec![0])),
            (&[Dangling, Orphaned, Solid], Verdict::RemoveReferences(vec![1])),
            (&[Unknown, Misplaced, Orphaned], Verdict::RemoveReferences(vec![2])),
        ];
        for (owners, expected) in table {
            assert_eq!(decide(&owned_by(owners)), expected, "{owners:?}");
        }
    }

    #[test]
    fn existing_finalizers_choose_the_propagation_policy() {
        let with = |orphan, foreground| DecisionInput {
            orphan,
            foreground,
            ..owned_by(&[Dangling])
        };
        assert_eq!(decide(&with(true, false)), delete(PropagationPolicy::Orphan));
        assert_eq!(decide(&with(true, true)), delete(PropagationPolicy::Orphan));
        assert_eq!(decide(&with(false, true)), delete(PropagationPolicy::Foreground));
    }

    #[test]
    fn object_with_dependents_is_deleted_in_the_foreground_for_a_waiting_owner() {
        let case = DecisionInput {
            dependents: 1,
            ..owned_by(&[WaitingForDependents])
        };
        assert_eq!(decide(&case), delete(PropagationPolicy::Foreground));
        let cycle = DecisionInput { cycle: true, ..case };
        let expected = Verdict::Delete {
            policy: PropagationPolicy::Foreground,
            unblock: true,
        };
        assert_eq!(decide(&cycle), expected);
        let dangling = DecisionInput {
            owners: vec![Dangling],
            ..cycle
        };
        assert_eq!(decide(&dangling), delete(PropagationPolicy::Background));
    }

    #[test]
    fn object_being_deleted_is_kept_until_its_finalizer_can_be_removed() {
        let at = |stage| DecisionInput {
            stage,
            blocking: 2,
            ..owned_by(&[Dangling])
        };
        for stage in [DeletionStage::Deleting, DeletionStage::Orphaning] {
            assert_eq!(decide(&at(stage)), Verdict::Keep(KeepReason::BeingDeleted));
        }
        let waiting = at(DeletionStage::WaitingForDependents);
        assert_eq!(decide(&waiting), Verdict::Keep(KeepReason::WaitsForDependents));
        assert_eq!(
            decide(&DecisionInput {
                cycle: true,
                ..waiting.clone()
            }),
            Verdict::BreakCycle
        );
        assert_eq!(
            decide(&DecisionInput { blocking: 0, ..waiting }),
            Verdict::RemoveFinalizer
        );
    }

    fn owner_state() -> impl Strategy<Value = OwnerState> {
        prop_oneof![
            Just(Solid),
            Just(Dangling),
            Just(Orphaned),
            Just(WaitingForDependents),
            Just(Unknown),
            Just(Misplaced)
        ]
    }

    fn stage() -> impl Strategy<Value = DeletionStage> {
        use DeletionStage::{Deleting, Orphaning, Present};
        prop_oneof![3 => Just(Present), 1 => Just(Deleting), 1 => Just(DeletionStage::WaitingForDependents), 1 => Just(Orphaning)]
    }

    proptest! {
        /// The main guarantee: an object is never deleted while one of its owners keeps it, or may
        /// keep it.
        #[test]
        fn no_object_is_deleted_while_an_owner_exists_or_may_exist(
            owners in proptest::collection::vec(owner_state(), 0..6),
            (stage, flags) in (stage(), any::<[bool; 3]>()),
            dependents in 0..3_u32,
        ) {
            let [orphan, foreground, cycle] = flags;
            let owners_then = owners.clone();
            let blocking = dependents;
            let case =
                DecisionInput { stage, orphan, foreground, dependents, blocking, cycle, owners: owners_then };
            match decide(&case) {
                Verdict::Delete { .. } => {
                    let gone = |owner_state: &OwnerState| matches!(owner_state, Dangling | WaitingForDependents);
                    prop_assert!(!owners.is_empty() && owners.iter().all(gone) && stage == DeletionStage::Present);
                }
                Verdict::RemoveReferences(places) if owners.contains(&Orphaned) => {
                    prop_assert!(places.iter().all(|place| owners[*place] == Orphaned));
                }
                Verdict::RemoveReferences(places) => {
                    let kept = (0..owners.len()).filter(|place| !places.contains(place));
                    prop_assert!(!places.is_empty() && kept.clone().count() > 0);
                    for place in kept {
                        prop_assert_eq!(owners[place], Solid);
                    }
                }
                Verdict::BreakCycle => prop_assert!(cycle && stage == DeletionStage::WaitingForDependents),
                Verdict::RemoveFinalizer | Verdict::Keep(_) => {}
            }
        }
    }
}
