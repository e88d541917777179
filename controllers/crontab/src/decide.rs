//! What to do about a schedule: start what is due, or else say how it stands. The same for every kind.
//!
//! Starting comes first and alone: with thousands of schedules due at once, no status is written before the last of their Jobs is
//! created. What was started is told by the Jobs themselves, as their names and annotations say for which time they are. A status
//! that was not written is made up for by the next decision.

use std::{iter, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{ConcurrencyPolicy, JobReference, Metadata, ObjectKey};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Next, Note, Plan, Propagation, Target};

use crate::{
    facts::{self, Facts},
    job::{JOBS, Origin, Run, SeenJob},
    kind::{Fault, Kind, Memory, Missed, Orders, Report},
    settle,
    slots::{Slots, Timetable, before},
};

/// From how many missed starts on Kubernetes warns.
const TOO_MANY: u32 = 100;

/// All that is known about a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Observed<K> {
    pub(crate) object: Arc<K>,
    /// The Jobs that it controls.
    pub(crate) jobs: Vec<Arc<SeenJob>>,
    /// Names of its pattern that Jobs of others have.
    pub(crate) taken: Vec<Arc<str>>,
    /// What this process remembers of it.
    pub(crate) recalled: Recalled,
}

/// What happened to a schedule, as far as this process saw: what neither its status nor its Jobs may tell any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recalled {
    /// When the schedule changed last.
    pub(crate) rescheduled: Option<Timestamp>,
    /// The last time for which there was a Job.
    pub(crate) served: Option<Timestamp>,
    /// The last value of the annotation for which there was a Job.
    pub(crate) answered: Option<Box<str>>,
}

pub(crate) fn decide<K: Kind>(seen: &Observed<K>, now: Timestamp) -> Plan {
    let orders = seen.object.orders();
    let sight = Sight::new(seen, &orders, now);
    let starts = sight.starts();
    let effects = if starts.is_empty() {
        settle::effects(&sight, None)
    } else {
        starts
    };
    Plan {
        effects,
        next: sight.next(),
    }
}

/// What to say of a write that was refused, and what is to do nevertheless.
pub(crate) fn refused<K: Kind>(seen: &Observed<K>, effect: &Effect, why: &str, now: Timestamp) -> Plan {
    let orders = seen.object.orders();
    let sight = Sight::new(seen, &orders, now);
    let told = |reason| Plan::of(vec![sight.tell(warning(reason, why).once(why))]);
    match effect {
        Effect::Create(_) => {
            let (reason, message) = ("FailedCreate", why.to_owned());
            Plan::of(settle::effects(&sight, Some(&Fault { reason, message })))
        }
        // No condition: the next decision would take it back, as what it can see is in order.
        Effect::Delete { .. } => told("FailedDelete"),
        Effect::Absent { .. } => told("FailedGet"),
        _ => Plan::nothing(),
    }
}

pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> Note {
    Note::normal(reason, "Sync", message)
}

pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> Note {
    Note::warning(reason, "Sync", message)
}

/// A schedule at one moment.
pub(crate) struct Sight<'a, K> {
    pub(crate) seen: &'a Observed<K>,
    pub(crate) orders: &'a Orders,
    pub(crate) memory: Memory<'a>,
    pub(crate) facts: Facts<'a>,
    pub(crate) timetable: Option<&'a Timetable>,
    /// Absent while it is suspended, going, or not to be read.
    pub(crate) slots: Option<Slots>,
    pub(crate) now: Timestamp,
}

impl<'a, K: Kind> Sight<'a, K> {
    fn new(seen: &'a Observed<K>, orders: &'a Orders, now: Timestamp) -> Self {
        let memory = seen.object.memory(seen.recalled.rescheduled.unwrap_or(now));
        let metadata = seen.object.metadata();
        let asked = orders.run_now.as_deref();
        let mut facts = facts::gather(metadata, memory, asked, &seen.jobs, now);
        facts.recall(&seen.recalled, asked);
        let is_running = !orders.suspend && !metadata.is_terminating();
        let timetable = orders.timetable.as_ref().ok().filter(|_| is_running);
        let mut sight = Self {
            seen,
            orders,
            memory,
            facts,
            timetable,
            slots: None,
            now,
        };
        sight.look_at_the_clock();
        let due = sight.slots.and_then(|slots| slots.due);
        if let Some(due) = due.filter(|due| sight.is_served(*due)) {
            sight.facts.last_schedule = Some(due);
            sight.look_at_the_clock();
        }
        if let Some(slots) = sight.slots.filter(|_| sight.memory.was_suspended) {
            // The times for which nothing was to run were not missed. The latest may be made up for still.
            let withheld = slots.lapsed.max(sight.facts.last_schedule);
            sight.memory.scheduled_since = sight.memory.scheduled_since.max(withheld);
        }
        sight
    }

