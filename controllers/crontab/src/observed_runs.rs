//! What a process remembers of schedules: what neither their status nor their Jobs may tell any more.
//!
//! A Job is the record of its run until the status has it. Should it go before that, as with a short ttlSecondsAfterFinished while
//! the status cannot be written, this is what keeps the run from being made again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use portreeve_informer::{Cause, Change, Delta, Informer, Projection};

use crate::{
    decide::ObservedRuns,
    job::{CachedJob, Origin},
    schedule_resource::ScheduleResource,
};

impl ObservedRuns {
    /// Notes a Job of this object.
    pub(crate) fn record_job<K: ScheduleResource>(&mut self, object: &K, job: &CachedJob, now: Timestamp) {
        match job.origin(&object.metadata().name) {
            Origin::Scheduled(slot) if slot <= now => self.last_schedule = self.last_schedule.max(Some(slot)),
            Origin::RunNow(value) if object.desired().run_now.as_deref() == Some(&*value) => {
                self.last_run_now = Some(value);
            }
            _ => {}
        }
    }
}

/// What is remembered, by UID. Clones are one.
///
/// Bounded by the objects that exist: an entry goes with its object, and none is made without it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTracker(Arc<Mutex<HashMap<Arc<str>, ObservedRuns>>>);

impl RunTracker {
    /// Notes that a schedule became another one, or went. Of a change that a relist tells nobody knows when it was: that is as if the
    /// process had been away, and no run may be given up for it.
    pub(crate) fn observe_schedule<K: ScheduleResource>(
        &self,
        delta: &Delta<K>,
        is_rescheduled: fn(&Arc<K>, &Arc<K>) -> bool,
        now: Timestamp,
    ) {
        match &delta.change {
            Change::Added(_) => {}
            Change::Updated { old, new } => {
                if delta.cause != Cause::Relisted && is_rescheduled(old, new) {
                    self.change(&new.metadata().uid, |observed_runs| {
                        observed_runs.rescheduled = Some(now);
                    });
                }
            }
            Change::Deleted { last, .. } => {
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.remove(&last.metadata().uid);
            }
        }
    }

    /// Notes which run a Job is the record of, also when it goes.
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
        self.change(uid, |observed_runs| observed_runs.record_job(&*object, job, now));
    }

    pub(crate) fn get(&self, uid: &str) -> ObservedRuns {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uid).cloned().unwrap_or_default()
    }

    fn change(&self, uid: &Arc<str>, change: impl FnOnce(&mut ObservedRuns)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(known.entry(Arc::clone(uid)).or_default());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cronjob::{CachedCronJob, is_rescheduled};

    fn cron_job(schedule: &str, suspend: bool) -> Arc<CachedCronJob> {
        let spec = json!({"schedule": schedule, "suspend": suspend, "jobTemplate": {}});
        let whole = json!({"metadata": {"name": "a", "uid": "u"}, "spec": spec}).to_string();
        Arc::new(serde_json::from_str(&whole).expect("a CronJob"))
    }

    #[test]
    fn a_schedule_is_remembered_as_long_as_its_object_exists() {
        let run_tracker = RunTracker::default();
        let told = |change, second, cause| {
            let delta = Delta { change, cause };
            run_tracker.observe_schedule(
                &delta,
                is_rescheduled,
                Timestamp::from_second(second).expect("in range"),
            );
            run_tracker.get("u").rescheduled.map(Timestamp::as_second)
        };
        let tell = |change, second| told(change, second, Cause::Watched);
        let updated = |old, new| Change::Updated { old, new };
        let (hourly, daily) = (cron_job("@hourly", false), cron_job("@daily", false));
        assert_eq!(tell(Change::Added(Arc::clone(&hourly)), 1), None);
        assert_eq!(tell(updated(Arc::clone(&hourly), cron_job("@hourly", true)), 2), None);
        let unseen = updated(Arc::clone(&hourly), Arc::clone(&daily));
        assert_eq!(told(unseen, 2, Cause::Relisted), None, "nobody knows when");
        assert_eq!(tell(updated(hourly, Arc::clone(&daily)), 3), Some(3));
        assert_eq!(tell(updated(Arc::clone(&daily), Arc::clone(&daily)), 4), Some(3));
        let deleted = Change::Deleted {
            last: daily,
            is_final: true,
        };
        assert_eq!(tell(deleted, 5), None);
    }
}
