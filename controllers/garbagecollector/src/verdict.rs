//! What becomes of an object, from how it stands with each of its owners. Pure: the whole rule is [`decide`].
//!
//! The source of the rule is `attemptToDeleteItem` of Kubernetes' garbage collector.

/// How an object stands with one of its owners.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// The owner exists and keeps it.
    Solid,
    /// The owner is proven not to exist.
    Dangling,
    /// The owner exists and waits for its dependents to be deleted.
    Waiting,
    /// Nobody can tell: the owner's kind is not served, or may not be read.
    Unknown,
    /// The object is of the cluster and its owner would be in a namespace, which cannot be. It is never collected for that.
    Misplaced,
}

/// How far an object is on its way out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Stage {
    /// Nobody has asked for its deletion.
    #[default]
    Present,
    /// Its deletion was asked for.
    Deleting,
    /// And it waits for its dependents to be deleted.
    Waiting,
    /// And it waits for its dependents to be orphaned.
    Orphaning,
}

/// What is known of an object when its fate is decided.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Case {
    /// How far it is on its way out.
    pub stage: Stage,
    /// It has the finalizer `orphan`.
    pub orphan: bool,
    /// It has the finalizer `foregroundDeletion`.
    pub foreground: bool,
    /// How many dependents it has.
    pub dependents: u32,
    /// How many of its dependents block its deletion.
    pub blocking: u32,
    /// One of its dependents waits for dependents in its turn: it may be a circle.
    pub circle: bool,
    /// How it stands with its owners, in their order.
    pub owners: Vec<Standing>,
}

/// What becomes of the dependents of what is deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Policy {
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
    Keep(Reason),
    /// It waits for nobody any more: take the finalizer `foregroundDeletion` away.
    Finish,
    /// Take the references to the owners at these places away, so that the solid ones alone are left.
    Release(Vec<usize>),
    /// Delete it. `unblock`: let it no longer block its owners first, to break a circle.
    Delete {
        /// What becomes of its dependents.
        policy: Policy,
        /// Break the circle.
        unblock: bool,
    },
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
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
pub fn decide(case: &Case) -> Verdict {
    match case.stage {
        Stage::Present => {}
        Stage::Waiting if case.blocking == 0 => return Verdict::Finish,
        Stage::Waiting => return Verdict::Keep(Reason::WaitsForDependents),
        Stage::Deleting | Stage::Orphaning => return Verdict::Keep(Reason::BeingDeleted),
    }
    let has = |standing| case.owners.contains(&standing);
    if case.owners.is_empty() {
        Verdict::Keep(Reason::NoOwner)
    } else if has(Standing::Misplaced) {
        Verdict::Keep(Reason::OwnerMisplaced)
    } else if has(Standing::Unknown) {
        Verdict::Keep(Reason::OwnerUnknown)
    } else if has(Standing::Solid) {
        // Owners that wait would wait for ever for what a solid one keeps.
        let places = case.owners.iter().enumerate();
        let released: Vec<_> = places
            .filter(|(_, standing)| **standing != Standing::Solid)
            .map(|(place, _)| place)
            .collect();
        if released.is_empty() {
            Verdict::Keep(Reason::Owned)
        } else {
            Verdict::Release(released)
        }
    } else if has(Standing::Waiting) && case.dependents > 0 {
        Verdict::Delete {
            policy: Policy::Foreground,
            unblock: case.circle,
        }
    } else {
        let policy = match (case.orphan, case.foreground) {
            (true, _) => Policy::Orphan,
            (false, true) => Policy::Foreground,
            (false, false) => Policy::Background,
        };
        Verdict::Delete { policy, unblock: false }
    }
}

#[cfg(test)]
mod tests {
    use Standing::{Dangling, Misplaced, Solid, Unknown, Waiting};
    use proptest::prelude::*;

    use super::*;

    fn owned_by(owners: &[Standing]) -> Case {
        Case {
            owners: owners.to_vec(),
            ..Case::default()
        }
    }

    fn delete(policy: Policy) -> Verdict {
        Verdict::Delete { policy, unblock: false }
    }

