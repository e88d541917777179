//! What the proxy does with a request: the rules that a test has made, and the decision over one request's head.
//!
//! Architecture Invariant: no IO and no clock here. What a rule does is a [`Fault`], decided here and carried out in `relay.rs`.

use http::header::{ACCEPT, USER_AGENT};
use http::request::Parts;
use http::uri::PathAndQuery;

use super::fault::Fault;

/// Which requests are meant: those for which everything holds that was named. [`Matcher::any`] alone means all of them.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    methods: Vec<String>,
    path_prefix: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    user_agent: Option<String>,
    reads: Option<Read>,
    is_metadata: Option<bool>,
}

/// What is read of a resource, in a way that a path alone does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Watch,
    List,
    LaterPage,
    Object,
}

impl Matcher {
    /// Every request; the other methods narrow it.
    pub fn any() -> Self {
        Self::default()
    }

    /// Requests that may change something.
    pub fn writes() -> Self {
        let methods = ["POST", "PUT", "PATCH", "DELETE"];
        methods.into_iter().fold(Self::any(), Self::method)
    }

    /// Requests that open a watch.
    pub fn watches() -> Self {
        Self::reads(Read::Watch)
    }

    /// Requests that list a resource, or a page of it.
    pub fn lists() -> Self {
        Self::reads(Read::List)
    }

    /// Requests that go on with a list: for its second page, its third and so on.
    pub fn later_pages() -> Self {
        Self::reads(Read::LaterPage)
    }

    /// Requests that read one object.
    pub fn objects() -> Self {
        Self::reads(Read::Object)
    }

    fn reads(read: Read) -> Self {
        Self {
            reads: Some(read),
            ..Self::any()
        }
    }

    /// With this HTTP method, in capitals; of methods that are named one after the other, with any.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods.push(method.to_owned());
        self
    }

    /// To a path that begins with this, such as `/apis/coordination.k8s.io/`.
    #[must_use]
    pub fn path_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.path_prefix = Some(prefix.into());
        self
    }

    /// For this resource of whatever group, as a rule of RBAC spells it: `leases`, or `foos/status` for a subresource, which `foos`
    /// leaves out.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// In this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// For the object of this name. Creates, lists and watches have none in their path, and are left out.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// From a client whose user agent contains this.
    #[must_use]
    pub fn user_agent(mut self, part: impl Into<String>) -> Self {
        self.user_agent = Some(part.into());
        self
    }

    /// For the metadata of objects, in place of whole ones.
    #[must_use]
    pub fn metadata(mut self) -> Self {
        self.is_metadata = Some(true);
        self
    }

    /// For whole objects, and not for their metadata alone.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.is_metadata = Some(false);
        self
    }

    fn matches(&self, head: &Parts) -> bool {
        let Self {
            methods,
            path_prefix,
            resource,
            namespace,
            name,
            user_agent,
            reads,
            is_metadata,
        } = self;
        let path = head.uri.path();
        let target = Target::of(path);
        let says = |header, part: &str| {
            let said = head.headers.get(header).map_or(&b""[..], |said| said.as_bytes());
            String::from_utf8_lossy(said).contains(part)
        };
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        (methods.is_empty() || methods.iter().any(|method| method == head.method.as_str()))
            && path_prefix.as_ref().is_none_or(|prefix| path.starts_with(prefix))
            && is(resource, target.resource.as_deref())
            && is(namespace, target.namespace)
            && is(name, target.name)
            && user_agent.as_ref().is_none_or(|part| says(USER_AGENT, part))
            && is_metadata.is_none_or(|wanted| wanted == says(ACCEPT, "as=PartialObjectMetadata"))
            && reads.is_none_or(|read| match read {
                Read::Watch => is_watch(head),
                Read::List => is_list(head, &target),
                Read::LaterPage => is_list(head, &target) && asks(head, |key, _| key == "continue"),
                Read::Object => head.method == "GET" && target.name.is_some() && !is_watch(head),
            })
    }
}

fn is_list(head: &Parts, target: &Target<'_>) -> bool {
    head.method == "GET" && target.resource.is_some() && target.name.is_none() && !is_watch(head)
}

fn asks(head: &Parts, what: impl Fn(&str, &str) -> bool) -> bool {
    let query = head.uri.query().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.any(|(key, value)| what(key, value))
}

