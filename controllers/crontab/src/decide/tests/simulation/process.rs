//! The process's side of the simulation: it observes its caches, decides, and carries out plans.

use std::sync::Arc;

use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Next, Plan, RequestState, Target};

use super::{Outcome, Process, Simulation, is_owned};
use crate::{
    decide::{decide, refused, tests::samples::Sample},
    input::ObservedRuns,
    job::CachedJob,
    job_names,
    schedule_resource::Observed,
};

impl<K: Sample> Simulation<K> {
    /// Returns the plan for the current caches.
    pub(in crate::decide::tests) fn plan(&self) -> Plan {
        let plan = decide(&self.observed(), self.clock);
        if let Next::At(next) = plan.next {
            assert!(next > self.clock, "{next} is not later than {}: {plan}", self.clock);
        }
        plan
    }

    fn observed(&self) -> Observed<K> {
        let objects = if self.is_earlier_version {
            &self.earlier_objects
        } else {
            &self.objects
        };
        let object = Arc::clone(&objects[self.process.object]);
        let jobs = self.job_sets[self.process.jobs].values();
        let (ours, others): (Vec<_>, Vec<_>) = jobs.partition(|job| is_owned(job, object.metadata()));
        let ours = ours.into_iter().cloned().collect();
        let mut observed = Observed::new(object, ours, self.observed_runs());
        let used = observed.names().prefixes(["default"].into_iter());
        let may_take_name = |job: &&Arc<CachedJob>| {
            let prefixes = job_names::prefixes(job.name());
            used.iter().any(|prefix| prefixes.contains(&&**prefix))
        };
        let foreign = others.into_iter().filter(may_take_name);
        let names = foreign.map(|job| Arc::clone(&job.metadata().name));
        observed.taken_names.extend(names);
        observed
    }

    /// Brings both caches up to date.
    pub(in crate::decide::tests) fn sync(&mut self) {
        self.deliver(usize::MAX, usize::MAX);
    }

    /// Delivers this many more changes to the caches.
    pub(in crate::decide::tests) fn deliver(&mut self, object: usize, jobs: usize) {
        let (object_before, jobs_before) = (self.process.object, self.process.jobs);
        self.process.object = object_before.saturating_add(object).min(self.objects.len() - 1);
        self.process.jobs = jobs_before.saturating_add(jobs).min(self.job_sets.len() - 1);
        let delivered = &self.objects[object_before..=self.process.object];
        let object = &self.objects[self.process.object];
        let mut observed_runs = self.observed_runs();
        observed_runs.is_status_refused &= delivered.len() == 1;
        let uid = &object.metadata().uid;
        let mut standby_runs = self.process.standby_runs.get(uid).cloned().unwrap_or_default();
        let mut both = [&mut observed_runs, &mut standby_runs];
        if delivered.windows(2).any(|pair| K::is_rescheduled(&pair[0], &pair[1])) {
            for runs in &mut both {
                runs.schedule_mut("default").rescheduled = Some(self.clock);
            }
        }
        let delivered = &self.job_sets[jobs_before..=self.process.jobs];
        // A Job is recorded when it is deleted, too: its time may have been in the future before.
        // Recording a Job again changes nothing else.
        let deleted = delivered.windows(2).flat_map(|pair| {
            let remaining = &pair[1];
            let jobs = pair[0].iter().filter(|(name, _)| !remaining.contains_key(*name));
            jobs.map(|(_, job)| (job, true))
        });
        let shown = delivered.iter().skip(1).flat_map(|jobs| jobs.values());
        for (job, is_deleted) in shown.map(|job| (job, false)).chain(deleted) {
            if is_owned(job, object.metadata()) {
                for runs in &mut both {
                    runs.observe_job(&**object, job, is_deleted, self.clock);
                }
            }
        }
        let uid = Arc::clone(&object.metadata().uid);
        self.process.standby_runs.insert(Arc::clone(&uid), standby_runs);
        self.process.observed_runs.insert(uid, observed_runs);
    }

    pub(super) fn observed_runs(&self) -> ObservedRuns {
        let uid = &self.objects[self.process.object].metadata().uid;
        let mut observed_runs = self.process.observed_runs.get(uid).cloned().unwrap_or_default();
        observed_runs.limit_rescheduled(self.clock);
        observed_runs
    }

