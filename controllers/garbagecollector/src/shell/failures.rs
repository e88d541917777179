//! The objects whose last attempt failed, and the cascades that are not finished.
//!
//! It reads no clock: the time is an argument.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};

use portreeve_garbagecollector_graph::{Identity, Uid};
use tokio::time::Instant;

/// An apiVersion and a kind.
pub(super) type Kind = (Box<str>, Box<str>);

/// The failures and cascades of one collector.
#[derive(Default)]
pub(super) struct FailureTracker {
    /// The time of the first failure and the latest reason, by object and whether its dependents
    /// were to be orphaned.
    failing: HashMap<Task, (Instant, String)>,
    /// Objects of which it is unknown whether an owner exists. They are retried when more resources
    /// are served or synced.
    unknown: HashSet<Uid>,
    /// Owners of which it is unknown whether they exist, until a read finds that out: by apiVersion
    /// and kind.
    unknown_owners: HashMap<Kind, HashSet<Identity>>,
    /// The time at which the deletion of an owner's dependents began.
    cascades: HashMap<Uid, Instant>,
}

/// What attempts are made for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Task {
    /// To process an object.
    Collect(Uid),
    /// To orphan the dependents of an owner.
    Orphan(Uid),
}

impl Task {
    pub(super) fn uid(self) -> Uid {
        match self {
            Self::Collect(uid) | Self::Orphan(uid) => uid,
        }
    }
}

impl FailureTracker {
    /// Records a failed attempt. Returns whether the failure is new: the last attempt did not fail,
    /// or had another reason.
    pub(super) fn failed(&mut self, task: Task, reason: String, is_unknown: bool, now: Instant) -> bool {
        if is_unknown {
            self.unknown.insert(task.uid());
        } else if let Task::Collect(uid) = task {
            // The existence of the owners was known this time; the failure has another reason.
            self.unknown.remove(&uid);
        }
        let before = self.failing.get(&task);
        let is_new = before.is_none_or(|(_, before)| *before != reason);
        let since = before.map_or(now, |(since, _)| *since);
        self.failing.insert(task, (since, reason));
        is_new
    }

    /// Records a successful attempt.
    pub(super) fn succeeded(&mut self, task: Task) {
        self.failing.remove(&task);
        if let Task::Collect(uid) = task {
            self.unknown.remove(&uid);
        }
    }

    /// Records that it is unknown whether an owner exists. Returns whether it is the only such
    /// owner of its kind.
    pub(super) fn owner_unknown(&mut self, owner: &Identity) -> bool {
        let of_kind = self.unknown_owners.entry(kind_of(owner)).or_default();
        let is_first = of_kind.is_empty();
        of_kind.insert(owner.clone());
        is_first
    }

    /// Records that it is known whether an owner exists.
    pub(super) fn owner_known(&mut self, owner: &Identity) {
        if !self.unknown_owners.is_empty()
            && let Some(of_kind) = self.unknown_owners.get_mut(&kind_of(owner))
        {
            of_kind.remove(owner);
        }
    }

    /// Returns the number of UIDs of owners of each kind of which it is unknown whether they exist.
    /// Forgets the owners for which `is_unknown` returns `false`, because nothing refers to them
    /// any longer.
    pub(super) fn unknown_owners(&mut self, is_unknown: impl Fn(&Identity) -> bool) -> Vec<(Kind, usize)> {
        self.unknown_owners.retain(|_, of_kind| {
            of_kind.retain(&is_unknown);
            !of_kind.is_empty()
        });
        let kinds = self.unknown_owners.iter().map(|(kind, of_kind)| {
            let uids: HashSet<_> = of_kind.iter().map(|owner| &owner.uid).collect();
            (kind.clone(), uids.len())
        });
        kinds.collect()
    }

    /// Returns the objects of which it is unknown whether an owner exists, and forgets them.
    pub(super) fn take_unknown(&mut self) -> HashSet<Uid> {
        mem::take(&mut self.unknown)
    }

    /// Returns how long attempts have been failing.
    pub(super) fn duration(&self, task: Task, now: Instant) -> Duration {
        let failing = self.failing.get(&task);
        failing.map(|(since, _)| now.duration_since(*since)).unwrap_or_default()
    }

    /// Returns why the last attempt to process an object failed, and how long attempts have been
    /// failing.
    pub(super) fn reason(&self, uid: Uid, now: Instant) -> Option<(String, Duration)> {
        let mut tasks = [Task::Collect(uid), Task::Orphan(uid)].into_iter();
        let (since, reason) = tasks.find_map(|task| self.failing.get(&task))?;
        Some((reason.clone(), now.duration_since(*since)))
    }

