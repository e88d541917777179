//! Random histories with a clock that is set, stale caches, crashing processes and finishing Jobs.
//! No scheduled time gets two Jobs, and every due time has a Job once the interference ends.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use portreeve_reconcile::{Effect, Next};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use super::{
    samples::{Sample, at, time_of, timetable_of},
    simulation::{Outcome, Simulation, slot_of},
};
use crate::{
    api::ConcurrencyPolicy, cronjob::CachedCronJob, crontab::CachedCronTab, job::JOBS, scheduled_times::Timetable,
};

/// In the night in which Europe's clocks go back.
const START: &str = "2026-10-24T22:59:30.25Z";

#[derive(Clone, Debug)]
pub(super) enum Event {
    /// This many milliseconds pass.
    Pass(i64),
    /// Time passes until the next time that the process waits for.
    Wake,
    /// The clock is set forward or back by this many seconds.
    AdjustClock(i64),
    /// The process reconciles after its caches received this many more changes, and carries out
    /// this many effects.
    Reconcile {
        object: usize,
        jobs: usize,
        effects: usize,
    },
    /// The process ends, and a new one starts.
    Restart,
    /// The process ends, and a standby takes over.
    FailOver,
    /// The active Job with this index, modulo their number, finishes successfully or not.
    Finish(usize, bool),
    /// Another process takes over, which runs an earlier version or the current one.
    SwitchVersion {
        is_earlier: bool,
    },
    /// The answer to the next create is lost.
    LoseAnswer,
    /// A user requests a run.
    RunNow,
    Suspend(bool),
    Reschedule(&'static str),
    /// A user deletes the Job with this index, modulo the number of Jobs whose runs are recorded.
    Remove(usize),
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let units = select(vec![1, 60, 3_600, 86_400]);
    let step = (units, -40..40_i64).prop_map(|(unit, count)| Event::AdjustClock(unit * count));
    let reconcile = (0..3_usize, 0..3_usize, 0..6_usize).prop_map(|(object, jobs, effects)| {
        // In most cases, everything is delivered and carried out.
        let or_all = |some: usize| if some == 2 { usize::MAX } else { some };
        let effects = if effects >= 4 { usize::MAX } else { effects };
        Event::Reconcile {
            object: or_all(object),
            jobs: or_all(jobs),
            effects,
        }
    });
    let event = prop_oneof![
        4 => (1..200_000_i64).prop_map(Event::Pass),
        4 => Just(Event::Wake),
        2 => step,
        12 => reconcile,
        1 => Just(Event::Restart),
        1 => Just(Event::FailOver),
        1 => Just(Event::LoseAnswer),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(index, succeeds)| Event::Finish(index, succeeds)),
        1 => Just(Event::RunNow),
        1 => any::<bool>().prop_map(Event::Suspend),
        1 => select(vec!["*/2 * * * *", "1-59/7 * * * *", "@every 1m10s"]).prop_map(Event::Reschedule),
        1 => any::<usize>().prop_map(Event::Remove),
    ];
    vec(event, 0..60)
}

/// Generates the fields of a spec other than the schedule.
pub(super) fn fields() -> impl Strategy<Value = Value> {
    (
        select(vec!["Allow", "Forbid", "Replace"]),
        select(vec![None, Some(0), Some(20), Some(200), Some(7_200)]),
        select(vec![None, Some(0), Some(1)]),
        select(vec![None, Some("Europe/Zurich"), Some("Australia/Lord_Howe")]),
    )
        .prop_map(|(policy, deadline, keep, zone)| {
            json!({"concurrencyPolicy": policy, "startingDeadlineSeconds": deadline, "timeZone": zone,
                "successfulJobsHistoryLimit": keep, "failedJobsHistoryLimit": keep})
        })
}

/// A simulation with the state for checking its invariants.
pub(super) struct CheckedSimulation<K> {
    pub(super) simulation: Simulation<K>,
    /// The `lastScheduleTime` and the `lastSuccessfulTime` of the status after the last effect.
    last_recorded: [Option<Timestamp>; 2],
    /// The number of requested runs.
    requested_runs: u32,
    /// The last requested run that must not start, because there was no status yet.
    skipped_run: u32,
    /// Whether an event changed the time after which scheduled times count.
    is_edited: bool,
}

