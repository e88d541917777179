//! The faults of single requests, by the kind of request that they affect.

use std::time::Duration;

use anyhow::{Context, Result};
use portreeve_testing::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, RequestCounter};

use crate::{
    fixtures::LIMIT,
    profile::Reads,
    registry::{self, informers},
};

/// The number of failing requests of each controller or informer, so that a retry fails too.
const FAILURES: u64 = 2;
/// The number of watches that a fault affects before the work begins, which is most of them.
const WATCHES: u64 = 40;
/// The delay of late requests and responses.
const DELAY: Duration = Duration::from_millis(300);

/// A fault, and the kind of request that it affects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct RequestFault {
    pub(crate) target: Target,
    pub(crate) fault: Fault,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Target {
    Writes,
    /// Reads of single objects, by each controller that reads some at these times.
    Reads(Reads),
    Lists,
    Watches,
}

impl Target {
    /// Returns a matcher for each controller or informer whose requests the fault must affect.
    fn matchers(self) -> Vec<(&'static str, Matcher)> {
        match self {
            Self::Writes => registry::names()
                .map(|name| (name, Matcher::writes().user_agent(name)))
                .collect(),
            Self::Reads(reads) => registry::names_with(reads)
                .map(|name| (name, Matcher::objects().user_agent(name)))
                .collect(),
            Self::Lists => informers(Matcher::lists),
            Self::Watches => vec![("all watches", Matcher::watches())],
        }
    }
}

/// Makes the proxy respond to the next watch of each informer with 410 Gone, so that the informer
/// lists. The caller has to break the open watches.
pub(crate) fn expire_watches(proxy: &FaultProxy) {
    for (_, watch) in informers(Matcher::watches) {
        proxy.respond(watch, CannedResponse::expired(), Repeat::Next(1));
    }
}

/// Counters of the requests that a fault affected, by the controller or informer that sent them.
pub(crate) type FaultCounters = Vec<(&'static str, RequestCounter)>;

impl RequestFault {
    /// Returns whether the fault blocks its requests until it is healed.
    pub(crate) fn blocks(&self) -> bool {
        let is_endless = matches!(self.fault, Fault::BlackHole | Fault::Body(BodyFault::StallAt(_)));
        is_endless && self.target != Target::Watches
    }

    /// Returns for which requests the fault is active in a test of this fault alone.
    fn times(&self) -> Repeat {
        if self.target == Target::Watches {
            Repeat::UntilHealed
        } else if self.blocks() {
            Repeat::Next(1)
        } else {
            Repeat::Next(FAILURES)
        }
    }

    /// Injects the fault, does `work`, and heals the fault once it has affected every controller or
    /// informer whose requests it targets.
    pub(crate) async fn inject_during(&self, proxy: &FaultProxy, work: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
        let counters = self.inject(proxy, self.times());
        if self.target == Target::Watches {
            for (_, counter) in &counters {
                counter.wait_for_applied(WATCHES, LIMIT).await?;
            }
        }
        work().await?;
        for (sender, counter) in counters {
            let applied = counter.wait_for_applied(1, LIMIT).await;
            applied.with_context(|| {
                format!(
                    "{sender} sent no request that the fault could affect; if it is a new controller, correct the \
                     reads or the work in its profile"
                )
            })?;
        }
        proxy.heal();
        Ok(())
    }

    /// Injects the fault into the proxy. For lists and watches, it breaks open watches, so that the
    /// fault affects new requests; for lists, it also makes the informers relist.
    pub(crate) fn inject(&self, proxy: &FaultProxy, times: Repeat) -> FaultCounters {
        let fault = |(name, requests)| (name, proxy.fault(requests, self.fault.clone(), times));
        let counters = self.target.matchers().into_iter().map(fault).collect();
        if self.target == Target::Lists {
            expire_watches(proxy);
        }
        if matches!(self.target, Target::Lists | Target::Watches) {
            proxy.reset();
        }
        counters
    }
}

/// Returns all faults of requests that controllers and informers send in each wave of work.
pub(crate) fn all() -> Vec<RequestFault> {
    let of = |target, faults: Vec<Fault>| faults.into_iter().map(move |fault| RequestFault { target, fault });
    of(Target::Writes, writes())
        .chain(of(Target::Reads(Reads::InEachWave), reads()))
        .chain(of(Target::Lists, lists()))
        .chain(of(Target::Watches, watches()))
        .collect()
}

fn writes() -> Vec<Fault> {
    vec![
        Fault::Respond(CannedResponse::conflict()),
        Fault::Respond(CannedResponse::too_many_requests(1)),
        Fault::Respond(CannedResponse::internal_error()),
        Fault::Respond(CannedResponse::unavailable()),
        Fault::Respond(CannedResponse::timeout()),
        Fault::Cut,
        Fault::DropResponse,
        Fault::BlackHole,
        Fault::DelayRequest(DELAY),
        Fault::DelayResponse(DELAY),
        Fault::Body(BodyFault::CutAt(20)),
        Fault::Body(BodyFault::TruncateAt(20)),
        Fault::Body(BodyFault::CorruptAt(0)),
        Fault::Body(BodyFault::StallAt(20)),
    ]
}

/// Returns the faults of reads.
pub(crate) fn reads() -> Vec<Fault> {
    vec![
        Fault::BlackHole,
        Fault::Respond(CannedResponse::too_many_requests(1)),
        Fault::Respond(CannedResponse::unavailable()),
        Fault::Cut,
        Fault::Body(BodyFault::TruncateAt(30)),
        Fault::Body(BodyFault::CorruptAt(10)),
    ]
}

fn lists() -> Vec<Fault> {
    vec![
        Fault::BlackHole,
        Fault::Respond(CannedResponse::expired()),
        Fault::Respond(CannedResponse::too_many_requests(1)),
        Fault::Respond(CannedResponse::internal_error()),
        Fault::Body(BodyFault::CutAt(100)),
        Fault::Body(BodyFault::TruncateAt(100)),
        Fault::Body(BodyFault::CorruptAt(60)),
        Fault::Body(BodyFault::Throttle {
            bytes: 1 << 10,
            pause: Duration::from_millis(5),
        }),
    ]
}

fn watches() -> Vec<Fault> {
    vec![
        Fault::BlackHole,
        Fault::Respond(CannedResponse::expired()),
        Fault::Respond(CannedResponse::too_many_requests(1)),
        Fault::Respond(CannedResponse::timeout()),
        Fault::Body(BodyFault::CutAt(0)),
        Fault::Body(BodyFault::CutAt(333)),
        Fault::Body(BodyFault::CutAt(2_500)),
        Fault::Body(BodyFault::TruncateAt(777)),
        Fault::Body(BodyFault::CorruptAt(500)),
        Fault::Body(BodyFault::StallAt(700)),
        Fault::DelayResponse(DELAY),
    ]
}
