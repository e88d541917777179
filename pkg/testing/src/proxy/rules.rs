//! The rules of the proxy, and the decision on each request by its head.
//!
//! Architecture Invariant: pure. The rules choose a [`Fault`], and `relay.rs` applies it.

use http::header::{ACCEPT, USER_AGENT};
use http::request::Parts;
use http::uri::PathAndQuery;

use super::fault::Fault;

/// Selects requests that fulfil all its conditions. [`Matcher::any`] alone selects all requests.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    methods: Vec<String>,
    path: Option<String>,
    path_prefix: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    namespace_prefix: Option<String>,
    name: Option<String>,
    user_agent: Option<String>,
    reads: Option<Read>,
    is_metadata: Option<bool>,
}

/// A kind of read that the path alone does not identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Watch,
    List,
    LaterPage,
    Object,
}

impl Matcher {
    /// Selects all requests. The other methods narrow the selection.
    pub fn any() -> Self {
        Self::default()
    }

    /// Selects requests that can change objects.
    pub fn writes() -> Self {
        let methods = ["POST", "PUT", "PATCH", "DELETE"];
        methods.into_iter().fold(Self::any(), Self::method)
    }

    /// Selects requests that open a watch.
    pub fn watches() -> Self {
        Self::reads(Read::Watch)
    }

    /// Selects requests that list a resource, or a page of it.
    pub fn lists() -> Self {
        Self::reads(Read::List)
    }

    /// Selects requests for the second or a later page of a list.
    pub fn later_pages() -> Self {
        Self::reads(Read::LaterPage)
    }

    /// Selects requests that read one object.
    pub fn objects() -> Self {
        Self::reads(Read::Object)
    }

    fn reads(read: Read) -> Self {
        Self {
            reads: Some(read),
            ..Self::any()
        }
    }

    /// Selects requests with this HTTP method, in capitals. Several calls select any of their
    /// methods.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        self.methods.push(method.to_owned());
        self
    }

    /// Selects requests with this path, such as `/api`.
    #[must_use]
    pub fn path(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    /// Selects requests whose path begins with this, such as `/apis/coordination.k8s.io/`.
    #[must_use]
    pub fn path_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.path_prefix = Some(prefix.into());
        self
    }

    /// Selects requests for this resource in any group, as written in RBAC rules: `leases`, or
    /// `foos/status` for a subresource. `foos` alone excludes subresources.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// Selects requests in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Selects requests in the namespaces whose names begin with this, and those for the namespaces
    /// and other cluster-scoped objects whose names do.
    #[must_use]
    pub fn namespaces_with(mut self, prefix: impl Into<String>) -> Self {
        self.namespace_prefix = Some(prefix.into());
        self
    }

    /// Selects requests for the object with this name. Creates, lists and watches have no name in
    /// their path and never match.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Selects requests from clients whose user agent contains this.
    #[must_use]
    pub fn user_agent(mut self, part: impl Into<String>) -> Self {
        self.user_agent = Some(part.into());
        self
    }

    /// Selects requests for the metadata of objects only.
    #[must_use]
    pub fn metadata(mut self) -> Self {
        self.is_metadata = Some(true);
        self
    }

    /// Selects requests for whole objects, as opposed to their metadata only.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.is_metadata = Some(false);
        self
    }

    fn matches(&self, head: &Parts) -> bool {
        let Self {
            methods,
            path: whole_path,
            path_prefix,
            resource,
            namespace,
            namespace_prefix,
            name,
            user_agent,
            reads,
            is_metadata,
        } = self;
        let path = head.uri.path();
        let target = Target::of(path);
        let header_contains = |header, part: &str| {
            let value = head.headers.get(header).map_or(&b""[..], |value| value.as_bytes());
            String::from_utf8_lossy(value).contains(part)
        };
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        (methods.is_empty() || methods.iter().any(|method| method == head.method.as_str()))
            && is(whole_path, Some(path))
            && path_prefix.as_ref().is_none_or(|prefix| path.starts_with(prefix))
            && is(resource, target.resource.as_deref())
            && is(namespace, target.namespace)
            && namespace_prefix
                .as_ref()
                .is_none_or(|prefix| target.names_namespace_with(prefix))
            && is(name, target.name)
            && user_agent.as_ref().is_none_or(|part| header_contains(USER_AGENT, part))
            && is_metadata.is_none_or(|wanted| wanted == header_contains(ACCEPT, "as=PartialObjectMetadata"))
            && reads.is_none_or(|read| match read {
                Read::Watch => is_watch(head),
                Read::List => is_list(head, &target),
                Read::LaterPage => is_list(head, &target) && has_query(head, |key, _| key == "continue"),
                Read::Object => head.method == "GET" && target.name.is_some() && !is_watch(head),
            })
    }
}

