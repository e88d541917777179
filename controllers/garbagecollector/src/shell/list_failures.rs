//! The resources that could not be listed, and the owners that wait for these lists.
//!
//! An owner waits until a resource has failed for [`LIMIT`], and then its deletion continues
//! without that resource.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{Identity, Uid};
use portreeve_reconcile::Shutdown;
use portreeve_workqueue::Lane;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{CollectorContext, failures::Task, requests::RequestError};

/// How long the lists of a resource must fail before a deletion continues without them. A resource
/// that has failed for so long is listed once in this time, because a list may take 30 s to fail.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
/// The time without a list after which a failure is the first of a new series. A resource that may
/// not be listed should not delay every deletion, although deletions may be rare.
const GAP: Duration = Duration::from_mins(10);

/// After which time an object is processed again if its owner's kind is not served. The main
/// trigger is a change of the served resources. This interval limits how long the failure of an
/// object is remembered that has left the graph.
const UNSERVED_INTERVAL: Duration = Duration::from_mins(5);
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The series of failures of each resource.
#[derive(Default)]
pub(super) struct ListFailures {
    series: Mutex<HashMap<Resource, Series>>,
    /// Notified when an owner starts to wait.
    waits: Notify,
}

/// Consecutive failures to list one resource.
struct Series {
    began: Instant,
    /// When a list last began or ended.
    last: Instant,
    failure: RequestError,
    /// The owners to queue when the resource has failed for [`LIMIT`], and when it is listed.
    waiting: HashSet<Task>,
    /// Whether the resource has failed for [`LIMIT`] and the owners were queued.
    is_over: bool,
}

impl Series {
    fn has_failed_long(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= LIMIT
    }
}

impl ListFailures {
    /// Returns the last failure of a resource that has failed for [`LIMIT`] and was listed
    /// recently. Otherwise, the caller must list the resource and report the result.
    pub(super) fn recent(&self, resource: &Resource, now: Instant) -> Option<RequestError> {
        let mut all = self.series.lock();
        let series = all.get_mut(resource)?;
        if now.duration_since(series.last) < LIMIT && series.has_failed_long(now) {
            return Some(series.failure.clone());
        }
        if now.duration_since(series.last) < GAP {
            // The caller's list keeps others from starting one.
            series.last = now;
        }
        None
    }

    /// Records a failed list.
    fn failed(&self, resource: &Resource, failure: RequestError, now: Instant) {
        let mut all = self.series.lock();
        all.retain(|_, series| now.duration_since(series.last) < GAP);
        let new = || Series {
            began: now,
            last: now,
            failure: RequestError::Conflict,
            waiting: HashSet::new(),
            is_over: false,
        };
        let series = all.entry(resource.clone()).or_insert_with(new);
        (series.last, series.failure) = (now, failure);
    }

    /// Records a complete list. Returns the owners that have waited for it.
    fn listed(&self, resource: &Resource) -> HashSet<Task> {
        let series = self.series.lock().remove(resource);
        series.map(|series| series.waiting).unwrap_or_default()
    }

    /// Returns whether the resource has failed for [`LIMIT`]. Otherwise the owner has to wait.
    fn may_continue(&self, resource: &Resource, owner: Task, now: Instant) -> bool {
        let mut all = self.series.lock();
        let Some(series) = all.get_mut(resource) else {
            return false;
        };
        let has_failed_long = series.has_failed_long(now);
        if has_failed_long {
            series.waiting.remove(&owner);
        } else if series.waiting.insert(owner) {
            self.waits.notify_one();
        }
        has_failed_long
    }

    /// Queues the owner when the resource is listed.
    pub(super) fn wait(&self, resource: &Resource, owner: Task) {
        if let Some(series) = self.series.lock().get_mut(resource) {
            series.waiting.insert(owner);
        }
    }

    /// Returns when the next owners may continue.
    fn next(&self) -> Option<Instant> {
        let all = self.series.lock();
        let waited_for = all
            .values()
            .filter(|series| !series.is_over && !series.waiting.is_empty());
        waited_for.map(|series| series.began + LIMIT).min()
    }

    /// Returns the owners that may continue now, once.
    fn take_due(&self, now: Instant) -> HashSet<Task> {
        let mut due = HashSet::new();
        for series in self.series.lock().values_mut() {
            if series.has_failed_long(now) && !std::mem::replace(&mut series.is_over, true) {
                due.extend(&series.waiting);
            }
        }
        due
    }
}

/// Queues the owners that wait when a resource has failed for [`LIMIT`]; their own backoffs may be
/// longer. The end of an outage ends all series, because the outage may have caused them.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    let mut outages = ctx.outage.count();
    loop {
        let next = ctx.list_failures.next();
        let due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.requested() => return,
            count = ctx.outage.next_end(outages) => {
                outages = count;
                ctx.list_failures.series.lock().clear();
            }
            () = ctx.list_failures.waits.notified() => {}
            () = due => ctx.continue_owners(ctx.list_failures.take_due(Instant::now())),
        }
    }
}

impl CollectorContext {
    /// Returns the failure of a resource for which the owner has to wait longer. Of several, it is
    /// the one with the longest requested delay.
    pub(super) fn awaited_failure(
        &self,
        owner: Task,
        unlisted: &HashMap<Resource, RequestError>,
    ) -> Option<RequestError> {
        if self.has_failed_long(owner) {
            return None;
        }
        let now = Instant::now();
        let awaited = unlisted
            .iter()
            .filter(|(resource, _)| !self.list_failures.may_continue(resource, owner, now));
        let failures = awaited.map(|(_, failure)| failure);
        failures.max_by_key(|failure| failure.requested_delay()).cloned()
    }

