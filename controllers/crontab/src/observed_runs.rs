//! Tracks which runs and schedule changes this process has observed, because the status and the
//! Jobs may no longer show them.
//!
//! A Job is the record of its run until the status includes the run. The Job may disappear before
//! that, for example with a short `ttlSecondsAfterFinished` while status writes fail. This tracker
//! then prevents a second run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use portreeve_informer::{Cause, Change, Delta, Informer, Projection};
use portreeve_reconcile::{Effect, RequestState, Target};

use crate::{input::ObservedRuns, job::CachedJob, origin::Origin, schedule_resource::ScheduleResource};

impl ObservedRuns {
    /// Records the runs that a Job proves. The object controls the Job.
    fn record_job<K: ScheduleResource>(&mut self, object: &K, job: &CachedJob, now: Timestamp) {
        for run in job.runs(&object.metadata().name) {
            match run {
                Origin::Scheduled(name, slot) if slot <= now => {
                    let schedule = self.schedule_mut(&name);
                    schedule.last_schedule = schedule.last_schedule.max(Some(slot));
                }
                Origin::RunNow(value) if object.desired().run_now.as_deref() == Some(&*value) => {
                    self.last_run_now = Some(value);
                }
                _ => {}
            }
        }
    }

    /// Records that the watch has shown a Job of the object, or its deletion.
    pub(crate) fn observe_job<K: ScheduleResource>(
        &mut self,
        object: &K,
        job: &CachedJob,
        is_deleted: bool,
        now: Timestamp,
    ) {
        self.unseen.observe_job(job, is_deleted);
        self.deleted.remove(&job.metadata().uid);
        self.record_job(object, job, now);
    }

    /// Records the state of a request for a Job. Returns whether that changes what is known of the
    /// Job. `is_cached` returns whether the cache has a Job.
    pub(crate) fn observe_request<K: ScheduleResource>(
        &mut self,
        object: &K,
        effect: &Effect,
        state: RequestState<'_>,
        now: Timestamp,
        is_cached: impl Fn(&Target) -> bool,
    ) -> bool {
        let name = match effect {
            Effect::Create(job) => &job.key.name,
            Effect::Delete { target, .. } => &target.key.name,
            Effect::Read { key, .. } => &key.name,
            _ => return false,
        };
        let known = self.unseen.existing().find(|job| job.name() == &**name).cloned();
        let is_changed = self.unseen.observe_request(name, effect, state, now);
        if let (Effect::Delete { target, .. }, RequestState::Deleted) = (effect, state)
            && is_cached(target)
        {
            self.deleted.insert(Arc::clone(&target.uid));
        }
        let known = known.filter(|job| job.is_controlled_by(&object.metadata().uid));
        if let (Some(gone), RequestState::Absent) = (known, state) {
            self.record_job(object, &gone, now);
        }
        is_changed
    }

    /// Records that a change of these schedules was found.
    pub(crate) fn record_found_changed(&mut self, names: &[Arc<str>], now: Timestamp) {
        for name in names {
            self.schedule_mut(name).found_changed = Some(now);
        }
    }

    /// Forgets the found changes that the status of the object records.
    fn forget_recorded_changes<K: ScheduleResource>(&mut self, object: &K) {
        if self.schedules.iter().all(|schedule| schedule.found_changed.is_none()) {
            return;
        }
        let unrecorded = object.unrecorded_schedules();
        for schedule in &mut self.schedules {
            if !unrecorded.contains(&schedule.name) {
                schedule.found_changed = None;
            }
        }
    }

    /// Moves a change of the schedule that was observed in the future to `now`. The clock was ahead
    /// at the change and has been set back, and the schedule would start no run until that time.
    pub(crate) fn limit_rescheduled(&mut self, now: Timestamp) {
        for schedule in &mut self.schedules {
            for changed in [&mut schedule.rescheduled, &mut schedule.found_changed] {
                *changed = changed.map(|time| time.min(now));
            }
        }
    }
}

/// The observed runs of all schedules, by UID. Clones share their state.
///
/// The map is bounded by the existing objects: an entry is only created for an existing object, and
/// is removed with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTracker(Arc<Mutex<HashMap<Arc<str>, ObservedRuns>>>);

impl RunTracker {
    /// Records that a schedule changed, or removes its entry when it is deleted. If the process has
    /// not seen the change, its time is unknown. The current time could skip a due run, so it is
    /// used only while no status records the schedule.
    pub(crate) fn observe_schedule<K: ScheduleResource>(&self, delta: &Delta<K>, now: Timestamp) {
        match &delta.change {
            Change::Added(new) => {
                let unrecorded = new.unrecorded_schedules();
                if !unrecorded.is_empty() {
                    self.change(&new.metadata().uid, |observed_runs| {
                        observed_runs.record_found_changed(&unrecorded, now);
                    });
                }
            }
            Change::Updated { old, new } => self.observe_update(&**old, &**new, delta.cause, now),
            Change::Deleted { last, .. } => {
                self.lock().remove(&last.metadata().uid);
            }
        }
    }