    pub(super) fn observe_request(&mut self, effect: &Effect, state: RequestState<'_>) -> bool {
        let object = Arc::clone(&self.objects[self.process.object]);
        let observed_runs = self.process.observed_runs.entry(Arc::clone(&object.metadata().uid));
        let jobs = &self.job_sets[self.process.jobs];
        let is_cached = |target: &Target| {
            let cached = jobs.get(&*target.key.name);
            cached.is_some_and(|cached| cached.metadata().uid == target.uid)
        };
        let observed_runs = observed_runs.or_default();
        observed_runs.observe_request(&*object, effect, state, self.clock, is_cached)
    }

    /// Another process takes over and lists both resources.
    pub(in crate::decide::tests) fn restart(&mut self) {
        self.process = Process {
            object: self.objects.len() - 1,
            jobs: self.job_sets.len() - 2,
            ..Process::default()
        };
        let unrecorded = self.objects[self.process.object].unrecorded_schedules();
        let mut observed_runs = ObservedRuns::default();
        observed_runs.record_found_changed(&unrecorded, self.clock);
        let uid = Arc::clone(&self.objects[self.process.object].metadata().uid);
        self.process
            .standby_runs
            .insert(Arc::clone(&uid), observed_runs.clone());
        self.process.observed_runs.insert(uid, observed_runs);
        self.deliver(0, 1);
    }

    /// Another process takes over, which runs an earlier version or the current one.
    pub(in crate::decide::tests) fn restart_as(&mut self, is_earlier_version: bool) {
        self.is_earlier_version = is_earlier_version;
        self.restart();
    }

    /// A standby takes over, which has watched the same changes.
    pub(in crate::decide::tests) fn fail_over(&mut self) {
        self.process.reported.clear();
        self.process.observed_runs = self.process.standby_runs.clone();
    }

    /// A standby takes over, and lists both resources again before it acts.
    pub(in crate::decide::tests) fn take_over(&mut self) {
        self.fail_over();
        self.sync();
    }

    /// Reconciles once on caches that are up to date. Returns whether anything was done.
    pub(in crate::decide::tests) fn step(&mut self) -> bool {
        self.sync();
        let before = self.activity();
        let plan = self.plan();
        let outcome = self.reconcile();
        assert_ne!(
            outcome,
            Outcome::Stale,
            "a plan on current caches must not be stale: {plan}"
        );
        self.activity() != before
    }

    /// Reconciles once on the current caches.
    pub(in crate::decide::tests) fn reconcile(&mut self) -> Outcome {
        let outcome = self.carry_out(&self.plan().effects);
        let report = self.report(&outcome);
        let reported = self.carry_out(&report.effects);
        // If the report is rejected as well, the worker sends the events about that.
        let events = self.report(&reported).into_one_time_events();
        self.carry_out(&events.effects);
        if [&outcome, &reported].into_iter().any(is_rejected_status) {
            let uid = Arc::clone(&self.objects[self.process.object].metadata().uid);
            self.process.observed_runs.entry(uid).or_default().is_status_refused = true;
        }
        outcome
    }

    /// Returns the plan after an effect was rejected.
    pub(in crate::decide::tests) fn report(&self, outcome: &Outcome) -> Plan {
        match outcome {
            Outcome::Rejected(effect, why) => refused(&self.observed(), effect, why, self.clock),
            _ => Plan::nothing(),
        }
    }

    /// Reconciles until there is nothing to do. Returns how often there was something to do.
    pub(in crate::decide::tests) fn converge(&mut self) -> usize {
        (0..12)
            .find(|_| !self.step())
            .unwrap_or_else(|| panic!("the plans do not converge: {}", self.plan()))
    }

    /// Sets the clock and reconciles until there is nothing to do.
    pub(in crate::decide::tests) fn converge_at(&mut self, time: &str) {
        self.set_clock(time);
        self.converge();
    }

    /// Returns counters that change with every write, event and counted miss.
    pub(in crate::decide::tests) fn activity(&self) -> (u32, usize, u64) {
        (self.record.writes, self.record.events.len(), self.record.missed)
    }

    /// Carries out effects in order until one fails.
    pub(in crate::decide::tests) fn carry_out(&mut self, effects: &[Effect]) -> Outcome {
        let mut outcomes = effects.iter().map(|effect| self.perform(effect));
        outcomes
            .find(|outcome| *outcome != Outcome::Done)
            .unwrap_or(Outcome::Done)
    }
}

fn is_rejected_status(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Rejected(effect, _) if effect.status_target().is_some())
}