    #[test]
    fn owners_decide() {
        let keep = Verdict::Keep;
        let table = [
            (&[][..], keep(Reason::NoOwner)),
            (&[Solid], keep(Reason::Owned)),
            (&[Dangling], delete(Policy::Background)),
            (&[Waiting], delete(Policy::Background)),
            (&[Dangling, Waiting], delete(Policy::Background)),
            (&[Dangling, Solid, Waiting], Verdict::Release(vec![0, 2])),
            (&[Dangling, Unknown], keep(Reason::OwnerUnknown)),
            (&[Solid, Dangling, Unknown], keep(Reason::OwnerUnknown)),
            (&[Dangling, Misplaced], keep(Reason::OwnerMisplaced)),
            (&[Unknown, Misplaced], keep(Reason::OwnerMisplaced)),
        ];
        for (owners, expected) in table {
            assert_eq!(decide(&owned_by(owners)), expected, "{owners:?}");
        }
    }

    #[test]
    fn finalizers_that_are_there_already_are_honoured() {
        let with = |orphan, foreground| Case {
            orphan,
            foreground,
            ..owned_by(&[Dangling])
        };
        assert_eq!(decide(&with(true, false)), delete(Policy::Orphan));
        assert_eq!(decide(&with(true, true)), delete(Policy::Orphan));
        assert_eq!(decide(&with(false, true)), delete(Policy::Foreground));
    }

    #[test]
    fn what_has_dependents_itself_goes_in_the_foreground_of_an_owner_that_waits() {
        let case = Case {
            dependents: 1,
            ..owned_by(&[Waiting])
        };
        assert_eq!(decide(&case), delete(Policy::Foreground));
        let circle = Case { circle: true, ..case };
        let expected = Verdict::Delete {
            policy: Policy::Foreground,
            unblock: true,
        };
        assert_eq!(decide(&circle), expected);
        let dangling = Case {
            owners: vec![Dangling],
            ..circle
        };
        assert_eq!(decide(&dangling), delete(Policy::Background));
    }

    #[test]
    fn what_is_being_deleted_is_left_alone_but_for_its_own_finalizer() {
        let at = |stage| Case {
            stage,
            blocking: 2,
            ..owned_by(&[Dangling])
        };
        for stage in [Stage::Deleting, Stage::Orphaning] {
            assert_eq!(decide(&at(stage)), Verdict::Keep(Reason::BeingDeleted));
        }
        let waiting = at(Stage::Waiting);
        assert_eq!(decide(&waiting), Verdict::Keep(Reason::WaitsForDependents));
        assert_eq!(decide(&Case { blocking: 0, ..waiting }), Verdict::Finish);
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Solid),
            Just(Dangling),
            Just(Waiting),
            Just(Unknown),
            Just(Misplaced)
        ]
    }

    fn stage() -> impl Strategy<Value = Stage> {
        use Stage::{Deleting, Orphaning, Present};
        prop_oneof![3 => Just(Present), 1 => Just(Deleting), 1 => Just(Stage::Waiting), 1 => Just(Orphaning)]
    }

    proptest! {
        /// The promise that counts: one owner that keeps it, or may, and it is not deleted.
        #[test]
        fn nothing_is_deleted_while_an_owner_is_there_or_may_be(
            owners in proptest::collection::vec(standing(), 0..6),
            (stage, flags) in (stage(), any::<[bool; 3]>()),
            dependents in 0..3_u32,
        ) {
            let [orphan, foreground, circle] = flags;
            let owners_then = owners.clone();
            let case = Case { stage, orphan, foreground, circle, dependents, blocking: dependents, owners: owners_then };
            match decide(&case) {
                Verdict::Delete { .. } => {
                    let gone = |standing: &Standing| matches!(standing, Dangling | Waiting);
                    prop_assert!(!owners.is_empty() && owners.iter().all(gone) && stage == Stage::Present);
                }
                Verdict::Release(places) => {
                    let kept = (0..owners.len()).filter(|place| !places.contains(place));
                    prop_assert!(!places.is_empty() && kept.clone().count() > 0);
                    for place in kept {
                        prop_assert_eq!(owners[place], Solid);
                    }
                }
                Verdict::Finish | Verdict::Keep(_) => {}
            }
        }
    }
}
