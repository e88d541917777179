//! Interrupts plans between any two effects: the result is the same, and no effect is repeated.

use std::collections::BTreeMap;

use super::{
    cases::{Cases, common_cases, cronjob_only, crontab_only},
    samples::Sample,
    simulation::{Outcome, Record, Simulation},
};
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

/// An interruption between two effects.
#[derive(Clone, Copy, Debug)]
enum Interruption {
    /// A write fails, and the process reconciles again.
    Failure(Caches),
    /// The process ends, and the next one lists both resources.
    Restart,
    /// The process ends, and a standby continues with its own caches.
    FailOver(Caches),
}

/// The caches that have received the changes since the last reconcile.
#[derive(Clone, Copy, Debug)]
enum Caches {
    Both,
    Object,
    Jobs,
    Neither,
}

fn interruptions() -> impl Iterator<Item = Interruption> {
    let caches = [Caches::Both, Caches::Object, Caches::Jobs, Caches::Neither];
    let failures = caches.map(Interruption::Failure).into_iter();
    failures
        .chain([Interruption::Restart])
        .chain(caches.map(Interruption::FailOver))
}

/// Cases whose result depends on the process's memory of a changed schedule. The status of a
/// CronJob never records the change, and the status of a CronTab only after the next write. After a
/// restart, a CronJob counts from the last run and a CronTab from the current time.
const MEMORY_DEPENDENT: [(&str, &str); 4] = [
    ("CronJob", "rescheduled"),
    ("CronJob", "rescheduled, and due before it was recorded"),
    ("CronJob", "another zone"),
    ("CronTab", "rescheduled, and due before it was recorded"),
];

#[test]
fn interruptions_of_a_crontab_do_not_change_the_result() {
    let crashes = interrupt_everywhere::<CachedCronTab>(common_cases()) + interrupt_everywhere(crontab_only());
    assert!(crashes > 2_000, "the test tried only {crashes} interruptions");
}

#[test]
fn interruptions_of_a_cronjob_do_not_change_the_result() {
    let crashes = interrupt_everywhere::<CachedCronJob>(common_cases()) + interrupt_everywhere(cronjob_only());
    assert!(crashes > 1_000, "the test tried only {crashes} interruptions");
}

fn interrupt_everywhere<K: Sample>(cases: Cases<K>) -> usize {
    let mut tried = 0;
    for (case, start) in cases {
        let mut undisturbed = start.clone();
        let rounds = undisturbed.converge();
        let expected = undisturbed.snapshot();
        let is_memory_dependent = MEMORY_DEPENDENT.contains(&(&*K::RESOURCE.kind, case));
        for round in 0..rounds {
            let mut before = start.clone();
            (0..round).for_each(|_| _ = before.step());
            before.sync();
            let effects = before.plan().effects;
            for done in 0..=effects.len() {
                let mut simulation = before.clone();
                assert_eq!(simulation.carry_out(&effects[..done]), Outcome::Done, "{case}");
                for how in interruptions() {
                    let is_another_process = !matches!(how, Interruption::Failure(_));
                    if is_memory_dependent && matches!(how, Interruption::Restart) {
                        continue;
                    }
                    let case = || format!("{case}: {how:?} in round {round} after {done}");
                    let ended = interrupted(simulation.clone(), how);
                    assert_eq!(ended.snapshot(), expected, "{}", case());
                    compare(&case, &ended.record, &undisturbed.record, is_another_process);
                    tried += 1;
                }
            }
        }
    }
    tried
}

/// Reconciles twice on stale caches and then converges.
fn interrupted<K: Sample>(mut simulation: Simulation<K>, how: Interruption) -> Simulation<K> {
    let all = usize::MAX;
    let caches = match how {
        Interruption::Failure(caches) => caches,
        Interruption::Restart => {
            simulation.restart();
            Caches::Both
        }
        Interruption::FailOver(caches) => {
            simulation.fail_over();
            caches
        }
    };
    match caches {
        Caches::Both => simulation.deliver(all, all),
        Caches::Object => simulation.deliver(all, 0),
        Caches::Jobs => simulation.deliver(0, all),
        Caches::Neither => {}
    }
    for _ in 0..2 {
        let effects = simulation.plan().effects;
        simulation.carry_out(&effects);
    }
    simulation.converge();
    simulation
}

fn compare(case: &dyn Fn() -> String, ended: &Record, undisturbed: &Record, is_another_process: bool) {
    assert_eq!(ended.created, undisturbed.created, "{}", case());
    assert!(ended.created.values().all(|times| *times == 1), "{}: {ended:?}", case());
    assert!(ended.missed <= undisturbed.missed, "{}", case());
    let allowed = events(undisturbed);
    for ((text, is_deduplicated), times) in events(ended) {
        let allowed = allowed.get(&(text, is_deduplicated)).copied().unwrap_or_default();
        // Each process may send an event once if no status records it.
        let allowed = if is_deduplicated && is_another_process {
            2 * allowed
        } else {
            allowed
        };
        assert!(times <= allowed, "{}: {times} times: {text}", case());
    }
}

fn events(record: &Record) -> BTreeMap<(&str, bool), usize> {
    let mut events = BTreeMap::new();
    for event in &record.events {
        *events.entry((&*event.message, event.is_deduplicated)).or_default() += 1;
    }
    events
}
