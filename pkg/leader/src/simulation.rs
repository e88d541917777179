//! Simulates candidates for one Lease. Responses are late or lost, processes stop, boot clocks
//! differ, and the Lease is deleted.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use proptest::prelude::*;

use crate::elector::{
    AttemptResult, BootTime, ElectionTimings, Elector, ElectorAction, ElectorEvent, ObservedRecord, StepContext,
};

/// One tick of simulated time.
const TICK: Duration = Duration::from_millis(50);
const TIMES: ElectionTimings = ElectionTimings {
    lease_duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry_period: Duration::from_millis(500),
};

/// The apiserver: one object, and a version that each write increments.
#[derive(Default)]
struct Server {
    version: u64,
    lease: Option<(u64, LeaseSpec)>,
}

impl Server {
    /// Writes the record if the version is still `read`, and returns whether it did. `None` means
    /// that no Lease existed.
    fn write(&mut self, read: Option<u64>, record: LeaseSpec) -> bool {
        if self.lease.as_ref().map(|(version, _)| *version) != read {
            return false;
        }
        self.version += 1;
        self.lease = Some((self.version, record));
        true
    }
}

/// A process, which only knows the time of its own boot clock.
struct Process {
    name: String,
    elector: Elector,
    observed: Option<ObservedRecord>,
    cached: Option<(u64, LeaseSpec)>,
    boot_offset: Duration,
    input: Option<ElectorEvent>,
    /// The attempt in progress.
    call: Option<Call>,
    stopped: u32,
    wakes_at: Option<BootTime>,
    has_lost: bool,
}

struct Call {
    /// When its last request started.
    began: BootTime,
    times_out_at: BootTime,
    phase: Phase,
}

enum Phase {
    /// The read reaches the server in this many ticks.
    Read { ticks: u32 },
    /// The write reaches the server in this many ticks.
    Write {
        ticks: u32,
        read: Option<u64>,
        record: LeaseSpec,
    },
    /// The response reaches the process in this many ticks, or never if it is `None`.
    Response {
        ticks: Option<u32>,
        result: AttemptResult,
        lease: Option<(u64, LeaseSpec)>,
    },
}

impl Process {
    fn new(number: usize, boot_offset: Duration) -> Self {
        Self {
            name: format!("candidate-{number}"),
            elector: Elector::new(TIMES),
            observed: None,
            cached: None,
            boot_offset,
            input: Some(ElectorEvent::Tick),
            call: None,
            stopped: 0,
            wakes_at: None,
            has_lost: false,
        }
    }

    fn acts(&self, now: BootTime) -> bool {
        self.elector.deadline().is_some_and(|deadline| now < deadline)
    }