    /// An @every may have two times in a minute, and both are called the same: one Job serves them, even when it is gone again.
    fn is_served(&self, due: Timestamp) -> bool {
        let name = |slot| Run::Slot(slot).job_name(&self.metadata().name);
        let last = self.facts.last_schedule.map(name);
        last.is_some_and(|last| last == name(due)) || self.owns(&name(due))
    }

    fn look_at_the_clock(&mut self) {
        let base = self.base(self.facts.last_schedule);
        self.slots = self.timetable.map(|timetable| timetable.slots(base, self.now));
    }

    /// From when on times count: the last one that was served, or the creation; and not before the schedule was what it is.
    pub(crate) fn base(&self, last: Option<Timestamp>) -> Timestamp {
        let created = self.metadata().creation_timestamp.unwrap_or(self.now);
        let bounds = [self.memory.scheduled_since, self.seen.recalled.rescheduled];
        let later = |base: Timestamp, bound: Option<Timestamp>| bound.map_or(base, |bound| base.max(bound));
        bounds.into_iter().fold(last.unwrap_or(created), later)
    }

    /// The times for which there are Jobs.
    fn served(&self) -> impl Iterator<Item = Timestamp> {
        let name = &self.metadata().name;
        let origins = self.seen.jobs.iter().map(|job| job.origin(name));
        origins.filter_map(|origin| match origin {
            Origin::Slot(slot) => Some(slot),
            _ => None,
        })
    }

    /// For how many times after `since` and until `until` there are Jobs.
    pub(crate) fn served_between(&self, since: Timestamp, until: Timestamp) -> u32 {
        let served = self.served().filter(|slot| (since < *slot) && (*slot <= until));
        u32::try_from(served.count()).unwrap_or(u32::MAX)
    }

    /// The last time after `since` and until `until` for which there is none.
    pub(crate) fn last_unserved(&self, since: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let timetable = self.timetable?;
        let earlier = |slot: &Timestamp| timetable.latest(since, before(*slot));
        let mut slots = iter::successors(timetable.latest(since, until), earlier);
        slots.find(|slot| self.served().all(|served| served != *slot))
    }

