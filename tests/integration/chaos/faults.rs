//! The faults of single requests, by the kind of request that they affect.

use std::time::Duration;

use portreeve_api::{CRONTABS, FOOS, Resource};
use portreeve_testing::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, RequestCounter};

use crate::fixtures::schedules::CRON_JOBS;

/// The controllers in the daemon. The user agent of each controller's requests ends with its name.
pub(super) const CONTROLLERS: [&str; 5] = [
    "foo-controller",
    "crontab-controller",
    "cronjob-controller",
    "garbage-collector-controller",
    "ttl-after-finished-controller",
];

/// The controllers that read a Foo or an owner before they act, to check that it still exists.
const READERS: [&str; 2] = ["foo-controller", "garbage-collector-controller"];

/// The resources whose whole objects the informers list and watch. The collector also watches the
/// metadata of these resources, and is the only controller that watches ConfigMaps.
pub(super) static WHOLE: [Resource; 5] = [
    CRONTABS,
    CRON_JOBS,
    FOOS,
    Resource::namespaced("apps", "v1", "Deployment", "deployments"),
    Resource::namespaced("batch", "v1", "Job", "jobs"),
];
static METADATA: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// Returns matchers for the lists or watches of each informer, which cover all namespaces. A
/// dependent scan lists one namespace, so it does not match.
pub(super) fn informers(requests: fn() -> Matcher) -> impl Iterator<Item = (&'static str, Matcher)> {
    let all = move |resource: &'static Resource| {
        (
            &*resource.plural,
            requests().path_prefix(resource.collection_path(None)),
        )
    };
    let whole = WHOLE.iter().map(all).map(|(name, requests)| (name, requests.whole()));
    let (name, requests) = all(&METADATA);
    whole.chain([(name, requests.metadata())])
}

/// The delay of late requests and responses.
const DELAY: Duration = Duration::from_millis(300);

/// A fault, and the kind of request that it affects.
#[derive(Clone, Debug)]
pub(super) struct RequestFault {
    pub(super) target: Target,
    pub(super) fault: Fault,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Target {
    Writes,
    /// Reads of one object, by each controller in [`READERS`].
    Reads,
    Lists,
    Watches,
}

impl Target {
    /// Returns a matcher for each controller or informer whose requests the fault must affect.
    fn matchers(self) -> Vec<(&'static str, Matcher)> {
        match self {
            Self::Writes => CONTROLLERS
                .map(|name| (name, Matcher::writes().user_agent(name)))
                .into(),
            Self::Reads => READERS.map(|name| (name, Matcher::objects().user_agent(name))).into(),
            Self::Lists => informers(Matcher::lists).collect(),
            Self::Watches => vec![("all watches", Matcher::watches())],
        }
    }
}

/// Makes the proxy respond to the next watch of each informer with 410 Gone, so that the informer
/// lists. The caller has to break the open watches.
pub(super) fn expire_watches(proxy: &FaultProxy) {
    for (_, watch) in informers(Matcher::watches) {
        proxy.respond(watch, CannedResponse::expired(), Repeat::Next(1));
    }
}

/// Counters of the requests that a fault affected, by the controller or informer that sent them.
pub(super) type FaultCounters = Vec<(&'static str, RequestCounter)>;

impl RequestFault {
    /// Returns whether the fault blocks its requests until it is healed.
    pub(super) fn blocks(&self) -> bool {
        let is_endless = matches!(self.fault, Fault::BlackHole | Fault::Body(BodyFault::StallAt(_)));
        is_endless && self.target != Target::Watches
    }

    /// Injects the fault into the proxy. For lists and watches, it breaks open watches, so that the
    /// fault affects new requests; for lists, it also makes the informers relist.
    pub(super) fn inject(&self, proxy: &FaultProxy, times: Repeat) -> FaultCounters {
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

/// Returns all faults.
pub(super) fn all() -> Vec<RequestFault> {
    let of = |target, faults: Vec<Fault>| faults.into_iter().map(move |fault| RequestFault { target, fault });
    of(Target::Writes, writes())
        .chain(of(Target::Reads, reads()))
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

fn reads() -> Vec<Fault> {
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
