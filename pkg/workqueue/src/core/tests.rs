//! Tests of the core as scripts. A line is `<milliseconds> <call> -> <result>`. Without an arrow,
//! the result is not checked.

mod delays;
mod flows;
mod retries;

use std::time::Duration;

use tokio::time::Instant;

use super::{Core, Done, Flow, Lane, Outcome, RetryBudget, Run, Take};
use crate::backoff::Backoff;

struct Script {
    core: Core<String>,
    start: Instant,
}

impl Script {
    fn at(&self, millis: &str) -> Instant {
        self.start + Duration::from_millis(millis.parse().unwrap())
    }

    fn outcome(&self, word: &str) -> Outcome {
        match word.split_once('=').unwrap_or((word, "")) {
            ("forget", _) => Outcome::Forget,
            ("retry", _) => Outcome::Retry,
            ("after", "max") => Outcome::RetryAfter(Duration::MAX),
            ("after", millis) => Outcome::RetryAfter(Duration::from_millis(millis.parse().unwrap())),
            ("unavailable", millis) => Outcome::RetryUnavailable(Duration::from_millis(millis.parse().unwrap())),
            ("at", millis) => Outcome::At(self.at(millis)),
            other => panic!("unknown outcome: {other:?}"),
        }
    }

    fn call(&mut self, text: &str) -> String {
        let words: Vec<&str> = text.split_whitespace().collect();
        let now = self.at(words[0]);
        match words[1..] {
            ["add", key, lane] => format!("{:?}", self.core.add(key.into(), parse_lane(lane), now)),
            ["add", key, lane, when] => {
                let when = self.at(when);
                format!("{:?}", self.core.add_at(key.into(), when, parse_lane(lane), now))
            }
            ["take"] => match self.core.take(now) {
                Take::Run(Run {
                    key,
                    lane,
                    failures,
                    waited,
                }) => format!("{key} {lane:?} failures={failures} waited={}", waited.as_millis()),
                Take::Sleep(until) => format!("Sleep {}", (until - self.start).as_millis()),
                Take::Idle => "Idle".to_owned(),
                Take::Closed => "Closed".to_owned(),
            },
            ["done", key, outcome] => match self.core.done(&key.to_owned(), self.outcome(outcome), 0.0, now) {
                Some(Done { ran, wake }) => format!("ran={} {wake:?}", ran.as_millis()),
                None => "not running".to_owned(),
            },
            ["charge", key, writes] => {
                self.core.charge(&key.to_owned(), writes.parse().unwrap(), now);
                String::new()
            }
            ["end_outage", spread] => {
                let spread = Duration::from_millis(spread.parse().unwrap());
                format!("{:?}", self.core.end_outage(|| spread, now))
            }
            ["close"] => format!("{:?}", self.core.close()),
            ["observe"] => {
                let snapshot = self.core.observe(now);
                let millis = |time: Option<Duration>| time.map_or("-".to_owned(), |time| time.as_millis().to_string());
                format!(
                    "ready={} delayed={} running={} rerun={} oldest={} longest={} unfinished={}",
                    snapshot.ready,
                    snapshot.delayed,
                    snapshot.running,
                    snapshot.rerun,
                    millis(snapshot.oldest_ready),
                    millis(snapshot.longest_running),
                    snapshot.unfinished.as_millis()
                )
            }
            ["tally"] => {
                let tally = self.core.drain_tally();
                format!("added={} retried={}", tally.added, tally.retried)
            }
            ["keys"] => self.core.items.len().to_string(),
            _ => panic!("unknown call: {text}"),
        }
    }
}

fn parse_lane(word: &str) -> Lane {
    match word {
        "urgent" => Lane::Urgent,
        "routine" => Lane::Routine,
        other => panic!("unknown lane: {other}"),
    }
}

/// Returns the part of a key before the slash as its flow.
fn flow_of(key: &str) -> Flow {
    let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
    namespace.bytes().next().unwrap_or(0).into()
}

#[track_caller]
fn check(script: &str) {
    check_with(RetryBudget::default(), script);
}

