//! Remembers the Jobs that this process has created and that the watch has not shown yet.
//!
//! Without it, a decision on a cache that lags would start a second Job beside an active one, or
//! repeat a run whose Job has been deleted since.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, RequestState};

use crate::job::CachedJob;

/// How long an answer of the apiserver about a Job is valid. A Job that the watch does not show
/// after this time is read again: it may have finished, or be gone.
const VALIDITY: SignedDuration = SignedDuration::from_secs(30);

/// The Jobs of one schedule that this process has created, or tried to create, and that the watch
/// has not shown yet.
///
/// They are bounded by the Jobs that exist: a plan that starts a run first reads those of which it
/// is unknown whether they exist, and a read that finds no Job removes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnseenJobs(Vec<UnseenJob>);

#[derive(Clone, Debug)]
struct UnseenJob {
    name: Arc<str>,
    /// The Job as the apiserver returned it last; `None` while it is unknown whether it exists.
    job: Option<Arc<CachedJob>>,
    /// When the apiserver returned it; `None` if the Job was deleted or has changed since.
    read: Option<Timestamp>,
}

impl UnseenJobs {
    /// Records the state of a request for the Job `name`. Returns whether that changes what is
    /// known of the Job.
    ///
    /// Once the watch has shown the Job, later answers are ignored, because the cache is newer.
    pub(crate) fn observe_request(
        &mut self,
        name: &str,
        effect: &Effect,
        state: RequestState<'_>,
        now: Timestamp,
    ) -> bool {
        let is_read = matches!(effect, Effect::Read { .. });
        if let RequestState::Sending = state {
            self.forget(|job| *job.name == *name);
            let name = name.into();
            let (job, read) = (None, None);
            self.0.push(UnseenJob { name, job, read });
            return false;
        }
        let Some(known) = self.0.iter_mut().find(|job| *job.name == *name) else {
            return is_read;
        };
        match state {
            RequestState::Found(object) => {
                let Ok(job) = serde_json::from_str::<CachedJob>(object.get()) else {
                    return false;
                };
                let is_same = known.job.as_ref().is_some_and(|known| is_same_version(known, &job));
                known.job = Some(Arc::new(job));
                known.read = Some(now);
                !is_same
            }
            RequestState::Absent | RequestState::Rejected => {
                let existed = known.job.is_some();
                self.forget(|job| *job.name == *name);
                existed
            }
            RequestState::Changed | RequestState::Deleted => {
                known.read = None;
                known.job.is_some()
            }
            RequestState::Unanswered | RequestState::Sending | RequestState::Listed(_) => false,
        }
    }

    /// Records that the watch has shown this Job, or its deletion. A Job of which is known that it
    /// has finished stays until the watch shows that, too.
    pub(crate) fn observe_job(&mut self, job: &CachedJob, is_deleted: bool) {
        let shown = job.metadata();
        self.forget(|unseen| match &unseen.job {
            Some(unseen) => unseen.metadata().uid == shown.uid && (is_deleted || !has_finished_since(unseen, job)),
            None => unseen.name == shown.name,
        });
    }

    /// Adds the Jobs that the object with this UID controls to the cached ones. The cached ones are
    /// newer, except those that have finished since.
    pub(crate) fn add_to(&self, cached: &mut Vec<Arc<CachedJob>>, uid: &str) {
        for job in self.existing().filter(|job| job.is_controlled_by(uid)) {
            match cached
                .iter_mut()
                .find(|cached| cached.metadata().uid == job.metadata().uid)
            {
                None => cached.push(Arc::clone(job)),
                Some(cached) if has_finished_since(job, cached) => *cached = Arc::clone(job),
                Some(_) => {}
            }
        }
    }

    /// Iterates over the Jobs that exist, as far as this process knows.
    pub(crate) fn existing(&self) -> impl Iterator<Item = &Arc<CachedJob>> {
        self.0.iter().filter_map(|unseen| unseen.job.as_ref())
    }

    /// Returns the names of the Jobs of which it is unknown whether they exist.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &str> {
        let unknown = self.0.iter().filter(|unseen| unseen.job.is_none());
        unknown.map(|unseen| &*unseen.name)
    }

    /// Returns the names of the Jobs whose state must be read before a plan relies on it.
    pub(crate) fn outdated(&self, now: Timestamp) -> impl Iterator<Item = &str> {
        let outdated = self.0.iter().filter(move |unseen| !unseen.is_valid(now));
        outdated.map(|unseen| &*unseen.name)
    }

    /// Returns when the next of these Jobs must be read again, if the outdated ones are read now.
    pub(crate) fn next_read(&self, now: Timestamp) -> Option<Timestamp> {
        let read = |unseen: &UnseenJob| unseen.read.filter(|_| unseen.is_valid(now)).unwrap_or(now);
        let next = self.0.iter().map(|unseen| read(unseen).checked_add(VALIDITY));
        next.flatten().min()
    }

    fn forget(&mut self, is_it: impl Fn(&UnseenJob) -> bool) {
        self.0.retain(|unseen| !is_it(unseen));
    }
}

impl UnseenJob {
    fn is_valid(&self, now: Timestamp) -> bool {
        let age = self.read.map(|read| now.duration_since(read));
        // A negative age means that the clock was set back.
        age.is_some_and(|age| !age.is_negative() && age < VALIDITY)
    }
}

/// Returns whether a Job has finished since the cache received it.
fn has_finished_since(job: &CachedJob, cached: &CachedJob) -> bool {
    job.finished_status().is_some() && cached.finished_status().is_none()
}

fn is_same_version(one: &CachedJob, other: &CachedJob) -> bool {
    let (one, other) = (one.metadata(), other.metadata());
    one.uid == other.uid && one.resource_version == other.resource_version
}
