//! A simulated world of candidates around one Lease: answers are late or lost, processes stop, boot clocks differ, the Lease is deleted.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::LeaseSpec;
use proptest::prelude::*;

use crate::elector::{Elector, Ending, Input, Moment, Sight, Step, Times, View};

/// One tick of the world's time.
const TICK: Duration = Duration::from_millis(50);
const TIMES: Times = Times {
    lease_duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry_period: Duration::from_millis(500),
};

/// The apiserver: one object, and a version that each write counts up.
#[derive(Default)]
struct Server {
    version: u64,
    lease: Option<(u64, LeaseSpec)>,
}

impl Server {
    /// Writes if the version is still the one that was read. `None`: there was no Lease.
    fn write(&mut self, read: Option<u64>, record: LeaseSpec) -> bool {
        if self.lease.as_ref().map(|(version, _)| *version) != read {
            return false;
        }
        self.version += 1;
        self.lease = Some((self.version, record));
        true
    }
}

/// A process. All that it knows of time is its own boot clock.
struct Process {
    name: String,
    elector: Elector,
    sight: Option<Sight>,
    known: Option<(u64, LeaseSpec)>,
    boot: Duration,
    input: Option<Input>,
    /// The attempt that is under way.
    call: Option<Call>,
    stopped: u32,
    wakes_at: Option<Moment>,
    over: bool,
}

struct Call {
    began: Moment,
    limit: Moment,
    phase: Phase,
}

enum Phase {
    /// The read reaches the server in so many ticks.
    Read { ticks: u32 },
    /// The write reaches the server in so many ticks.
    Write {
        ticks: u32,
        read: Option<u64>,
        record: LeaseSpec,
    },
    /// The answer reaches the process in so many ticks; `None`: never.
    Answer {
        ticks: Option<u32>,
        ending: Ending,
        saw: Option<(u64, LeaseSpec)>,
    },
}

impl Process {
    fn new(number: usize, boot: Duration) -> Self {
        Self {
            name: format!("candidate-{number}"),
            elector: Elector::new(TIMES),
            sight: None,
            known: None,
            boot,
            input: Some(Input::Tick),
            call: None,
            stopped: 0,
            wakes_at: None,
            over: false,
        }
    }

    fn acts(&self, now: Moment) -> bool {
        self.elector.deadline().is_some_and(|deadline| now < deadline)
    }

    fn record(&self, transitions: i32, now: Moment) -> LeaseSpec {
        // The renewal time only makes records differ; it is of a clock that nobody else has.
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

    /// One tick of a process that runs.
    fn run(&mut self, world: Moment, chance: f64) {
        let now = world + self.boot;
        if let Some(call) = &self.call
            && now >= call.limit
        {
            self.input = Some(Input::Attempted {
                began: call.began,
                ending: Ending::Failed,
            });
            self.call = None;
        }
        if self.call.is_some() || self.over {
            return;
        }
        if self.input.is_none() && self.wakes_at.is_none_or(|at| now < at) {
            return;
        }
        let mut input = self.input.take().unwrap_or(Input::Tick);
        loop {
            let view = View {
                now,
                sight: self.sight.as_ref(),
                patience: Duration::ZERO,
                chance,
            };
            match self.elector.step(input, &self.name, &view) {
                Step::Won => input = Input::Tick,
                Step::Wait(until) => {
                    self.wakes_at = Some(until);
                    return;
                }
                Step::Lost(_) => {
                    self.over = true;
                    return;
                }
                Step::Attempt { live, limit } => {
                    let phase = match self.known.clone().filter(|_| !live) {
                        Some((version, seen)) => Phase::Write {
                            ticks: 1,
                            read: Some(version),
                            record: self.record(seen.lease_transitions.unwrap_or(0), now),
                        },
                        None => Phase::Read { ticks: 1 },
                    };
                    self.call = Some(Call {
                        began: now,
                        limit: now + limit,
                        phase,
                    });
                    return;
                }
            }
        }
    }

    /// What the lock decides, as the guard lets it see the Lease.
    fn decide(&mut self, lease: Option<(u64, LeaseSpec)>, now: Moment, delay: u32) -> Phase {
        let leads = self.elector.deadline().is_some();
        let before = self.sight.take();
        let sight = match &lease {
            Some((_, record)) => Sight::of(before, record.clone(), now),
            None => Sight::of_nothing(before, &self.name, now),
        };
        let holder = sight.holder().map(str::to_owned);
        let is_free = now >= sight.free_from(TIMES.lease_duration) && !(leads && holder.is_some());
        self.sight = Some(sight);
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
        Phase::Answer {
            ticks: Some(delay),
            ending: Ending::HeldByAnother,
            saw: lease,
        }
    }

    /// Sees the Lease as it is, by a watch that is never late.
    fn watch(&mut self, server: &Server, world: Moment) {
        let now = world + self.boot;
        let before = self.sight.clone();
        let sight = match &server.lease {
            Some((_, record)) => Sight::of(before.clone(), record.clone(), now),
            None => Sight::of_nothing(before.clone(), &self.name, now),
        };
        if server.lease.is_none() {
            self.known = None;
        }
        if before.as_ref() != Some(&sight) {
            self.wakes_at = Some(now);
        }
        self.sight = Some(sight);
    }

    /// One tick of a call. The network goes on while a process is stopped; what reaches it then waits.
    fn deliver(&mut self, server: &mut Server, world: Moment, network: &mut Network) {
        let now = world + self.boot;
        let Some(mut call) = self.call.take() else { return };
        call.phase = match call.phase {
            Phase::Read { ticks: 0 } if self.stopped == 0 => self.decide(server.lease.clone(), now, network.delay()),
            Phase::Read { ticks } => Phase::Read {
                ticks: ticks.saturating_sub(1),
            },
            Phase::Write { ticks: 0, read, record } => {
                let ending = if server.write(read, record) {
                    Ending::Held
                } else {
                    Ending::Stale
                };
                let saw = server.lease.clone().filter(|_| ending == Ending::Held);
                Phase::Answer {
                    ticks: network.answer(),
                    ending,
                    saw,
                }
            }
            Phase::Write { ticks, read, record } => Phase::Write {
                ticks: ticks - 1,
                read,
                record,
            },
            Phase::Answer {
                ticks: Some(0),
                ending,
                saw,
            } if self.stopped == 0 => {
                if let Some((version, record)) = saw {
                    self.sight = Some(Sight::of(self.sight.take(), record.clone(), now));
                    self.known = Some((version, record));
                }
                self.input = Some(Input::Attempted {
                    began: call.began,
                    ending,
                });
                return;
            }
            Phase::Answer { ticks, ending, saw } => Phase::Answer {
                ticks: ticks.map(|ticks| ticks.saturating_sub(1)),
                ending,
                saw,
            },
        };
        self.call = Some(call);
    }
}

/// Where chance is taken from.
struct Network {
    random: fastrand::Rng,
    slowness: u32,
    loss: f64,
}

impl Network {
    fn delay(&mut self) -> u32 {
        self.random.u32(0..=self.slowness)
    }