impl<K: Sample> CheckedSimulation<K> {
    pub(super) fn new(schedule: &str, fields: &Value) -> Self {
        let mut spec = json!({"schedule": schedule, "jobTemplate": K::template()});
        for (field, value) in fields.as_object().expect("the fields are an object") {
            if !value.is_null() {
                spec[field] = value.clone();
            }
        }
        let object = json!({"metadata": {"name": "a"}, "spec": spec});
        Self {
            simulation: Simulation::of(object, at(START)),
            last_recorded: [None; 2],
            requested_runs: 0,
            skipped_run: 0,
            is_edited: false,
        }
    }

    fn apply(&mut self, event: &Event) {
        let simulation = &mut self.simulation;
        self.is_edited |= matches!(event, Event::Suspend(_) | Event::Reschedule(_));
        match *event {
            Event::Pass(milliseconds) => simulation.clock += SignedDuration::from_millis(milliseconds),
            Event::Wake => {
                if let Next::At(time) = simulation.plan().next {
                    simulation.clock = time;
                }
            }
            Event::AdjustClock(seconds) => simulation.pass(seconds),
            Event::Reconcile { object, jobs, effects } => {
                simulation.deliver(object, jobs);
                self.carry_out_plan(effects);
            }
            Event::Restart => simulation.restart(),
            Event::FailOver => simulation.take_over(),
            Event::LoseAnswer => simulation.loses_answer = true,
            Event::SwitchVersion { is_earlier } => simulation.restart_as(is_earlier),
            Event::Finish(index, succeeds) => {
                let active = simulation.active();
                if !active.is_empty() {
                    simulation.finish(
                        &active[index % active.len()],
                        if succeeds { "Complete" } else { "Failed" },
                    );
                }
            }
            Event::RunNow => {
                self.requested_runs += 1;
                if simulation.object["status"]["observedGeneration"].is_null() {
                    self.skipped_run = self.requested_runs;
                }
                simulation.run_now(&self.requested_runs.to_string());
            }
            Event::Suspend(suspend) => simulation.set("suspend", suspend),
            Event::Reschedule(schedule) => simulation.set("schedule", schedule),
            Event::Remove(index) => {
                let jobs = simulation.recorded_jobs();
                if !jobs.is_empty() {
                    simulation.remove_job(&jobs[index % jobs.len()]);
                }
            }
        }
    }

    /// Carries out the first effects of a plan and checks each.
    fn carry_out_plan(&mut self, effects: usize) {
        let plan = self.simulation.plan();
        for effect in plan.effects.iter().take(effects) {
            self.check_effect(effect);
            if self.simulation.carry_out(std::slice::from_ref(effect)) != Outcome::Done {
                break;
            }
            for (job, times) in &self.simulation.record.created {
                assert_eq!(*times, 1, "{job} was created {times} times");
                let starts = time_of(job).map_or(1, |slot| self.simulation.starts(slot));
                assert_eq!(starts, 1, "{job} was also created under another name");
            }
            let status = &self.simulation.object["status"];
            let recorded = ["lastScheduleTime", "lastSuccessfulTime"].map(|field| status[field].as_str().map(at));
            for (time, last) in recorded.iter().zip(&self.last_recorded) {
                assert!(time >= last, "a time went back from {last:?} to {time:?}");
            }
            self.last_recorded = recorded;
        }
    }