#[track_caller]
fn check_with(budget: RetryBudget, script: &str) {
    let mut run = Script {
        core: Core::new(Backoff::DEFAULT, budget, |key: &String| flow_of(key)),
        start: Instant::now(),
    };
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (call, expected) = line.split_once(" -> ").unwrap_or((line, ""));
        let result = run.call(call);
        assert!(
            expected.is_empty() || result == expected,
            "{call}\n  answered {result}\n  expected {expected}"
        );
    }
}

#[test]
fn adds_while_running_are_redelivered_once() {
    check(
        "0 add a urgent
         0 take
         1 add a urgent -> Nobody
         2 add a routine -> Nobody
         5 done a forget -> ran=5 One
         5 take -> a Urgent failures=0 waited=4
         5 done a forget -> ran=0 Nobody
         5 take -> Idle
         5 keys -> 0",
    );
}

#[test]
fn every_eighth_take_is_from_the_routine_lane() {
    let mut core = Core::new(Backoff::DEFAULT, RetryBudget::default(), |_| 0);
    let now = Instant::now();
    for key in 0..30 {
        core.add(key, Lane::Urgent, now);
        core.add(key + 100, Lane::Routine, now);
    }
    let taken: Vec<i32> = (0..24)
        .map(|_| match core.take(now) {
            Take::Run(run) => run.key,
            other => panic!("{other:?}"),
        })
        .collect();
    let routine: Vec<(usize, i32)> = taken.into_iter().enumerate().filter(|(_, key)| *key >= 100).collect();
    assert_eq!(routine, [(7, 100), (15, 101), (23, 102)]);
}

#[test]
fn only_running_keys_can_be_done() {
    check(
        "0 done a forget -> not running
         0 add a urgent
         0 done a forget -> not running
         0 take -> a Urgent failures=0 waited=0
         0 done a retry
         0 done a forget -> not running
         0 take -> Sleep 5",
    );
}

#[test]
fn close_drops_waiting_keys_and_lets_runs_end() {
    check(
        "0 add a urgent
         0 take
         0 add b urgent
         0 add c routine 50
         0 add a urgent
         1 close -> All
         1 keys -> 1
         1 take -> Closed
         1 add d urgent -> Nobody
         1 add d urgent 50 -> Nobody
         2 observe -> ready=0 delayed=0 running=1 rerun=1 oldest=- longest=2 unfinished=2
         3 done a retry -> ran=3 Nobody
         3 keys -> 0
         99 take -> Closed",
    );
}

#[test]
fn observe_returns_counts_and_ages() {
    check(
        "0 observe -> ready=0 delayed=0 running=0 rerun=0 oldest=- longest=- unfinished=0
         0 add a urgent
         0 add b urgent
         0 add c routine
         2 add d urgent
         5 take -> a Urgent failures=0 waited=5
         7 take -> b Urgent failures=0 waited=7
         8 add a urgent
         8 add b urgent 20
         8 add e urgent 12
         10 observe -> ready=2 delayed=1 running=2 rerun=1 oldest=10 longest=5 unfinished=8
         20 observe -> ready=3 delayed=0 running=2 rerun=2 oldest=20 longest=15 unfinished=28",
    );
}

#[test]
fn the_tally_counts_ready_and_delayed_keys() {
    check(
        "0 add a urgent
         0 add a urgent
         0 tally -> added=1 retried=0
         0 add b urgent 10
         0 tally -> added=0 retried=1
         10 take
         10 tally -> added=1 retried=0
         10 add a urgent
         10 done a retry
         10 tally -> added=1 retried=1
         10 tally -> added=0 retried=0",
    );
}

#[test]
fn memory_is_freed_after_a_burst() {
    let mut core = Core::new(Backoff::DEFAULT, RetryBudget::default(), |_| 0);
    let now = Instant::now();
    for key in 0..100_000 {
        core.add(key, Lane::Routine, now);
    }
    while let Take::Run(run) = core.take(now) {
        core.done(&run.key, Outcome::Forget, 0.0, now).unwrap();
    }
    assert!(core.items.capacity() < 4096, "{}", core.items.capacity());
}