    fn observe_update<K: ScheduleResource>(&self, old: &K, new: &K, cause: Cause, now: Timestamp) {
        let uid = &new.metadata().uid;
        if let Some(observed_runs) = self.lock().get_mut(uid) {
            // The status may be writable again, or written.
            observed_runs.is_status_refused = false;
            observed_runs.forget_recorded_changes(new);
        }
        let mut rescheduled = rescheduled(old, new);
        if cause == Cause::Relisted {
            let unrecorded = new.unrecorded_schedules();
            rescheduled.retain(|name| unrecorded.contains(name));
        }
        if rescheduled.is_empty() {
            return;
        }
        self.change(uid, |observed_runs| {
            if cause == Cause::Relisted {
                observed_runs.record_found_changed(&rescheduled, now);
            } else {
                for name in &rescheduled {
                    observed_runs.schedule_mut(name).rescheduled = Some(now);
                }
            }
        });
    }

    /// Records that the status of an object cannot be written, until the object changes.
    pub(crate) fn observe_refused_status(&self, uid: &Arc<str>) {
        self.change(uid, |observed_runs| observed_runs.is_status_refused = true);
    }

    /// Records the state of a request of this object's plan. Returns whether that changes what is
    /// known of a Job. Nothing is recorded about an object or the deletion of a Job that the caches
    /// do not have: no later change would remove it.
    pub(crate) fn observe_request<K: ScheduleResource>(
        &self,
        object: &K,
        effect: &Effect,
        state: RequestState<'_>,
        now: Timestamp,
        objects: &Informer<K>,
        jobs: &Informer<CachedJob>,
    ) -> bool {
        let uid = &object.metadata().uid;
        let mut runs = self.lock();
        // The caches change before this tracker observes the change, so they are read under its
        // lock.
        let is_existing = || {
            let cached = objects.get(&object.metadata().key());
            cached.is_some_and(|cached| cached.metadata().uid == *uid)
        };
        let observed_runs = if matches!(state, RequestState::Sending) && is_existing() {
            Some(runs.entry(Arc::clone(uid)).or_default())
        } else {
            runs.get_mut(uid)
        };
        let is_cached = |target: &Target| {
            jobs.get(&target.key)
                .is_some_and(|job| job.metadata().uid == target.uid)
        };
        observed_runs.is_some_and(|observed_runs| observed_runs.observe_request(object, effect, state, now, is_cached))
    }

    /// Records that the cache has these Jobs. Some may be of other owners, and have only taken the
    /// name of a Job of the object.
    pub(crate) fn observe_shown(&self, uid: &str, jobs: &[Arc<CachedJob>]) {
        if jobs.is_empty() {
            return;
        }
        if let Some(observed_runs) = self.lock().get_mut(uid) {
            for job in jobs {
                observed_runs.unseen.observe_job(job, false);
            }
        }
    }

    /// Records the run of a Job, also when the Job is deleted.
    pub(crate) fn observe_job<K: ScheduleResource>(
        &self,
        delta: &Delta<CachedJob>,
        objects: &Informer<K>,
        now: Timestamp,
    ) {
        let job = delta.change.object();
        let owner = job.metadata().controller();
        let Some(owner) = owner.filter(|owner| *owner.kind == *K::RESOURCE.kind) else {
            return;
        };
        let Some(object) = objects.get(&delta.key().with_name(&*owner.name)) else {
            return;
        };
        let uid = &object.metadata().uid;
        if **uid != *owner.uid {
            return;
        }
        let is_deleted = matches!(delta.change, Change::Deleted { .. });
        self.change(uid, |observed_runs| {
            observed_runs.observe_job(&*object, job, is_deleted, now);
        });
    }

    /// Returns what was observed of a schedule, for a decision at the time `now`.
    pub(crate) fn get(&self, uid: &str, now: Timestamp) -> ObservedRuns {
        let mut runs = self.lock();
        let Some(observed_runs) = runs.get_mut(uid) else {
            return ObservedRuns::default();
        };
        observed_runs.limit_rescheduled(now);
        observed_runs.clone()
    }