    /// Asserts that the effect is allowed now.
    fn check_effect(&self, effect: &Effect) {
        let simulation = &self.simulation;
        match effect {
            Effect::Create(job) => {
                let desired = simulation.cached_object().desired();
                let (mut active, name) = (simulation.active(), &*job.key.name);
                // The apiserver rejects a second Job of this name.
                active.retain(|active| *active != *name);
                let is_alone = desired.concurrency == ConcurrencyPolicy::Allow || active.is_empty();
                assert!(is_alone, "{name} starts while {active:?} are active");
                let Some(slot) = slot_of(&job.body) else { return };
                let age = simulation.clock.duration_since(slot);
                let schedule = desired.schedules.first().expect("there is a schedule");
                let deadline = schedule.timetable.as_ref().expect("the schedule is valid").deadline;
                let is_in_time = !age.is_negative() && deadline.is_none_or(|deadline| age < deadline);
                assert!(is_in_time && !desired.suspend, "the run for {slot} starts {age} late");
            }
            Effect::Delete { target, .. } if target.resource == JOBS => {
                assert!(
                    time_of(&target.key.name) <= simulation.last_schedule_time(),
                    "{effect}, but the recorded time is {:?}",
                    simulation.last_schedule_time()
                );
            }
            _ => {}
        }
    }

    /// Finishes all Jobs and lets the process converge, without interference.
    fn quiesce(&mut self) {
        self.simulation.set("suspend", false);
        for _ in 0..3 {
            for job in self.simulation.active() {
                self.simulation.finish(&job, "Complete");
            }
            self.converge();
        }
    }

    pub(super) fn converge(&mut self) {
        for _ in 0..12 {
            self.simulation.sync();
            let before = self.simulation.record.clone();
            self.carry_out_plan(usize::MAX);
            if self.simulation.record.writes == before.writes
                && self.simulation.record.events.len() == before.events.len()
            {
                return;
            }
        }
        panic!("the plans do not converge: {}", self.simulation.plan());
    }

    /// Returns the latest time that must have a Job by now but has none: it is later than all times
    /// with a Job and within its deadline.
    fn overdue_time(&self) -> Option<Timestamp> {
        let object = self.simulation.current_object();
        let timetable: Timetable = timetable_of(&*object);
        let record = &self.simulation.record;
        let status = &self.simulation.object["status"];
        // This excludes times that the previous schedule missed, and times that passed during a
        // suspension and have expired since.
        let since = status["scheduledSince"]
            .as_str()
            .map(at)
            .max(self.simulation.rescheduled());
        assert!(since <= Some(self.simulation.clock), "{since:?} is later");
        let since = since.filter(|_| self.is_edited);
        let base = self
            .simulation
            .last_schedule_time()
            .max(record.last_schedule)
            .max(since)
            .max(Some(at(START)))?;
        let due = timetable.latest(base, self.simulation.clock)?;
        let age = self.simulation.clock.duration_since(due);
        let is_in_time = timetable.deadline.is_none_or(|deadline| age < deadline);
        // All times within a minute share one Job.
        let has_job = self.simulation.starts(due) > 0;
        (is_in_time && !has_job).then_some(due)
    }
}

fn check_runs<K: Sample>(schedule: &str, fields: &Value, events: &[Event]) {
    check_runs_of(CheckedSimulation::<K>::new(schedule, fields), fields, events);
}

/// Applies the events, and checks that every due time has a Job once the interference ends.
pub(super) fn check_runs_of<K: Sample>(mut checked: CheckedSimulation<K>, fields: &Value, events: &[Event]) {
    for event in events {
        checked.apply(event);
    }
    checked.quiesce();
    assert_eq!(
        checked.overdue_time(),
        None,
        "a run is overdue at {}",
        checked.simulation.clock
    );
    // Afterwards the next run starts on time. An `@every` schedule first counts from each Job with
    // a future time.
    let jobs = checked.simulation.record.created.len();
    let has_started = (0..=jobs).any(|_| {
        let Next::At(next) = checked.simulation.plan().next else {
            panic!("the schedule has no next time");
        };
        checked.simulation.clock = next;
        checked.converge();
        checked.simulation.last_schedule_time() == Some(next)
    });
    let is_in_time = fields["startingDeadlineSeconds"] != json!(0);
    assert_eq!(has_started, is_in_time, "{:?}", checked.simulation.record.created);
    assert_quiescent(&mut checked);
}