    /// Returns whether all attempts for the owner have failed for [`LIMIT`].
    pub(super) fn has_failed_long(&self, owner: Task) -> bool {
        self.failures.lock().duration(owner, Instant::now()) >= LIMIT
    }

    /// Ends the wait of owners for an object about which nothing could be decided for [`LIMIT`].
    /// Returns after which time to process it again if a kind is not served.
    ///
    /// `unknown` are the objects that could not be read: the object itself, or owners in its
    /// references, so that it is kept.
    pub(super) fn limit_wait_for(&self, uid: Uid, unknown: &[Identity]) -> Duration {
        if !self.graph.lock().is_awaited(uid) {
            return UNSERVED_INTERVAL;
        }
        let failed = self.failures.lock().duration(Task::Collect(uid), Instant::now());
        if failed < LIMIT || self.outage.is_outage() {
            return LIMIT.saturating_sub(failed).max(MIN_INTERVAL);
        }
        let (dependent, unknown) = {
            let graph = self.graph.lock();
            let owners = unknown.iter().filter(|object| graph.uid(&object.uid) != Some(uid));
            let owners: Vec<_> = owners.map(ToString::to_string).collect();
            (graph.name(uid), owners.join(", "))
        };
        if unknown.is_empty() {
            tracing::warn!(dependent, "owners no longer wait for a dependent that cannot be read");
        } else {
            tracing::warn!(
                dependent,
                unknown,
                "owners no longer wait for a dependent with an unknown owner"
            );
        }
        self.change(|graph, follow_ups| graph.stop_waiting_for(uid, follow_ups));
        UNSERVED_INTERVAL
    }

    /// Records the result of a list, and queues the owners that have waited for it.
    pub(super) fn report_list<T>(
        &self,
        resource: &Resource,
        result: Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        match &result {
            Ok(_) => self.listed(resource),
            Err(failure) => self.list_failures.failed(resource, failure.clone(), Instant::now()),
        }
        result
    }

    /// Records that the resource can be listed, and queues the owners that have waited for it.
    pub(super) fn listed(&self, resource: &Resource) {
        self.continue_owners(self.list_failures.listed(resource));
    }

    /// Queues owners that have waited.
    pub(super) fn continue_owners(&self, owners: impl IntoIterator<Item = Task>) {
        for owner in owners {
            let queue = match owner {
                Task::Collect(_) => &self.attempts,
                Task::Orphan(_) => &self.orphans,
            };
            self.add(queue, owner.uid(), Lane::Urgent);
        }
    }
}

#[cfg(test)]
mod tests {
    use portreeve_garbagecollector_graph::{FollowUps, Graph, PartialObject};

    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    fn uid() -> Uid {
        let mut graph = Graph::default();
        let pods = graph.add_monitor("v1", "Pod");
        let mut pod = PartialObject::default();
        pod.metadata.uid = "a".into();
        graph.observe(pods, &pod, &mut FollowUps::default());
        graph.uid("a").unwrap()
    }

    fn fail(failures: &ListFailures, now: Instant) {
        assert!(failures.recent(&PODS, now).is_none(), "the resource must be listed");
        failures.failed(&PODS, RequestError::other("away"), now);
    }

    #[test]
    fn owner_continues_when_the_lists_have_failed_for_the_limit() {
        let (failures, began, owner) = (ListFailures::default(), Instant::now(), Task::Orphan(uid()));
        let at = |second| began + Duration::from_secs(second);
        for second in [0, 1, 29] {
            fail(&failures, at(second));
            assert!(!failures.may_continue(&PODS, owner, at(second)));
        }
        assert_eq!(failures.next(), Some(at(30)));
        assert_eq!(failures.take_due(at(29)), HashSet::new());
        assert_eq!(failures.take_due(at(30)), [owner].into());
        assert_eq!(failures.next(), None);
        assert!(failures.recent(&PODS, at(30)).is_some(), "it was listed a second ago");
        failures.wait(&PODS, owner);
        assert!(failures.may_continue(&PODS, owner, at(30)));
        assert_eq!(failures.listed(&PODS), HashSet::new(), "the owner no longer waits");
    }

    #[test]
    fn resource_that_has_failed_long_is_listed_once_in_that_time() {
        let (failures, began) = (ListFailures::default(), Instant::now());
        let at = |second| began + Duration::from_secs(second);
        for second in [0, 29] {
            fail(&failures, at(second));
        }
        assert!(failures.recent(&PODS, at(58)).is_some());
        assert!(failures.recent(&PODS, at(59)).is_none());
        assert!(failures.recent(&PODS, at(60)).is_some(), "another owner lists it now");
    }

    #[test]
    fn complete_list_or_a_long_gap_begins_a_new_series() {
        let (failures, began, owner) = (ListFailures::default(), Instant::now(), Task::Collect(uid()));
        let at = |second| began + Duration::from_secs(second);
        fail(&failures, at(0));
        assert!(!failures.may_continue(&PODS, owner, at(0)));
        assert_eq!(failures.listed(&PODS), [owner].into());
        fail(&failures, at(31));
        assert!(!failures.may_continue(&PODS, owner, at(31)));
        fail(&failures, at(631));
        assert!(!failures.may_continue(&PODS, owner, at(631)));
    }
}