    pub(crate) fn metadata(&self) -> &'a Metadata {
        self.seen.object.metadata()
    }

    pub(crate) fn target(&self) -> Target {
        Target::of(&K::RESOURCE, self.metadata())
    }

    fn owns(&self, name: &str) -> bool {
        self.seen.jobs.iter().any(|job| job.name() == name)
    }

    /// Whether the name of a wanted run's Job is that of another: of somebody else's, or of a run whose value has the same hash.
    pub(crate) fn is_taken(&self, name: &str) -> bool {
        self.seen.taken.iter().any(|taken| **taken == *name) || self.owns(name)
    }

    /// The runs that are asked for and have no Job: the due one, and the one that somebody wants now.
    pub(crate) fn wanted(&self) -> Vec<Run> {
        if self.metadata().is_terminating() {
            return Vec::new();
        }
        let due = self.slots.and_then(|slots| slots.due).map(Run::Slot);
        let asked = self.orders.run_now.clone();
        let asked = asked.filter(|value| self.facts.last_run_now != Some(&**value));
        let asked = asked.map(Run::Now);
        if self.orders.concurrency == ConcurrencyPolicy::Forbid {
            // With runs that are longer than what is between them there is always one due: people go first.
            return asked.into_iter().chain(due).collect();
        }
        // The last one replaces the others: also here people have their way.
        due.into_iter().chain(asked).collect()
    }

    /// Whether a run waits for another to end.
    pub(crate) fn is_blocked(&self) -> bool {
        self.orders.concurrency == ConcurrencyPolicy::Forbid && !self.facts.active.is_empty()
    }

    /// Whether a run has to wait until the status tells of those that it replaces: without their Jobs nothing else would, and
    /// they would start again.
    fn replaces_what_is_not_stored(&self) -> bool {
        let mut active = self.facts.active.iter();
        self.orders.concurrency == ConcurrencyPolicy::Replace && active.any(|job| !self.is_stored(job))
    }

    /// Whether the status tells of this run: before that its Job is the only proof that it took place.
    pub(crate) fn is_stored(&self, job: &SeenJob) -> bool {
        match job.origin(&self.metadata().name) {
            Origin::Slot(slot) => self.memory.last_schedule.is_some_and(|stored| slot <= stored),
            Origin::RunNow(value) => {
                self.orders.run_now.as_deref() != Some(&*value) || self.memory.last_run_now == Some(&*value)
            }
            Origin::Manual | Origin::Unknown => true,
        }
    }

    fn starts(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_blocked() || self.replaces_what_is_not_stored() {
            return effects;
        }
        for run in self.wanted() {
            let Ok(job) = self.seen.object.job(&run) else {
                continue;
            };
            if self.is_taken(&job.key.name) {
                continue;
            }
            if self.orders.concurrency != ConcurrencyPolicy::Allow {
                // Two at once are what is not wanted: the other one is for the next decision.
                if !effects.is_empty() {
                    break;
                }
                effects.extend(self.confirmed_missing());
            }
            if self.orders.concurrency == ConcurrencyPolicy::Replace {
                effects.extend(self.facts.active.iter().flat_map(|job| self.deletion(job)));
            }
            effects.extend(self.start(&run, job));
        }
        effects
    }

    fn start(&self, run: &Run, job: portreeve_reconcile::Object) -> Vec<Effect> {
        let message = format!("Created job {}", job.key.name);
        let mut effects = Vec::new();
        let lag = match run {
            Run::Slot(slot) => {
                effects.extend(self.too_many_missed(*slot));
                let metric = K::SKEW;
                Some(Effect::Lag { metric, since: *slot })
            }
            Run::Now(_) => None,
        };
        effects.push(Effect::Create(job));
        effects.extend(lag);
        effects.push(self.tell(normal("SuccessfulCreate", message)));
        effects
    }

    fn too_many_missed(&self, slot: Timestamp) -> Option<Effect> {
        let base = self.base(self.memory.last_schedule);
        let missed = self.timetable?.count_open(base, self.now);
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        (missed > TOO_MANY).then(|| self.tell(warning("TooManyMissedTimes", message).once(slot.to_string())))
    }

    /// Has the apiserver confirm that Jobs are gone that the status names and the cache does not have.
    pub(crate) fn confirmed_missing(&self) -> impl Iterator<Item = Effect> {
        let absent = |job: &&JobReference| Effect::Absent {
            resource: JOBS,
            key: self.sibling(&job.name),
            uid: job.uid.as_str().into(),
            controller: Arc::clone(&self.metadata().uid),
        };
        self.facts.missing.iter().map(absent)
    }

    fn sibling(&self, name: &str) -> ObjectKey {
        self.metadata().key().sibling(name)
    }

    /// Deletes a Job, unless somebody does already.
    pub(crate) fn deletion(&self, job: &SeenJob) -> Vec<Effect> {
        if job.metadata().is_terminating() {
            return Vec::new();
        }
        let delete = Effect::Delete {
            target: Target::of(&JOBS, job.metadata()),
            propagation: Propagation::Background,
        };
        let note = normal("SuccessfulDelete", format!("Deleted job {}", job.name()));
        // A Job that is gone already is as good as deleted, so a cache that is behind tells of it twice.
        vec![delete, self.tell(note.once(&*job.metadata().uid))]
    }

    pub(crate) fn tell(&self, note: Note) -> Effect {
        Effect::Event(self.target(), note)
    }

    /// When the next decision is due by the clock: at the next time, or when it is too late for the one that waits.
    fn next(&self) -> Next {
        let Some(slots) = self.slots else {
            return Next::OnChange;
        };
        let times = slots.next.into_iter().chain(slots.until);
        times.min().map_or(Next::OnChange, Next::At)
    }

    /// What the status is to say.
    pub(crate) fn report<'b>(&'b self, fault: Option<&'b Fault>, is_valid: bool, missed: Option<Missed>) -> Report<'b> {
        Report {
            facts: &self.facts,
            slots: self.slots.as_ref(),
            missed,
            fault,
            is_valid,
            scheduled_since: self.memory.scheduled_since,
            is_suspended: self.orders.suspend,
        }
    }
}

#[cfg(test)]
mod tests;
