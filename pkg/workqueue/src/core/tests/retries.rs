//! Tests of the retry budget: scripts, and simulated storms of failing keys.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::check_with;
use crate::{
    backoff::Backoff,
    core::{Core, Lane, Outcome, RetryBudget, Take},
};

#[test]
fn a_success_returns_its_token_and_releases_two_more() {
    let start = "0 add a urgent
         0 add b urgent
         0 add c urgent
         0 add d urgent
         0 add e urgent
         0 take\n0 take\n0 take\n0 take\n0 take
         0 done a retry\n0 done b retry\n0 done c retry\n0 done d retry\n0 done e retry
         5 take -> a Urgent failures=1 waited=0
         5 take -> b Urgent failures=1 waited=0
         5 take -> c Urgent failures=1 waited=0
         5 take -> Idle
         5 done a retry
         5 done b retry
         5 done c forget -> ran=0 All
         5 take -> d Urgent failures=1 waited=0
         5 take -> e Urgent failures=1 waited=0
         5 take -> Sleep 15";
    check_with(RetryBudget::new(10.0, 3), start);
}

#[test]
fn further_writes_of_a_retry_cost_tokens_too() {
    check_with(
        RetryBudget::new(10.0, 3),
        "0 add a urgent
         0 take
         0 charge a 9
         0 done a retry
         5 take -> a Urgent failures=1 waited=0
         5 charge a 3
         5 done a retry
         15 take -> Sleep 205
         205 take -> a Urgent failures=2 waited=0
         205 charge a 1000
         205 done a retry
         205 charge a 1000
         225 take -> Sleep 605",
    );
}

#[test]
fn flows_take_turns_and_a_success_prefers_its_own() {
    let keys = ["x/1", "x/2", "x/3", "x/4", "x/5", "x/6", "y/1", "y/2", "z/1"];
    let start: Vec<_> = ["add", "take", "done"]
        .iter()
        .flat_map(|call| {
            keys.iter().map(move |key| match *call {
                "add" => format!("0 add {key} urgent"),
                "take" => "0 take".to_owned(),
                _ => format!("0 done {key} retry"),
            })
        })
        .collect();
    check_with(
        RetryBudget::new(10.0, 1),
        &format!(
            "{}
             5 take -> x/1 Urgent failures=1 waited=0
             5 take -> Idle
             5 done x/1 retry
             105 take -> y/1 Urgent failures=1 waited=0
             105 done y/1 retry
             205 take -> z/1 Urgent failures=1 waited=0
             205 done z/1 retry
             305 take -> x/2 Urgent failures=1 waited=0
             305 done x/2 retry
             405 take -> y/2 Urgent failures=1 waited=0
             405 done y/2 retry
             505 take -> z/1 Urgent failures=2 waited=0
             505 done z/1 retry
             605 take -> x/3 Urgent failures=1 waited=0
             605 done x/3 forget
             605 take -> x/4 Urgent failures=1 waited=0
             605 done x/4 forget
             605 take -> x/5 Urgent failures=1 waited=0",
            start.join("\n")
        ),
    );
}

#[test]
fn a_rate_of_zero_holds_nothing() {
    check_with(
        RetryBudget::new(0.0, 1),
        "0 add a urgent
         0 add b urgent
         0 take\n0 take
         0 done a retry
         0 done b retry
         5 take -> a Urgent failures=1 waited=0
         5 take -> b Urgent failures=1 waited=0
         6 done a retry
         6 take -> Sleep 16",
    );
}

const WORKERS: usize = 16;
const RUN_TIME: Duration = Duration::from_millis(5);

/// A namespace and a number.
type Key = (u64, usize);

/// A queue with workers whose runs take time and succeed or fail.
struct Simulation {
    core: Core<Key>,
    start: Instant,
    now: Instant,
    random: fastrand::Rng,
    /// The current runs, by the time of their end.
    running: BTreeMap<(Instant, Key), u32>,
    /// The namespaces whose keys fail.
    refused: Vec<u64>,
    /// The second in which each run failed, and the keys of the others.
    failed: Vec<u64>,
    succeeded: Vec<(Key, Instant)>,
}

impl Simulation {
    fn new() -> Self {
        let start = Instant::now();
        Self {
            core: Core::new(Backoff::DEFAULT, RetryBudget::default(), |key: &Key| key.0),
            start,
            now: start,
            random: fastrand::Rng::with_seed(7),
            running: BTreeMap::new(),
            refused: Vec::new(),
            failed: Vec::new(),
            succeeded: Vec::new(),
        }
    }