/// Asserts that no work is left.
fn assert_quiescent<K: Sample>(checked: &mut CheckedSimulation<K>) {
    checked.quiesce();
    let simulation = &checked.simulation;
    assert!(
        simulation.object["status"]["active"]
            .as_array()
            .is_none_or(Vec::is_empty),
        "{}",
        simulation.object
    );
    let keep = &simulation.object["spec"]["successfulJobsHistoryLimit"];
    for how in ["Complete", "Failed"] {
        // If the clock was set back, the times of some Jobs are in the future and thus not
        // recorded.
        let kept: Vec<_> = simulation
            .ended(how)
            .filter(|job| slot_of(job) <= Some(simulation.clock))
            .collect();
        assert!(
            keep.as_u64().is_none_or(|keep| kept.len() as u64 <= keep),
            "the limit is {keep}, but {kept:?} are kept"
        );
    }
    if checked.requested_runs > 0 {
        let name = simulation.names().run_now(&checked.requested_runs.to_string());
        let is_skipped = checked.requested_runs == checked.skipped_run;
        assert_eq!(
            simulation.record.created.get(&name),
            Some(&1).filter(|_| !is_skipped),
            "the Job of the last value must be created once, unless the value precedes the status"
        );
    }
    let runs: BTreeMap<_, _> = simulation
        .record
        .created
        .iter()
        .filter(|(name, _)| time_of(name).is_none())
        .collect();
    assert!(runs.len() <= checked.requested_runs as usize, "{runs:?}");
}

/// Checks that with a clock that only goes forward, every past time either has a Job or counts as
/// missed, but not both.
fn check_missed_count(schedule: &str, fields: &Value, events: &[Event]) {
    let mut checked = CheckedSimulation::<CachedCronTab>::new(schedule, fields);
    for event in events {
        // If a cache lagged by a whole period, a time with a Job would count as missed.
        checked.simulation.sync();
        checked.apply(event);
    }
    checked.quiesce();
    let simulation = &checked.simulation;
    let status = &simulation.object["status"];
    let last_missed = status["lastMissedTime"].as_str().map(at);
    let timetable = timetable_of(&*simulation.current_object());
    let past_times = simulation
        .last_schedule_time()
        .max(last_missed)
        .map_or(0, |last| timetable.count(at(START), last));
    let with_job = simulation.record.created.len() as u64;
    assert_eq!(
        status["missedRuns"],
        u64::from(past_times) - with_job,
        "of {past_times} times, {with_job} have a Job: {status}"
    );
    assert!(
        status["missedRuns"].as_u64() >= Some(simulation.record.missed),
        "{}",
        simulation.record.missed
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn crontab_creates_one_job_per_time(
        schedule in select(vec!["* * * * *", "*/5 * * * *", "30 2 * * *", "0 * * * *", "@every 1m30s"]),
        fields in fields(),
        events in events(),
    ) {
        check_runs::<CachedCronTab>(schedule, &fields, &events);
    }

    #[test]
    fn cronjob_creates_one_job_per_time(
        schedule in select(vec!["* * * * *", "*/5 * * * *", "30 2 * * *", "0 * * * *", "@every 20s", "@every 1m30s"]),
        fields in fields(),
        events in events(),
    ) {
        // A CronJob has no annotation to request a run.
        let events: Vec<_> = events.into_iter().filter(|event| !matches!(event, Event::RunNow)).collect();
        check_runs::<CachedCronJob>(schedule, &fields, &events);
    }

    #[test]
    fn crontab_counts_each_missed_time_once(
        schedule in select(vec!["* * * * *", "*/5 * * * *", "@every 1m30s"]),
        fields in fields(),
        events in events(),
    ) {
        let is_forward = |event: &Event| match event {
            Event::AdjustClock(seconds) => (0..7_200).contains(seconds),
            Event::RunNow | Event::Suspend(_) | Event::Reschedule(_) => false,
            _ => true,
        };
        let events: Vec<_> = events.into_iter().filter(is_forward).collect();
        check_missed_count(schedule, &fields, &events);
    }
}
