//! What becomes of an object, from how it stands with each of its owners. Pure: the whole rule is [`decide`].
//!
//! The source of the rule is `attemptToDeleteItem` of Kubernetes' garbage collector.

/// How an object stands with one of its owners.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OwnerState {
    /// The owner exists and keeps it.
    Solid,
    /// The owner is proven not to exist.
    Dangling,
    /// The owner exists and waits for its dependents to be deleted.
    WaitingForDependents,
    /// Nobody can tell: the owner's kind is not served, or may not be read.
    Unknown,
    /// The object is of the cluster and its owner would be in a namespace, which cannot be. It is never collected for that.
    Misplaced,
}

/// How far an object is on its way out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DeletionStage {
    /// Nobody has asked for its deletion.
    #[default]
    Present,
    /// Its deletion was asked for.
    Deleting,
    /// And it waits for its dependents to be deleted.
    WaitingForDependents,
    /// And it waits for its dependents to be orphaned.
    Orphaning,
}

/// What is known of an object when its fate is decided.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DecisionInput {
    /// How far it is on its way out.
    pub stage: DeletionStage,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// How many dependents it has.
    pub dependents: u32,
    /// How many of its dependents block its deletion.
    pub blocking: u32,
    /// One of its dependents waits for dependents in its turn: it may be a cycle.
    pub cycle: bool,
    /// How it stands with its owners, in their order.
    pub owners: Vec<OwnerState>,
}

/// What becomes of the dependents of what is deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PropagationPolicy {
    /// They are collected later.
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Nothing.
    Keep(KeepReason),
    /// It waits for nobody any more: take the finalizer `foregroundDeletion` away.
    RemoveFinalizer,
    /// Take the references to the owners at these places away, so that the solid ones alone are left.
    RemoveReferences(Vec<usize>),
    /// Delete it. `unblock`: let it no longer block its owners first, to break a cycle.
    Delete {
        /// What becomes of its dependents.
        policy: PropagationPolicy,
        /// Break the cycle.
        unblock: bool,
    },
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeepReason {
    /// It is being deleted already.
    BeingDeleted,
    /// It is being deleted and waits for dependents that block it.
    WaitsForDependents,
    /// It has no owner.
    NoOwner,
    /// Each of its owners keeps it.
    Owned,
    /// One of its owners cannot be asked for.
    OwnerUnknown,
    /// One of its owners would be in a namespace, and it is not.
    OwnerMisplaced,
}

/// The rule.
pub fn decide(case: &DecisionInput) -> Verdict {
    match case.stage {
        DeletionStage::Present => {}
        DeletionStage::WaitingForDependents if case.blocking == 0 => return Verdict::RemoveFinalizer,
        DeletionStage::WaitingForDependents => return Verdict::Keep(KeepReason::WaitsForDependents),
        DeletionStage::Deleting | DeletionStage::Orphaning => return Verdict::Keep(KeepReason::BeingDeleted),
    }
    let has = |owner_state| case.owners.contains(&owner_state);
    if case.owners.is_empty() {
        Verdict::Keep(KeepReason::NoOwner)
    } else if has(OwnerState::Misplaced) {
        Verdict::Keep(KeepReason::OwnerMisplaced)
    } else if has(OwnerState::Unknown) {
        Verdict::Keep(KeepReason::OwnerUnknown)
    } else if has(OwnerState::Solid) {
        // Owners that wait would wait for ever for what a solid one keeps.
        let places = case.owners.iter().enumerate();
        let released: Vec<_> = places
            .filter(|(_, owner_state)| **owner_state != OwnerState::Solid)
            .map(|(place, _)| place)
            .collect();
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
    use OwnerState::{Dangling, Misplaced, Solid, Unknown, WaitingForDependents};
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
    fn owners_decide() {
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
        ];
        for (owners, expected) in table {
            assert_eq!(decide(&owned_by(owners)), expected, "{owners:?}");
        }
    }

    #[test]
    fn finalizers_that_are_there_already_are_honoured() {
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
    fn what_has_dependents_itself_goes_in_the_foreground_of_an_owner_that_waits() {
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
    fn what_is_being_deleted_is_left_alone_but_for_its_own_finalizer() {
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
            decide(&DecisionInput { blocking: 0, ..waiting }),
            Verdict::RemoveFinalizer
        );
    }

    fn owner_state() -> impl Strategy<Value = OwnerState> {
        prop_oneof![
            Just(Solid),
            Just(Dangling),
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
        /// The promise that counts: one owner that keeps it, or may, and it is not deleted.
        #[test]
        fn nothing_is_deleted_while_an_owner_is_there_or_may_be(
            owners in proptest::collection::vec(owner_state(), 0..6),
            (stage, flags) in (stage(), any::<[bool; 3]>()),
            dependents in 0..3_u32,
        ) {
            let [orphan, foreground, cycle] = flags;
            let owners_then = owners.clone();
            let case = DecisionInput { stage, orphan, foreground, cycle, dependents, blocking: dependents, owners: owners_then };
            match decide(&case) {
                Verdict::Delete { .. } => {
                    let gone = |owner_state: &OwnerState| matches!(owner_state, Dangling | WaitingForDependents);
                    prop_assert!(!owners.is_empty() && owners.iter().all(gone) && stage == DeletionStage::Present);
                }
                Verdict::RemoveReferences(places) => {
                    let kept = (0..owners.len()).filter(|place| !places.contains(place));
                    prop_assert!(!places.is_empty() && kept.clone().count() > 0);
                    for place in kept {
                        prop_assert_eq!(owners[place], Solid);
                    }
                }
                Verdict::RemoveFinalizer | Verdict::Keep(_) => {}
            }
        }
    }
}