fn is_list(head: &Parts, target: &Target<'_>) -> bool {
    head.method == "GET" && target.resource.is_some() && target.name.is_none() && !is_watch(head)
}

fn has_query(head: &Parts, what: impl Fn(&str, &str) -> bool) -> bool {
    let query = head.uri.query().unwrap_or_default();
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.any(|(key, value)| what(key, value))
}

/// Returns the path and query with the `limit` of a paged list set to `count`, or `None` without a
/// query.
pub(crate) fn with_page_size(count: u32, head: &Parts) -> Option<PathAndQuery> {
    let pairs = head.uri.query()?.split('&').map(|pair| match pair.split_once('=') {
        Some(("limit", _)) => format!("limit={count}"),
        _ => pair.to_owned(),
    });
    let query = pairs.collect::<Vec<_>>().join("&");
    format!("{}?{query}", head.uri.path()).parse().ok()
}

/// Returns whether the request opens a watch.
pub(crate) fn is_watch(head: &Parts) -> bool {
    has_query(head, |key, value| key == "watch" && matches!(value, "true" | "1"))
}

/// The parts of a path that identify objects.
#[derive(Default)]
struct Target<'a> {
    namespace: Option<&'a str>,
    resource: Option<String>,
    name: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Returns whether the target is in a namespace whose name begins with this, or is a
    /// cluster-scoped object whose name does.
    fn names_namespace_with(&self, prefix: &str) -> bool {
        let namespace = self.namespace.or(self.name);
        namespace.is_some_and(|namespace| namespace.starts_with(prefix))
    }

    fn of(path: &'a str) -> Self {
        let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = segments.as_slice() else {
            return Self::default();
        };
        let (namespace, rest) = match rest {
            // The namespace itself and its subresources. Otherwise the third segment is a resource
            // in the namespace.
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

/// How often a rule acts. Matching requests are counted from 1 after the rule is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only on the request with this number.
    Nth(u64),
    /// On this many requests, from the next one.
    Next(u64),
    /// On every request, until [`FaultProxy::heal`](super::FaultProxy::heal).
    UntilHealed,
    /// On a percentage of the requests, until the rule is healed. The seed determines which ones.
    Chance {
        /// The percentage.
        percent: u8,
        /// The seed of the selection.
        seed: u64,
    },
}

/// The counts of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestCounts {
    pub(crate) matched: u64,
    pub(crate) applied: u64,
}

#[derive(Clone, Debug)]
struct Rule {
    matcher: Matcher,
    /// A rule without a fault only counts.
    fault: Option<Fault>,
    times: Repeat,
    is_healed: bool,
    counts: RequestCounts,
}

impl Rule {
    /// Returns whether the rule acts on the request that was counted last.
    fn is_due(&self) -> bool {
        let due = match self.times {
            Repeat::Nth(nth) => self.counts.matched == nth,
            Repeat::Next(count) => self.counts.applied < count,
            Repeat::UntilHealed => true,
            Repeat::Chance { percent, seed } => mix(seed, self.counts.matched) % 100 < u64::from(percent),
        };
        due && !self.is_healed && self.fault.is_some()
    }
}

/// Mixes two numbers into a pseudo-random one, with the steps of `SplitMix64`.
fn mix(seed: u64, count: u64) -> u64 {
    let mut mixed = seed.wrapping_add(count.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// The index of a rule in [`Rules`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleId(usize);

/// All rules of a proxy. Rules are never removed, because a test adds only a few and may read their
/// counts until its end.
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

    /// Returns the fault for a request, or `None` to forward it unchanged. Every matching rule
    /// counts the request. Only the oldest due rule acts on it, and the other rules do not
    /// count it as applied.
    pub(crate) fn decide(&mut self, head: &Parts) -> Option<(RuleId, Fault)> {
        let mut decision = None;
        for (index, rule) in self.all.iter_mut().enumerate() {
            if !rule.matcher.matches(head) {
                continue;
            }
            rule.counts.matched += 1;
            if decision.is_none() && rule.is_due() {
                rule.counts.applied += 1;
                decision = rule.fault.clone().map(|fault| (RuleId(index), fault));
            }
        }
        decision
    }

    /// Stops all rules from acting. They still count requests.
    pub(crate) fn heal_all(&mut self) {
        for rule in &mut self.all {
            rule.is_healed = true;
        }
    }

    /// Stops one rule from acting. It still counts requests.
    pub(crate) fn heal(&mut self, RuleId(index): RuleId) {
        if let Some(rule) = self.all.get_mut(index) {
            rule.is_healed = true;
        }
    }

    pub(crate) fn is_healed(&self, RuleId(index): RuleId) -> bool {
        self.all.get(index).is_some_and(|rule| rule.is_healed)
    }

    pub(crate) fn counts(&self, RuleId(index): RuleId) -> RequestCounts {
        self.all.get(index).map(|rule| rule.counts).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
