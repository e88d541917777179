//! What the proxy does with a request: the rules that a test has made, and the decision over one request's head.
//!
//! Architecture Invariant: no IO and no clock here. What a rule does is an [`Action`]; whatever the proxy is to learn next becomes
//! another one, decided here and carried out in `relay.rs`.

use std::time::Duration;

use http::header::USER_AGENT;
use http::request::Parts;

use super::canned::Canned;

/// Which requests are meant: those for which everything holds that was named. [`Matcher::any`] alone means all of them.
#[derive(Clone, Debug, Default)]
pub struct Matcher {
    methods: Vec<String>,
    path_prefix: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    user_agent: Option<String>,
    watches: bool,
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
        Self {
            watches: true,
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

    fn matches(&self, head: &Parts) -> bool {
        let Self {
            methods,
            path_prefix,
            resource,
            namespace,
            name,
            user_agent,
            watches,
        } = self;
        let path = head.uri.path();
        let target = Target::of(path);
        let agent = head.headers.get(USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        (methods.is_empty() || methods.iter().any(|method| method == head.method.as_str()))
            && path_prefix.as_ref().is_none_or(|prefix| path.starts_with(prefix))
            && is(resource, target.resource.as_deref())
            && is(namespace, target.namespace)
            && is(name, target.name)
            && user_agent
                .as_ref()
                .is_none_or(|part| String::from_utf8_lossy(agent).contains(part))
            && (!watches || is_watch(head))
    }
}

/// Whether the answer is a stream of events that goes on until somebody ends it.
pub(crate) fn is_watch(head: &Parts) -> bool {
    let query = head.uri.query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
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
pub enum Times {
    /// For this one alone.
    Nth(u64),
    /// For the next so many.
    Next(u64),
    /// For each, until [`FaultProxy::heal`](super::FaultProxy::heal).
    UntilHealed,
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It goes on to the apiserver, and its answer back. A rule that passes only counts.
    Pass,
    /// It goes on, and each part of its answer comes back so much later.
    Lag(Duration),
    /// It goes no further.
    Answer(Canned),
}

/// What a rule has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) seen: u64,
    pub(crate) answered: u64,
}

#[derive(Clone, Debug)]
struct Rule {
    matcher: Matcher,
    action: Action,
    times: Times,
    is_healed: bool,
    tally: Tally,
}

impl Rule {
    /// Whether it acts on the request that it has just seen.
    fn is_due(&self) -> bool {
        let due = match self.times {
            Times::Nth(nth) => self.tally.seen == nth,
            Times::Next(count) => self.tally.answered < count,
            Times::UntilHealed => true,
        };
        due && !self.is_healed && self.action != Action::Pass
    }
}

/// A rule's place among [`Rules`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RuleId(usize);

/// All the rules of a proxy. None is ever removed: a test makes a handful, and may ask for their counts to its end.
#[derive(Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

impl Rules {
    pub(crate) fn add(&mut self, matcher: Matcher, action: Action, times: Times) -> RuleId {
        self.0.push(Rule {
            matcher,
            action,
            times,
            is_healed: false,
            tally: Tally::default(),
        });
        RuleId(self.0.len() - 1)
    }

    /// Every rule that matches counts the request; the oldest that is due acts on it, and the others keep their turns.
    pub(crate) fn decide(&mut self, head: &Parts) -> Action {
        let mut action = Action::Pass;
        for rule in self.0.iter_mut().filter(|rule| rule.matcher.matches(head)) {
            rule.tally.seen += 1;
            if action == Action::Pass && rule.is_due() {
                rule.tally.answered += 1;
                action = rule.action.clone();
            }
        }
        action
    }

    /// From now on none of them acts; they go on counting.
    pub(crate) fn heal(&mut self) {
        for rule in &mut self.0 {
            rule.is_healed = true;
        }
    }

    pub(crate) fn tally(&self, RuleId(place): RuleId) -> Tally {
        self.0.get(place).map(|rule| rule.tally).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/portreeve";

    /// A request's head, from `METHOD path`.
    fn head(line: &str) -> Parts {
        let (method, uri) = line.split_once(' ').unwrap();
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(USER_AGENT, "portreeve/0.1.0 (linux/x86_64) leader-election");
        request.body(()).unwrap().into_parts().0
    }

    fn check(matcher: &Matcher, meant: &[&str], others: &[&str]) {
        for line in meant {
            assert!(matcher.matches(&head(line)), "{matcher:?} leaves out {line}");
        }
        for line in others {
            assert!(!matcher.matches(&head(line)), "{matcher:?} means {line}");
        }
    }

    #[test]
    fn a_matcher_means_what_everything_named_holds_for() {
        let get = format!("GET {LEASE}");
        let put = format!("PUT {LEASE}");
        let (get, put) = (get.as_str(), put.as_str());
        check(&Matcher::any(), &[get, put, "GET /livez"], &[]);
        check(&Matcher::writes(), &[put, "POST /api/v1/namespaces"], &[get]);
        check(&Matcher::any().method("GET"), &[get], &[put]);
        check(
            &Matcher::any().method("GET").method("PUT"),
            &[get, put],
            &["DELETE /api/v1/nodes"],
        );
        check(
            &Matcher::any().method("PUT").name("portreeve"),
            &[put],
            &[get, "PUT /api/v1/nodes/a"],
        );
        check(&Matcher::any().path_prefix("/apis/"), &[get], &["GET /api/v1/pods"]);
        check(&Matcher::any().user_agent("leader-election"), &[get], &[]);
        check(&Matcher::any().user_agent("foo-controller"), &[], &[get]);
    }

    #[test]
    fn resources_are_found_in_every_form_of_path() {
        let pods = Matcher::any().resource("pods");
        check(
            &pods,
            &[
                "GET /api/v1/pods",
                "GET /api/v1/namespaces/a/pods?watch=true",
                "DELETE /api/v1/namespaces/a/pods/p",
                "GET /apis/metrics.k8s.io/v1/namespaces/a/pods",
            ],
            &[
                "GET /api/v1/namespaces/pods",
                "GET /api/v1/namespaces/a/pods/p/log",
                "GET /pods",
            ],
        );
        check(
            &Matcher::any().resource("pods/status"),
            &["PATCH /api/v1/namespaces/a/pods/p/status"],
            &["PATCH /api/v1/namespaces/a/pods/p"],
        );
        check(
            &Matcher::any().resource("namespaces"),
            &["GET /api/v1/namespaces", "GET /api/v1/namespaces/a"],
            &["PUT /api/v1/namespaces/a/status", "GET /api/v1/namespaces/a/pods"],
        );
        check(
            &Matcher::any().resource("namespaces/status").name("a"),
            &["PUT /api/v1/namespaces/a/status"],
            &["GET /api/v1/namespaces/a"],
        );
        check(
            &pods.namespace("a"),
            &["GET /api/v1/namespaces/a/pods"],
            &["GET /api/v1/pods"],
        );
    }

    #[test]
    fn watches_are_told_by_their_query() {
        check(
            &Matcher::watches(),
            &["GET /api/v1/pods?watch=true", "GET /api/v1/pods?limit=5&watch=1"],
            &[
                "GET /api/v1/pods",
                "GET /api/v1/pods?watch=false",
                "GET /api/v1/pods?unwatch=true",
            ],
        );
    }

    /// What becomes of so many equal requests: `a` is answered, `-` is passed on.
    fn answered(rules: &mut Rules, requests: usize) -> String {
        let put = head(&format!("PUT {LEASE}"));
        let action = |_| match rules.decide(&put) {
            Action::Pass => '-',
            Action::Answer(_) | Action::Lag(_) => 'a',
        };
        (0..requests).map(action).collect()
    }

    fn answering(times: Times) -> (Rules, RuleId) {
        let mut rules = Rules::default();
        let id = rules.add(Matcher::writes(), Action::Answer(Canned::conflict()), times);
        (rules, id)
    }

    #[test]
    fn a_rule_acts_as_often_as_it_was_told() {
        for (times, expected) in [
            (Times::Nth(1), "a----"),
            (Times::Nth(3), "--a--"),
            (Times::Nth(0), "-----"),
            (Times::Next(2), "aa---"),
            (Times::Next(0), "-----"),
            (Times::UntilHealed, "aaaaa"),
        ] {
            let (mut rules, id) = answering(times);
            assert_eq!(answered(&mut rules, 5), expected, "{times:?}");
            assert_eq!(rules.tally(id).seen, 5, "{times:?}");
            assert_eq!(
                rules.tally(id).answered,
                expected.matches('a').count() as u64,
                "{times:?}"
            );
        }
    }

    #[test]
    fn a_healed_rule_counts_and_acts_no_more() {
        let (mut rules, id) = answering(Times::UntilHealed);
        assert_eq!(answered(&mut rules, 2), "aa");
        rules.heal();
        assert_eq!(answered(&mut rules, 2), "--");
        assert_eq!(rules.tally(id), Tally { seen: 4, answered: 2 });
        rules.add(Matcher::any(), Action::Answer(Canned::unavailable()), Times::Next(1));
        assert_eq!(answered(&mut rules, 2), "a-");
    }

    #[test]
    fn the_oldest_rule_acts_first_and_counting_rules_stand_in_nobodys_way() {
        let mut rules = Rules::default();
        let counting = rules.add(Matcher::any(), Action::Pass, Times::UntilHealed);
        let older = rules.add(Matcher::any(), Action::Answer(Canned::conflict()), Times::Next(1));
        let newer = rules.add(Matcher::any(), Action::Answer(Canned::unavailable()), Times::Next(1));
        let put = head(&format!("PUT {LEASE}"));
        assert_eq!(rules.decide(&put), Action::Answer(Canned::conflict()));
        assert_eq!(rules.decide(&put), Action::Answer(Canned::unavailable()));
        assert_eq!(rules.decide(&put), Action::Pass);
        assert_eq!(rules.tally(counting), Tally { seen: 3, answered: 0 });
        assert_eq!(rules.tally(older), Tally { seen: 3, answered: 1 });
        assert_eq!(rules.tally(newer), Tally { seen: 3, answered: 1 });
    }
}
