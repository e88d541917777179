//! The faults of single requests that there are, each for those that it makes trouble for.

use std::time::Duration;

use portreeve_api::{CRONTABS, FOOS, Resource};
use portreeve_testing::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, RequestCounter};

use crate::schedules::kinds::CRON_JOBS;

/// Who is in the daemon. Each has its name in the user agent of its calls.
pub(super) const CONTROLLERS: [&str; 5] = [
    "foo-controller",
    "crontab-controller",
    "cronjob-controller",
    "garbage-collector-controller",
    "ttl-after-finished-controller",
];

/// Who reads an object before something is made of that: whether a Foo is there still, whether an owner is.
const READERS: [&str; 2] = ["foo-controller", "garbage-collector-controller"];

/// What they list and watch. The collector wants metadata of these too, and of ConfigMaps it alone wants anything.
pub(super) static WHOLE: [Resource; 5] = [
    CRONTABS,
    CRON_JOBS,
    FOOS,
    Resource::namespaced("apps", "v1", "Deployment", "deployments"),
    Resource::namespaced("batch", "v1", "Job", "jobs"),
];
static METADATA: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// Requests for all that there is of each resource, as its informer sends them. A census asks for one namespace.
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

/// How late what is late comes.
const LATE: Duration = Duration::from_millis(300);

/// Requests of a kind, and what becomes of them.
#[derive(Clone, Debug)]
pub(super) struct RequestFault {
    pub(super) target: Target,
    pub(super) fault: Fault,
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Target {
    Writes,
    /// Of one object, by each who has to for what there is to do.
    Reads,
    Lists,
    Watches,
}

impl Target {
    /// Such requests of each who has to see the fault for itself.
    fn matchers(self) -> Vec<(&'static str, Matcher)> {
        match self {
            Self::Writes => CONTROLLERS
                .map(|name| (name, Matcher::writes().user_agent(name)))
                .into(),
            Self::Reads => READERS.map(|name| (name, Matcher::objects().user_agent(name))).into(),
            Self::Lists => informers(Matcher::lists).collect(),
            Self::Watches => vec![("whoever watches", Matcher::watches())],
        }
    }
}

/// The next watch of each informer is told that its version is too old, so that it lists. It has to be begun anew for that.
pub(super) fn expire_watches(proxy: &FaultProxy) {
    for (_, watch) in informers(Matcher::watches) {
        proxy.respond(watch, CannedResponse::expired(), Repeat::Next(1));
    }
}

/// What a fault has met of a kind of requests, by who sent them.
pub(super) type FaultCounters = Vec<(&'static str, RequestCounter)>;

impl RequestFault {
    /// Whether who meets it is held until it is healed, and does nothing else meanwhile.
    pub(super) fn holds(&self) -> bool {
        let is_endless = matches!(self.fault, Fault::BlackHole | Fault::Body(BodyFault::StallAt(_)));
        is_endless && self.target != Target::Watches
    }

    /// Lets it come over a proxy. Watches that are open are broken, and go on in it; for lists, they have to begin anew.
    pub(super) fn inject(&self, proxy: &FaultProxy, times: Repeat) -> FaultCounters {
        let fault = |(name, requests)| (name, proxy.fault(requests, self.fault.clone(), times));
        let met = self.target.matchers().into_iter().map(fault).collect();
        if self.target == Target::Lists {
            expire_watches(proxy);
        }
        if matches!(self.target, Target::Lists | Target::Watches) {
            proxy.reset();
        }
        met
    }
}

/// All of it.
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
        Fault::DelayRequest(LATE),
        Fault::DelayResponse(LATE),
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
        Fault::DelayResponse(LATE),
    ]
}