    fn record(&self, transitions: i32, now: BootTime) -> LeaseSpec {
        // The renewal time only makes records differ. It comes from this process's boot clock.
        let micros = i64::try_from(now.as_micros()).unwrap();
        LeaseSpec {
            holder_identity: Some(self.name.clone()),
            lease_duration_seconds: Some(3),
            lease_transitions: Some(transitions),
            renew_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(
                jiff::Timestamp::from_microsecond(micros).unwrap(),
            )),
            ..LeaseSpec::default()
        }
    }

    /// Runs one tick of a process that is not stopped.
    fn run(&mut self, server_time: BootTime, jitter: f64) {
        let now = server_time + self.boot_offset;
        if let Some(call) = &self.call
            && now >= call.times_out_at
        {
            self.input = Some(ElectorEvent::Attempted {
                began: call.began,
                result: AttemptResult::Failed,
            });
            self.call = None;
        }
        if self.call.is_some() || self.has_lost {
            return;
        }
        if self.input.is_none() && self.wakes_at.is_none_or(|at| now < at) {
            return;
        }
        let mut input = self.input.take().unwrap_or(ElectorEvent::Tick);
        loop {
            let context = StepContext {
                now,
                observed: self.observed.as_ref(),
                acquire_delay: Duration::ZERO,
                jitter,
            };
            match self.elector.step(input, &self.name, &context) {
                ElectorAction::Won => input = ElectorEvent::Tick,
                ElectorAction::Wait(until) => {
                    self.wakes_at = Some(until);
                    return;
                }
                ElectorAction::Lost(_) => {
                    self.has_lost = true;
                    return;
                }
                ElectorAction::Attempt { live } => {
                    let phase = match self.cached.clone().filter(|_| !live) {
                        Some((version, record)) => Phase::Write {
                            ticks: 1,
                            read: Some(version),
                            record: self.record(record.lease_transitions.unwrap_or(0), now),
                        },
                        None => Phase::Read { ticks: 1 },
                    };
                    let times_out_at = self.times_out_at(now);
                    self.call = Some(Call {
                        began: now,
                        times_out_at,
                        phase,
                    });
                    return;
                }
            }
        }
    }

    /// Returns when a request that starts now times out.
    fn times_out_at(&self, now: BootTime) -> BootTime {
        let limit = now + TIMES.request_timeout();
        self.elector.deadline().map_or(limit, |deadline| deadline.min(limit))
    }

    /// Makes the lock's decision on the Lease that the guard presents.
    fn decide(&mut self, lease: Option<(u64, LeaseSpec)>, now: BootTime, delay: u32) -> Phase {
        let leads = self.elector.deadline().is_some();
        let before = self.observed.take();
        let observed = match &lease {
            Some((_, record)) => ObservedRecord::observe(before, record.clone(), now),
            None => ObservedRecord::observe_missing(before, &self.name, now),
        };
        let holder = observed.holder().map(str::to_owned);
        let is_free = now >= observed.free_from(TIMES.lease_duration) && !(leads && holder.is_some());
        self.observed = Some(observed);
        let transitions = lease
            .as_ref()
            .and_then(|(_, record)| record.lease_transitions)
            .unwrap_or(0);
        let read = lease.as_ref().map(|(version, _)| *version);
        if holder.as_deref() == Some(&*self.name) {
            return Phase::Write {
                ticks: delay,
                read,
                record: self.record(transitions, now),
            };
        }
        if is_free {
            return Phase::Write {
                ticks: delay,
                read,
                record: self.record(transitions + 1, now),
            };
        }
        Phase::Response {
            ticks: Some(delay),
            result: AttemptResult::HeldByAnother,
            lease,
        }
    }

    /// Observes the current Lease, like a watch that is never late.
    fn watch(&mut self, server: &Server, server_time: BootTime) {
        let now = server_time + self.boot_offset;
        let before = self.observed.clone();
        let observed = match &server.lease {
            Some((_, record)) => ObservedRecord::observe(before.clone(), record.clone(), now),
            None => ObservedRecord::observe_missing(before.clone(), &self.name, now),
        };
        if server.lease.is_none() {
            self.cached = None;
        }
        if before.as_ref() != Some(&observed) {
            self.wakes_at = Some(now);
        }
        self.observed = Some(observed);
    }

    /// Advances a call by one tick. The network continues while a process is stopped; responses
    /// wait until the process resumes.
    fn deliver(&mut self, server: &mut Server, server_time: BootTime, network: &mut Network) {
        let now = server_time + self.boot_offset;
        let Some(mut call) = self.call.take() else { return };
        call.phase = match call.phase {
            Phase::Read { ticks: 0 } if self.stopped == 0 => {
                (call.began, call.times_out_at) = (now, self.times_out_at(now));
                self.decide(server.lease.clone(), now, network.delay())
            }
            Phase::Read { ticks } => Phase::Read {
                ticks: ticks.saturating_sub(1),
            },
            Phase::Write { ticks: 0, read, record } => {
                let result = if server.write(read, record) {
                    AttemptResult::Held
                } else {
                    AttemptResult::Stale
                };
                let lease = server.lease.clone().filter(|_| result == AttemptResult::Held);
                Phase::Response {
                    ticks: network.response_delay(),
                    result,
                    lease,
                }
            }
            Phase::Write { ticks, read, record } => Phase::Write {
                ticks: ticks - 1,
                read,
                record,
            },
            Phase::Response {
                ticks: Some(0),
                result,
                lease,
            } if self.stopped == 0 => {
                if let Some((version, record)) = lease {
                    self.observed = Some(ObservedRecord::observe(self.observed.take(), record.clone(), now));
                    self.cached = Some((version, record));
                }
                self.input = Some(ElectorEvent::Attempted {
                    began: call.began,
                    result,
                });
                return;
            }
            Phase::Response { ticks, result, lease } => Phase::Response {
                ticks: ticks.map(|ticks| ticks.saturating_sub(1)),
                result,
                lease,
            },
        };
        self.call = Some(call);
    }
}

