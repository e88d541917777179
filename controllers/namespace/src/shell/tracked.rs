//! What this process knows of each namespace that is being deleted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use portreeve_api::Metadata;
use tokio::time::Instant;

use crate::findings::Findings;

/// The first wait for objects that others must remove. It doubles with each attempt in vain, up to
/// the maximum. Watches end it sooner.
const MIN_WAIT: Duration = Duration::from_secs(15);
const MAX_WAIT: Duration = Duration::from_mins(10);

/// A namespace that is being deleted.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) uid: Arc<str>,
    /// When this process first saw the deletion.
    pub(super) since: Instant,
    /// The time of the deletion by the apiserver's clock.
    pub(super) deleted_at: Option<Timestamp>,
    /// Whether the namespace had conditions at the first attempt of this term: a former leader may
    /// have sent a deletion that is still on its way.
    pub(super) is_inherited: Option<bool>,
    /// Until when a deletion may go on that got no answer.
    pub(super) unanswered_until: Option<Instant>,
    /// What the last attempt has done.
    pub(super) state: Progress,
    /// The number of attempts that have changed nothing.
    waits: u32,
    pub(super) is_reported: bool,
}

/// What an attempt has come to.
#[derive(Clone, Debug, Default)]
pub(super) enum Progress {
    /// No attempt has ended.
    #[default]
    Started,
    /// Objects are left, or may be.
    Remaining(Timestamp, Arc<Findings>),
    /// The namespace is empty, but a deletion may still be on its way.
    Held(Timestamp),
    /// A request failed.
    Failed(Timestamp, String),
    /// kube-controller-manager does the work, in the process with this identity.
    Yielded(Arc<str>),
    /// Only finalizers of others are left, on the namespace itself.
    Finalized,
    /// The controller never touches this namespace.
    Protected,
}

/// The namespaces that are being deleted, by name.
#[derive(Default)]
pub(super) struct TrackedNamespaces(Mutex<BTreeMap<Arc<str>, Tracked>>);

impl TrackedNamespaces {
    /// Records the state of a namespace. Returns whether its deletion is news.
    pub(super) fn observe(&self, namespace: &Metadata) -> bool {
        let mut tracked = self.0.lock();
        if !namespace.is_terminating() {
            tracked.remove(&namespace.name);
            return false;
        }
        let known = tracked.get(&namespace.name);
        if known.is_some_and(|known| known.uid == namespace.uid) {
            return false;
        }
        let new = Tracked {
            uid: Arc::clone(&namespace.uid),
            since: Instant::now(),
            deleted_at: namespace.deletion_timestamp,
            is_inherited: None,
            unanswered_until: None,
            state: Progress::Started,
            waits: 0,
            is_reported: false,
        };
        tracked.insert(Arc::clone(&namespace.name), new);
        true
    }

