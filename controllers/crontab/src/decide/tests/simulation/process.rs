//! What the process does: it observes its caches, decides, and carries out.

use std::sync::Arc;

use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Next, Plan};

use super::{Outcome, Process, Simulation, is_owned};
use crate::{
    decide::{Observed, ObservedRuns, decide, refused, tests::samples::Sample},
    job::CachedJob,
};

impl<K: Sample> Simulation<K> {
    /// What is decided on the caches now.
    pub(in crate::decide::tests) fn plan(&self) -> Plan {
        let plan = decide(&self.observed(), self.clock);
        if let Next::At(next) = plan.next {
            assert!(next > self.clock, "{next} is not later than {}: {plan}", self.clock);
        }
        plan
    }

    fn observed(&self) -> Observed<K> {
        let object = Arc::clone(&self.objects[self.process.object]);
        let name = &object.metadata().name;
        let jobs = self.job_sets[self.process.jobs].values();
        let (ours, others): (Vec<_>, Vec<_>) = jobs.partition(|job| is_owned(job, object.metadata()));
        let is_namesake = |job: &&Arc<CachedJob>| {
            let prefixes = crate::prefixes(job.name());
            crate::used_prefixes(name).any(|prefix| prefixes.contains(&prefix))
        };
        let namesakes = others.into_iter().filter(is_namesake);
        Observed {
            jobs: ours.into_iter().cloned().collect(),
            taken_names: namesakes.map(|job| Arc::clone(&job.metadata().name)).collect(),
            runs: self.observed_runs(),
            object,
        }
    }

    /// Both caches are as the apiserver is.
    pub(in crate::decide::tests) fn sync(&mut self) {
        self.deliver(usize::MAX, usize::MAX);
    }

    /// Watches tell of that many changes more.
    pub(in crate::decide::tests) fn deliver(&mut self, object: usize, jobs: usize) {
        let (object_before, jobs_before) = (self.process.object, self.process.jobs);
        self.process.object = object_before.saturating_add(object).min(self.objects.len() - 1);
        self.process.jobs = jobs_before.saturating_add(jobs).min(self.job_sets.len() - 1);
        let told = &self.objects[object_before..=self.process.object];
        let object = &self.objects[self.process.object];
        let mut observed_runs = self.observed_runs();
        if told.windows(2).any(|pair| K::is_rescheduled(&pair[0], &pair[1])) {
            observed_runs.rescheduled = Some(self.clock);
        }
        let told = &self.job_sets[jobs_before..=self.process.jobs];
        // What is told again is noted again, and that changes nothing.
        for job in told.iter().skip(1).flat_map(|jobs| jobs.values()) {
            if is_owned(job, object.metadata()) {
                observed_runs.record_job(&**object, job, self.clock);
            }
        }
        let uid = Arc::clone(&object.metadata().uid);
        self.process.observed_runs.insert(uid, observed_runs);
    }

    pub(super) fn observed_runs(&self) -> ObservedRuns {
        let uid = &self.objects[self.process.object].metadata().uid;
        self.process.observed_runs.get(uid).cloned().unwrap_or_default()
    }

    /// Another process takes over. It reads both lists anew.
    pub(in crate::decide::tests) fn restart(&mut self) {
        self.process = Process {
            object: self.objects.len() - 1,
            jobs: self.job_sets.len() - 2,
            ..Process::default()
        };
        self.deliver(0, 1);
    }

    /// Another process takes over, a standby that watched what this one did.
    pub(in crate::decide::tests) fn fail_over(&mut self) {
        self.process.said.clear();
    }

    /// Decides once and carries it out. Returns whether there was anything to do.
    pub(in crate::decide::tests) fn step(&mut self) -> bool {
        self.sync();
        let before = self.activity();
        let plan = self.plan();
        let outcome = self.reconcile();
        assert_ne!(outcome, Outcome::Stale, "decided on what is there: {plan}");
        self.activity() != before
    }

    /// The same on the caches as they are.
    pub(in crate::decide::tests) fn reconcile(&mut self) -> Outcome {
        let outcome = self.carry_out(&self.plan().effects);
        if let Outcome::Refused(effect, why) = &outcome {
            let plan = refused(&self.observed(), effect, why, self.clock);
            self.carry_out(&plan.effects);
        }
        outcome
    }

    /// Decides and acts until there is nothing to do; returns how often there was.
    pub(in crate::decide::tests) fn converge(&mut self) -> usize {
        (0..12)
            .find(|_| !self.step())
            .unwrap_or_else(|| panic!("it goes on for ever: {}", self.plan()))
    }

    /// What changes with everything that is done.
    pub(in crate::decide::tests) fn activity(&self) -> (u32, usize, u64) {
        (self.record.writes, self.record.events.len(), self.record.missed)
    }

    /// Does one after the other, until one does not succeed.
    pub(in crate::decide::tests) fn carry_out(&mut self, effects: &[Effect]) -> Outcome {
        let mut outcomes = effects.iter().map(|effect| self.perform(effect));
        outcomes
            .find(|outcome| *outcome != Outcome::Done)
            .unwrap_or(Outcome::Done)
    }
}