/// The same request for pages of so many objects, if it asks for pages.
pub(crate) fn in_pages_of(count: u32, head: &Parts) -> Option<PathAndQuery> {
    let pairs = head.uri.query()?.split('&').map(|pair| match pair.split_once('=') {
        Some(("limit", _)) => format!("limit={count}"),
        _ => pair.to_owned(),
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    format!("{}?{query}", head.uri.path()).parse().ok()
}

/// Whether the answer is a stream of events that goes on until somebody ends it.
pub(crate) fn is_watch(head: &Parts) -> bool {
    asks(head, |key, value| key == "watch" && matches!(value, "true" | "1"))
}

/// What of the apiserver's a path names.
#[derive(Default)]
struct Target<'a> {
    namespace: Option<&'a str>,
    resource: Option<String>,
    name: Option<&'a str>,
}

impl<'a> Target<'a> {
    fn of(path: &'a str) -> Self {
        let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = segments.as_slice() else {
            return Self::default();
        };
        let (namespace, rest) = match rest {
            // A namespace's own subresources; else its third segment is the resource in it.
            ["namespaces", _, "status" | "finalize"] | ["namespaces"] | ["namespaces", _] => (None, rest),
            ["namespaces", namespace, rest @ ..] => (Some(*namespace), rest),
            _ => (None, rest),
        };
        let resource = match rest {
            [] => None,
            [resource, _, subresource, ..] => Some(format!("{resource}/{subresource}")),
            [resource, ..] => Some((*resource).to_owned()),
        };
        let name = rest.get(1).copied();
        Self {
            namespace,
            resource,
            name,
        }
    }
}

/// How often a rule acts. Requests are counted from the rule's making, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// For this one alone.
    Nth(u64),
    /// For the next so many.
    Next(u64),
    /// For each, until [`FaultProxy::heal`](super::FaultProxy::heal).
    UntilHealed,
    /// For so many of a hundred of them, until they are healed. Which ones follows from the seed.
    Chance {
        /// Of a hundred.
        percent: u8,
        /// Of another seed come others.
        seed: u64,
    },
}

/// What a rule has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCounts {
    pub(crate) matched: u64,
    pub(crate) applied: u64,
}

#[derive(Clone, Debug)]
struct Rule {
    matcher: Matcher,
    /// A rule without one only counts.
    fault: Option<Fault>,
    times: Repeat,
    is_healed: bool,
    counts: RequestCounts,
}

impl Rule {
    /// Whether it acts on the request that it has just seen.
    fn is_due(&self) -> bool {
        let due = match self.times {
            Repeat::Nth(nth) => self.counts.matched == nth,
            Repeat::Next(count) => self.counts.applied < count,
            Repeat::UntilHealed => true,
            Repeat::Chance { percent, seed } => scattered(seed, self.counts.matched) % 100 < u64::from(percent),
        };
        due && !self.is_healed && self.fault.is_some()
    }
}

/// A number that follows from two others and looks like neither: the steps of `SplitMix64`.
fn scattered(seed: u64, count: u64) -> u64 {
    let mut mixed = seed.wrapping_add(count.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A rule's place among [`Rules`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleId(usize);

/// All the rules of a proxy. None is ever removed: a test makes a handful, and may ask for their counts to its end.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    all: Vec<Rule>,
}

impl Rules {
    pub(crate) fn add(&mut self, matcher: Matcher, fault: Option<Fault>, times: Repeat) -> RuleId {
        self.all.push(Rule {
            matcher,
            fault,
            times,
            is_healed: false,
            counts: RequestCounts::default(),
        });
        RuleId(self.all.len() - 1)
    }

    /// Every rule that matches counts the request; the oldest that is due acts on it, and the others keep their turns. `None`: it goes
    /// on to the apiserver, and its answer back.
    pub(crate) fn decide(&mut self, head: &Parts) -> Option<(RuleId, Fault)> {
        let mut decision = None;
        for (place, rule) in self.all.iter_mut().enumerate() {
            if !rule.matcher.matches(head) {
                continue;
            }
            rule.counts.matched += 1;
            if decision.is_none() && rule.is_due() {
                rule.counts.applied += 1;
                decision = rule.fault.clone().map(|fault| (RuleId(place), fault));
            }
        }
        decision
    }

    /// From now on none of them acts; they go on counting.
    pub(crate) fn heal_all(&mut self) {
        for rule in &mut self.all {
            rule.is_healed = true;
        }
    }

    /// The same for one of them.
    pub(crate) fn heal(&mut self, RuleId(place): RuleId) {
        if let Some(rule) = self.all.get_mut(place) {
            rule.is_healed = true;
        }
    }

    pub(crate) fn is_healed(&self, RuleId(place): RuleId) -> bool {
        self.all.get(place).is_some_and(|rule| rule.is_healed)
    }

    pub(crate) fn counts(&self, RuleId(place): RuleId) -> RequestCounts {
        self.all.get(place).map(|rule| rule.counts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