    /// Forgets a namespace that no longer exists.
    pub(super) fn remove(&self, name: &str, uid: &str) {
        let mut tracked = self.0.lock();
        if tracked.get(name).is_some_and(|known| *known.uid == *uid) {
            tracked.remove(name);
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<Tracked> {
        self.0.lock().get(name).cloned()
    }

    /// Changes what is known of a namespace, unless another one has its name now.
    pub(super) fn update(&self, name: &str, uid: &str, change: impl FnOnce(&mut Tracked)) {
        let mut tracked = self.0.lock();
        if let Some(known) = tracked.get_mut(name).filter(|known| *known.uid == *uid) {
            change(known);
        }
    }

    /// Returns the namespaces for which this is true.
    pub(super) fn names(&self, accepts: impl Fn(&Tracked) -> bool) -> Vec<Arc<str>> {
        let tracked = self.0.lock();
        let accepted = tracked.iter().filter(|(_, known)| accepts(known));
        accepted.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns whether more than one namespace is being deleted.
    pub(super) fn has_several(&self) -> bool {
        self.0.lock().len() > 1
    }

    /// Returns the number of namespaces, the number of those that have been tracked for longer than
    /// `limit`, and the longest time with the name of its namespace.
    pub(super) fn ages(&self, limit: Duration) -> (usize, usize, Option<(Duration, Arc<str>)>) {
        let tracked = self.0.lock();
        let ages = tracked.iter().map(|(name, known)| (known.since.elapsed(), name));
        let stuck = ages.clone().filter(|(age, _)| *age >= limit).count();
        let oldest = ages.max_by_key(|(age, _)| *age);
        (tracked.len(), stuck, oldest.map(|(age, name)| (age, Arc::clone(name))))
    }
}

impl Tracked {
    /// Records findings. Returns how long to wait before the next attempt if nothing happens, or
    /// `None` if it is to be retried: because something has failed, or because discovery may show
    /// by now what was hidden from the attempt. A change of discovery wakes only those namespaces
    /// that are known to hide something then, so `is_current` says whether discovery is still what
    /// the attempt has read.
    pub(super) fn record(&mut self, now: Timestamp, findings: &Arc<Findings>, is_current: bool) -> Option<Duration> {
        let is_same = matches!(&self.state, Progress::Remaining(_, before) if before == findings);
        self.waits = if is_same { self.waits + 1 } else { 0 };
        self.state = Progress::Remaining(now, Arc::clone(findings));
        let factor = 1_u32.checked_shl(self.waits).unwrap_or(u32::MAX);
        let waits = findings.failures.is_empty() && (is_current || findings.hidden.is_empty());
        waits.then(|| MIN_WAIT.saturating_mul(factor).min(MAX_WAIT))
    }

    /// Returns whether the last attempt could not find out what is left.
    pub(super) fn is_blind(&self) -> bool {
        matches!(&self.state, Progress::Remaining(_, findings) if !findings.hidden.is_empty() || !findings.failures.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use portreeve_api::CRDS;

    use super::*;
    use crate::findings::Name;

    fn namespace(uid: &str, is_terminating: bool) -> Metadata {
        Metadata {
            name: "n".into(),
            uid: uid.into(),
            deletion_timestamp: is_terminating.then_some(Timestamp::UNIX_EPOCH),
            ..Metadata::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_is_news_once_and_again_when_it_is_recreated() {
        let tracked = TrackedNamespaces::default();
        assert!(!tracked.observe(&namespace("1", false)));
        assert!(tracked.observe(&namespace("1", true)));
        assert!(!tracked.observe(&namespace("1", true)));
        assert!(tracked.observe(&namespace("2", true)));
        tracked.remove("n", "1");
        assert!(tracked.get("n").is_some());
        tracked.update("n", "1", |_| panic!("another namespace"));
        assert!(!tracked.observe(&namespace("3", false)));
        assert!(tracked.get("n").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_while_nothing_changes() {
        let tracked = TrackedNamespaces::default();
        tracked.observe(&namespace("1", true));
        let mut known = tracked.get("n").unwrap();
        let findings = Arc::new(Findings::default());
        let waits: Vec<_> = (0..8)
            .map(|_| known.record(Timestamp::UNIX_EPOCH, &findings, true).unwrap().as_secs())
            .collect();
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 600, 600]);
        let others = hiding("a/v1");
        assert_eq!(known.record(Timestamp::UNIX_EPOCH, &others, true), Some(MIN_WAIT));
        assert!(known.is_blind());
    }

    fn hiding(version: &str) -> Arc<Findings> {
        Arc::new(Findings {
            hidden: vec![version.to_owned()],
            ..Findings::default()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn failures_and_a_change_of_discovery_are_no_reason_to_wait() {
        let tracked = TrackedNamespaces::default();
        tracked.observe(&namespace("1", true));
        let mut known = tracked.get("n").unwrap();
        let mut record =
            |findings: &Arc<Findings>, is_current| known.record(Timestamp::UNIX_EPOCH, findings, is_current);
        assert_eq!(record(&hiding("a/v1"), false), None);
        // What is left does not depend on discovery.
        assert_eq!(record(&Arc::default(), false), Some(MIN_WAIT));
        let failures = [(Name::of(&CRDS), "refused".to_owned())].into();
        let failed = Findings {
            failures,
            ..Findings::default()
        };
        assert_eq!(record(&failed.into(), true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn ages_are_counted_from_the_first_sight() {
        let tracked = TrackedNamespaces::default();
        let limit = Duration::from_mins(1);
        assert_eq!(tracked.ages(limit), (0, 0, None));
        tracked.observe(&namespace("1", true));
        tokio::time::advance(limit).await;
        assert_eq!(tracked.ages(limit), (1, 1, Some((limit, "n".into()))));
        assert_eq!(tracked.ages(limit * 2).1, 0);
    }
}
