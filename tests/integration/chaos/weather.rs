//! The faults of single requests that there are, each for those that it makes trouble for.

use std::time::Duration;

use portreeve_testing::{Canned, Counter, Fault, FaultProxy, Matcher, Spoil, Times};

/// How late what is late comes.
const LATE: Duration = Duration::from_millis(300);

/// Requests of a kind, and what becomes of them.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    pub(super) target: Target,
    pub(super) fault: Fault,
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Target {
    Writes,
    /// Of one object.
    Reads,
    Lists,
    Watches,
}

impl Target {
    fn matcher(self) -> Matcher {
        match self {
            Self::Writes => Matcher::writes(),
            Self::Reads => Matcher::any().method("GET"),
            Self::Lists => Matcher::lists(),
            Self::Watches => Matcher::watches(),
        }
    }
}

impl Weather {
    /// Lets it come over a proxy. Watches that are open are broken, and go on in it; for lists, they have to begin anew.
    pub(super) fn come(&self, proxy: &FaultProxy, times: Times) -> Counter {
        let met = proxy.fault(self.target.matcher(), self.fault.clone(), times);
        if self.target == Target::Lists {
            proxy.answer(Matcher::watches(), Canned::expired(), Times::Next(30));
        }
        if matches!(self.target, Target::Lists | Target::Watches) {
            proxy.reset();
        }
        met
    }
}

/// All of it.
pub(super) fn all() -> Vec<Weather> {
    let of = |target, faults: Vec<Fault>| faults.into_iter().map(move |fault| Weather { target, fault });
    of(Target::Writes, writes())
        .chain(of(Target::Reads, reads()))
        .chain(of(Target::Lists, lists()))
        .chain(of(Target::Watches, watches()))
        .collect()
}

fn writes() -> Vec<Fault> {
    vec![
        Fault::Answer(Canned::conflict()),
        Fault::Answer(Canned::too_many_requests(1)),
        Fault::Answer(Canned::internal_error()),
        Fault::Answer(Canned::unavailable()),
        Fault::Answer(Canned::timeout()),
        Fault::Cut,
        Fault::LoseAnswer,
        Fault::BlackHole,
        Fault::Delay(LATE),
        Fault::Lag(LATE),
        Fault::Spoil(Spoil::CutAt(20)),
        Fault::Spoil(Spoil::EndAt(20)),
        Fault::Spoil(Spoil::GarbageAt(0)),
        Fault::Spoil(Spoil::SilentAt(20)),
    ]
}

fn reads() -> Vec<Fault> {
    vec![
        Fault::Answer(Canned::too_many_requests(1)),
        Fault::Answer(Canned::unavailable()),
        Fault::Cut,
        Fault::Spoil(Spoil::EndAt(30)),
        Fault::Spoil(Spoil::GarbageAt(10)),
    ]
}

fn lists() -> Vec<Fault> {
    vec![
        Fault::Answer(Canned::expired()),
        Fault::Answer(Canned::too_many_requests(1)),
        Fault::Answer(Canned::internal_error()),
        Fault::Spoil(Spoil::CutAt(100)),
        Fault::Spoil(Spoil::EndAt(100)),
        Fault::Spoil(Spoil::GarbageAt(60)),
        Fault::Spoil(Spoil::Drip {
            bytes: 1 << 10,
            pause: Duration::from_millis(5),
        }),
    ]
}

fn watches() -> Vec<Fault> {
    vec![
        Fault::Answer(Canned::expired()),
        Fault::Answer(Canned::too_many_requests(1)),
        Fault::Answer(Canned::timeout()),
        Fault::Spoil(Spoil::CutAt(0)),
        Fault::Spoil(Spoil::CutAt(333)),
        Fault::Spoil(Spoil::CutAt(2_500)),
        Fault::Spoil(Spoil::EndAt(777)),
        Fault::Spoil(Spoil::GarbageAt(500)),
        Fault::Spoil(Spoil::SilentAt(700)),
        Fault::Lag(LATE),
    ]
}