    /// Returns how long attempts to process one object have been failing, for the object that has
    /// been failing longest. Objects of which it is unknown whether an owner exists may wait
    /// indefinitely, so they do not count.
    pub(super) fn longest(&self, now: Instant) -> Option<Duration> {
        let known = self
            .failing
            .iter()
            .filter(|(task, _)| !self.unknown.contains(&task.uid()));
        known.map(|(_, (since, _))| now.duration_since(*since)).max()
    }

    /// Records that the deletion of an owner's dependents has begun.
    pub(super) fn cascade_started(&mut self, uid: Uid, now: Instant) {
        self.cascades.insert(uid, now);
    }

    /// Records that an owner's last dependent is gone. Returns how long the cascade took.
    pub(super) fn cascade_finished(&mut self, uid: Uid, now: Instant) -> Option<Duration> {
        self.cascades.remove(&uid).map(|since| now.duration_since(since))
    }
}

fn kind_of(owner: &Identity) -> Kind {
    (owner.api_version.clone(), owner.kind.clone())
}

#[cfg(test)]
mod tests {
    use portreeve_garbagecollector_graph::{FollowUps, Graph, PartialObject};

    use super::*;

    fn uids() -> [Uid; 2] {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        ["a", "b"].map(|text| {
            let mut pod = PartialObject::default();
            pod.metadata.uid = text.into();
            graph.observe(pods, &pod, &mut FollowUps::default());
            graph.uid(text).unwrap()
        })
    }

    #[test]
    fn failure_is_new_until_its_reason_repeats_and_dates_from_the_first() {
        let [a, _] = uids();
        let mut tracker = FailureTracker::default();
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        assert!(tracker.failed(Task::Collect(a), "away".to_owned(), false, at(0)));
        assert!(!tracker.failed(Task::Collect(a), "away".to_owned(), false, at(5)));
        assert!(tracker.failed(Task::Collect(a), "forbidden".to_owned(), false, at(6)));
        let reason = tracker.reason(a, at(7));
        assert_eq!(reason, Some(("forbidden".to_owned(), Duration::from_secs(7))));
        tracker.succeeded(Task::Collect(a));
        assert_eq!((tracker.reason(a, at(8)), tracker.longest(at(8))), (None, None));
    }

    #[test]
    fn object_with_an_unknown_owner_does_not_count_as_failing() {
        let [a, b] = uids();
        let mut tracker = FailureTracker::default();
        let began = Instant::now();
        let later = began + Duration::from_secs(9);
        tracker.failed(Task::Collect(a), "unknown".to_owned(), true, began);
        assert_eq!(tracker.longest(later), None);
        tracker.failed(Task::Orphan(b), "away".to_owned(), false, later);
        assert_eq!(tracker.longest(later), Some(Duration::ZERO));
        assert_eq!(tracker.take_unknown(), [a].into());
        assert_eq!(tracker.longest(later), Some(Duration::from_secs(9)));
    }

    #[test]
    fn unknown_owners_are_counted_by_uid_until_they_are_known() {
        let owner = |kind: &str, namespace: &str, uid: &str| Identity {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: Some(namespace.into()),
            name: "a".into(),
            uid: uid.into(),
        };
        let mut tracker = FailureTracker::default();
        assert!(tracker.owner_unknown(&owner("Pod", "n", "1")));
        assert!(!tracker.owner_unknown(&owner("Pod", "m", "1")) && !tracker.owner_unknown(&owner("Pod", "n", "2")));
        assert!(tracker.owner_unknown(&owner("Node", "n", "3")));
        let count = |tracker: &mut FailureTracker, is_unknown: fn(&Identity) -> bool| {
            let mut counts = tracker.unknown_owners(is_unknown);
            counts.sort();
            let counts = counts.iter().map(|((_, kind), count)| format!("{kind} {count}"));
            counts.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(count(&mut tracker, |_| true), "Node 1, Pod 2");
        tracker.owner_known(&owner("Pod", "n", "2"));
        tracker.owner_known(&owner("Service", "n", "2"));
        assert_eq!(count(&mut tracker, |_| true), "Node 1, Pod 1");
        assert_eq!(count(&mut tracker, |owner| *owner.kind == *"Pod"), "Pod 1");
        assert_eq!(count(&mut tracker, |_| true), "Pod 1", "the other is forgotten");
    }
}