    fn answer(&mut self) -> Option<u32> {
        let delay = self.delay();
        (self.random.f64() >= self.loss).then_some(delay)
    }
}

/// What the world does to its inhabitants.
#[derive(Clone, Debug)]
struct Weather {
    seed: u64,
    candidates: usize,
    slowness: u32,
    loss: f64,
    /// How likely a process is to stop in a tick, for up to four lease durations.
    stops: f64,
    /// How likely somebody deletes the Lease in a tick.
    deletes: f64,
}

fn weather() -> impl Strategy<Value = Weather> {
    (any::<u64>(), 1..5_usize, 0..30_u32, 0.0..0.5_f64, 0.0..0.02_f64).prop_map(
        |(seed, candidates, slowness, loss, stops)| Weather {
            seed,
            candidates,
            slowness,
            loss,
            stops,
            deletes: 0.0,
        },
    )
}

/// Lives through a minute of that weather, and returns how long each candidate led.
fn live(weather: &Weather) -> Result<BTreeMap<String, Duration>, TestCaseError> {
    let mut network = Network {
        random: fastrand::Rng::with_seed(weather.seed),
        slowness: weather.slowness,
        loss: weather.loss,
    };
    let mut server = Server::default();
    let boot = |number: usize| Duration::from_secs(100 + 7 * u64::try_from(number).unwrap());
    let mut processes: Vec<_> = (0..weather.candidates)
        .map(|number| Process::new(number, boot(number)))
        .collect();
    let mut led = BTreeMap::new();
    let mut next = weather.candidates;
    for tick in 0..1200_u32 {
        let world = TICK * tick;
        // Once all have seen who holds it: a newcomer cannot know of a Lease that is gone already.
        if tick > 100 && network.random.f64() < weather.deletes {
            server.lease = None;
        }
        if weather.deletes > 0.0 {
            for process in &mut processes {
                process.watch(&server, world);
            }
        }
        for process in &mut processes {
            process.deliver(&mut server, world, &mut network);
            if process.stopped > 0 {
                process.stopped -= 1;
            } else if network.random.f64() < weather.stops {
                process.stopped = network.random.u32(1..240);
            } else {
                process.run(world, network.random.f64());
            }
        }
        let acting: Vec<_> = processes
            .iter()
            .filter(|process| process.acts(world + process.boot))
            .collect();
        prop_assert!(
            acting.len() <= 1,
            "two lead at {world:?}: {:?}",
            acting.iter().map(|one| &one.name).collect::<Vec<_>>()
        );
        for process in acting {
            *led.entry(process.name.clone()).or_default() += TICK;
        }
        // Whoever lost ends, and is started again as somebody else.
        for process in &mut processes {
            if process.over {
                *process = Process::new(next, boot(next));
                next += 1;
            }
        }
    }
    Ok(led)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn two_never_lead_at_once(weather in weather()) {
        live(&weather)?;
    }

    #[test]
    fn two_never_lead_at_once_even_if_the_lease_is_deleted(weather in weather()) {
        live(&Weather { deletes: 0.01, stops: 0.0, loss: 0.0, slowness: 3, ..weather })?;
    }

    #[test]
    fn in_good_weather_one_leads_all_the_time(seed: u64, candidates in 1..5_usize) {
        let led = live(&Weather { seed, candidates, slowness: 1, loss: 0.0, stops: 0.0, deletes: 0.0 })?;
        prop_assert_eq!(led.len(), 1);
        let all: Duration = led.values().sum();
        prop_assert!(all > Duration::from_secs(59), "{:?}", led);
    }

    #[test]
    fn after_a_stop_another_leads(seed: u64) {
        let led = live(&Weather { seed, candidates: 3, slowness: 1, loss: 0.0, stops: 0.005, deletes: 0.0 })?;
        let all: Duration = led.values().sum();
        prop_assert!(all > Duration::from_secs(15), "{:?}", led);
    }
}