    fn add(&mut self, namespace: u64, keys: usize) {
        for number in 0..keys {
            self.core.add((namespace, number), Lane::Urgent, self.now);
        }
    }

    /// Runs the workers until this time.
    fn run_until(&mut self, end: Instant) {
        loop {
            let mut next = None;
            while self.running.len() < WORKERS && next.is_none() {
                match self.core.take(self.now) {
                    Take::Run(run) => drop(self.running.insert((self.now + RUN_TIME, run.key), run.failures)),
                    Take::Sleep(until) => next = Some(until),
                    Take::Idle | Take::Closed => break,
                }
            }
            let first_end = self.running.first_key_value().map(|((end, _), _)| *end);
            let Some(time) = next.into_iter().chain(first_end).min().filter(|time| *time < end) else {
                self.now = end;
                return;
            };
            self.now = time;
            while let Some(run) = self.running.first_entry().filter(|run| run.key().0 <= time) {
                let (_, key) = *run.key();
                run.remove();
                self.end_run(key);
            }
        }
    }

    fn end_run(&mut self, key: Key) {
        let outcome = if self.refused.contains(&key.0) {
            self.failed.push((self.now - self.start).as_secs());
            Outcome::Retry
        } else {
            self.succeeded.push((key, self.now));
            Outcome::Forget
        };
        self.core.done(&key, outcome, self.random.f64(), self.now).unwrap();
    }

    fn minutes(&mut self, minutes: u64) {
        self.run_until(self.start + Duration::from_mins(minutes));
    }
}

/// Returns a storm in which 10,000 keys of one namespace have been failing for five minutes.
fn storm() -> Simulation {
    let mut simulation = Simulation::new();
    simulation.refused.push(1);
    simulation.add(1, 10_000);
    simulation.minutes(5);
    simulation
}

#[test]
fn a_storm_fails_at_most_at_the_rate_of_the_budget() {
    let simulation = storm();
    let later: Vec<_> = simulation.failed.iter().filter(|second| **second >= 60).collect();
    assert!((2380..=2401).contains(&later.len()), "{}", later.len());
    for second in 60..300 {
        let runs = later.iter().filter(|failed| ***failed == second).count();
        assert!(runs <= 11, "{runs} runs in second {second}");
    }
}

#[test]
fn a_storm_is_made_up_soon_after_its_cause_is_gone() {
    let mut simulation = storm();
    simulation.refused.clear();
    let lifted = simulation.now;
    simulation.minutes(7);
    assert_eq!(simulation.succeeded.len(), 10_000);
    let time = |count: usize| simulation.succeeded[count - 1].1 - lifted;
    // The workers need 3.2 s. The keys that were retried last are still in backoff.
    assert!(time(9_500) < Duration::from_secs(5), "{:?}", time(9_500));
    assert!(time(10_000) < Duration::from_secs(31), "{:?}", time(10_000));
}

#[test]
fn a_new_key_waits_for_a_burst_of_retries_at_most() {
    let mut simulation = storm();
    simulation.refused.clear();
    for _ in 0..20 {
        let added = simulation.now;
        simulation.add(2, 1);
        simulation.run_until(added + Duration::from_millis(100));
        let (_, ended) = simulation.succeeded.iter().rfind(|(key, _)| key.0 == 2).unwrap();
        // Seven rounds of 16 workers are 112 runs.
        assert!(*ended - added <= RUN_TIME * 8, "{:?}", *ended - added);
    }
}

#[test]
fn a_storm_does_not_delay_the_retries_of_another_namespace() {
    let mut simulation = storm();
    simulation.refused.push(2);
    simulation.add(2, 5);
    simulation.minutes(6);
    simulation.refused.pop();
    let lifted = simulation.now;
    simulation.minutes(7);
    let recovered = simulation.succeeded.iter().filter(|(key, _)| key.0 == 2);
    let times: Vec<_> = recovered.map(|(_, time)| *time - lifted).collect();
    assert_eq!(times.len(), 5);
    assert!(times.iter().all(|time| *time < Duration::from_secs(31)), "{times:?}");
    assert!(simulation.failed.len() > 13_000, "{}", simulation.failed.len());
}