    fn change(&self, uid: &Arc<str>, change: impl FnOnce(&mut ObservedRuns)) {
        change(self.lock().entry(Arc::clone(uid)).or_default());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, ObservedRuns>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the names of the schedules that a change added, or whose times it changed.
fn rescheduled<K: ScheduleResource>(old: &K, new: &K) -> Vec<Arc<str>> {
    let old = old.schedule_fields();
    let new = new.schedule_fields().into_iter();
    new.filter(|fields| !old.contains(fields))
        .map(|(name, _)| name)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

    fn cron_job(schedule: &str, suspend: bool) -> Arc<CachedCronJob> {
        let spec = json!({"schedule": schedule, "suspend": suspend, "jobTemplate": {}});
        let whole = json!({"metadata": {"name": "a", "uid": "u"}, "spec": spec}).to_string();
        Arc::new(serde_json::from_str(&whole).expect("the JSON is a CronJob"))
    }

    /// Observes a change at this second, and returns what is known of the object then.
    fn observed<K: ScheduleResource>(
        run_tracker: &RunTracker,
        change: Change<K>,
        second: i64,
        cause: Cause,
    ) -> ObservedRuns {
        let now = Timestamp::from_second(second).expect("the time is in range");
        run_tracker.observe_schedule(&Delta { change, cause }, now);
        run_tracker.get("u", now)
    }

    #[test]
    fn tracker_remembers_changes_until_the_object_is_deleted() {
        let run_tracker = RunTracker::default();
        let observe = |change, second, cause| {
            let runs = observed(&run_tracker, change, second, cause);
            runs.rescheduled("default").map(Timestamp::as_second)
        };
        let watch = |change, second| observe(change, second, Cause::Watched);
        let updated = |old, new| Change::Updated { old, new };
        let (hourly, daily) = (cron_job("@hourly", false), cron_job("@daily", false));
        assert_eq!(watch(Change::Added(Arc::clone(&hourly)), 1), None);
        assert_eq!(watch(updated(Arc::clone(&hourly), cron_job("@hourly", true)), 2), None);
        let relisted = updated(Arc::clone(&hourly), Arc::clone(&daily));
        assert_eq!(
            observe(relisted, 2, Cause::Relisted),
            None,
            "the time of the change is unknown"
        );
        assert_eq!(watch(updated(hourly, Arc::clone(&daily)), 3), Some(3));
        assert_eq!(watch(updated(Arc::clone(&daily), Arc::clone(&daily)), 4), Some(3));
        let deleted = Change::Deleted {
            last: daily,
            is_final: true,
        };
        assert_eq!(watch(deleted, 5), None);
    }

    fn cron_tab(schedule: &str, observed: &str) -> Arc<CachedCronTab> {
        let whole = json!({
            "apiVersion": "stable.example.com/v1",
            "metadata": {"name": "a", "uid": "u"},
            "spec": {"schedule": schedule, "jobTemplate": {"containers": []}},
            "status": {"observedGeneration": 1, "observedSchedule": format!("{observed} UTC")},
        });
        Arc::new(serde_json::from_str(&whole.to_string()).expect("the JSON is a CronTab"))
    }

    /// Another process may have missed the change, or has not recorded it.
    #[test]
    fn a_change_that_was_not_seen_applies_since_it_was_found() {
        let run_tracker = RunTracker::default();
        let observe = |change, second, cause| {
            let runs = observed(&run_tracker, change, second, cause);
            let changed = [runs.rescheduled("default"), runs.unrecorded_since("default")];
            changed.map(|time| time.map(Timestamp::as_second))
        };
        let (hourly, edited) = (cron_tab("@hourly", "@hourly"), cron_tab("@daily", "@hourly"));
        let recorded = cron_tab("@daily", "@daily");
        let updated = |old: &Arc<CachedCronTab>, new: &Arc<CachedCronTab>| Change::Updated {
            old: Arc::clone(old),
            new: Arc::clone(new),
        };
        assert_eq!(
            observe(Change::Added(Arc::clone(&hourly)), 1, Cause::Relisted),
            [None, None]
        );
        assert_eq!(observe(updated(&hourly, &edited), 2, Cause::Relisted), [None, Some(2)]);
        assert_eq!(observe(updated(&edited, &edited), 3, Cause::Watched), [None, Some(2)]);
        assert_eq!(observe(updated(&edited, &recorded), 4, Cause::Watched), [None, None]);
        assert_eq!(
            observe(Change::Added(Arc::clone(&edited)), 5, Cause::Relisted),
            [None, Some(5)]
        );
        let deleted = Change::Deleted {
            last: edited,
            is_final: true,
        };
        assert_eq!(observe(deleted, 6, Cause::Watched), [None, None]);
    }

    #[test]
    fn a_refused_status_is_remembered_until_the_object_changes() {
        let run_tracker = RunTracker::default();
        let (uid, object) = (Arc::from("u"), cron_tab("@hourly", "@hourly"));
        let is_refused = || run_tracker.get("u", Timestamp::UNIX_EPOCH).is_status_refused;
        run_tracker.observe_refused_status(&uid);
        assert!(is_refused());
        let delta = Delta {
            change: Change::Updated {
                old: Arc::clone(&object),
                new: object,
            },
            cause: Cause::Watched,
        };
        run_tracker.observe_schedule(&delta, Timestamp::UNIX_EPOCH);
        assert!(!is_refused());
    }
}