/// The random delays and losses of the network.
struct Network {
    random: fastrand::Rng,
    slowness: u32,
    loss: f64,
}

impl Network {
    fn delay(&mut self) -> u32 {
        self.random.u32(0..=self.slowness)
    }

    fn response_delay(&mut self) -> Option<u32> {
        let delay = self.delay();
        (self.random.f64() >= self.loss).then_some(delay)
    }
}

/// The faults of a simulation and their frequency.
#[derive(Clone, Debug)]
struct Faults {
    seed: u64,
    candidates: usize,
    slowness: u32,
    loss: f64,
    /// The probability that a process stops in a tick, for up to four lease durations.
    stops: f64,
    /// The probability that the Lease is deleted in a tick.
    deletes: f64,
}

fn faults() -> impl Strategy<Value = Faults> {
    (any::<u64>(), 1..5_usize, 0..30_u32, 0.0..0.5_f64, 0.0..0.02_f64).prop_map(
        |(seed, candidates, slowness, loss, stops)| Faults {
            seed,
            candidates,
            slowness,
            loss,
            stops,
            deletes: 0.0,
        },
    )
}

/// Simulates one minute with these faults, and returns how long each candidate led.
fn simulate(faults: &Faults) -> Result<BTreeMap<String, Duration>, TestCaseError> {
    let mut network = Network {
        random: fastrand::Rng::with_seed(faults.seed),
        slowness: faults.slowness,
        loss: faults.loss,
    };
    let mut server = Server::default();
    let boot_offset = |number: usize| Duration::from_secs(100 + 7 * u64::try_from(number).unwrap());
    let mut processes: Vec<_> = (0..faults.candidates)
        .map(|number| Process::new(number, boot_offset(number)))
        .collect();
    let mut led = BTreeMap::new();
    let mut next = faults.candidates;
    for tick in 0..1200_u32 {
        let server_time = TICK * tick;
        // Delete only after every process has observed the holder: a process cannot know the holder
        // of a Lease that was deleted before it started.
        if tick > 100 && network.random.f64() < faults.deletes {
            server.lease = None;
        }
        if faults.deletes > 0.0 {
            for process in &mut processes {
                process.watch(&server, server_time);
            }
        }
        for process in &mut processes {
            process.deliver(&mut server, server_time, &mut network);
            if process.stopped > 0 {
                process.stopped -= 1;
            } else if network.random.f64() < faults.stops {
                process.stopped = network.random.u32(1..240);
            } else {
                process.run(server_time, network.random.f64());
            }
        }
        let acting: Vec<_> = processes
            .iter()
            .filter(|process| process.acts(server_time + process.boot_offset))
            .collect();
        prop_assert!(
            acting.len() <= 1,
            "two lead at {server_time:?}: {:?}",
            acting.iter().map(|one| &one.name).collect::<Vec<_>>()
        );
        for process in acting {
            *led.entry(process.name.clone()).or_default() += TICK;
        }
        // A process that lost the Lease ends, and restarts under a new name.
        for process in &mut processes {
            if process.has_lost {
                *process = Process::new(next, boot_offset(next));
                next += 1;
            }
        }
    }
    Ok(led)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn two_candidates_never_lead_at_once(faults in faults()) {
        simulate(&faults)?;
    }

    #[test]
    fn two_candidates_never_lead_at_once_even_if_the_lease_is_deleted(faults in faults()) {
        simulate(&Faults { deletes: 0.01, stops: 0.0, loss: 0.0, slowness: 3, ..faults })?;
    }

    #[test]
    fn without_faults_one_candidate_leads_all_the_time(seed: u64, candidates in 1..5_usize) {
        let led = simulate(&Faults { seed, candidates, slowness: 1, loss: 0.0, stops: 0.0, deletes: 0.0 })?;
        prop_assert_eq!(led.len(), 1);
        let all: Duration = led.values().sum();
        prop_assert!(all > Duration::from_secs(59), "{:?}", led);
    }

    #[test]
    fn another_candidate_leads_after_a_process_stops(seed: u64) {
        let led = simulate(&Faults { seed, candidates: 3, slowness: 1, loss: 0.0, stops: 0.005, deletes: 0.0 })?;
        let all: Duration = led.values().sum();
        prop_assert!(all > Duration::from_secs(15), "{:?}", led);
    }
}
