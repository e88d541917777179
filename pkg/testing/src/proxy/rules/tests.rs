//! Tests which requests a rule matches, and how often it acts.

use http::Request;

use super::*;
use crate::proxy::canned::CannedResponse;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/portreeve";

/// Returns a request head from `METHOD path`.
fn head(line: &str) -> Parts {
    let (method, uri) = line.split_once(' ').unwrap();
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(USER_AGENT, "portreeve/0.1.0 (linux/x86_64) leader-election");
    request.body(()).unwrap().into_parts().0
}

fn check(matcher: &Matcher, matching: &[&str], others: &[&str]) {
    for line in matching {
        assert!(matcher.matches(&head(line)), "{matcher:?} does not match {line}");
    }
    for line in others {
        assert!(!matcher.matches(&head(line)), "{matcher:?} matches {line}");
    }
}

#[test]
fn a_matcher_requires_all_its_conditions() {
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
fn resources_are_recognised_in_every_form_of_path() {
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
fn watches_are_recognised_by_their_query() {
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

#[test]
fn lists_and_their_pages_differ_from_other_reads() {
    let page = "GET /api/v1/pods?limit=500&continue=abc";
    let list = "GET /api/v1/namespaces/a/pods?limit=500";
    let others = [
        "GET /api/v1/namespaces/a/pods/p",
        "GET /api/v1/pods?watch=true",
        "POST /api/v1/namespaces/a/pods",
        "GET /livez",
    ];
    check(&Matcher::lists(), &[page, list], &others);
    check(&Matcher::later_pages(), &[page], &[list]);
    check(&Matcher::later_pages(), &[], &others);
}

#[test]
fn metadata_requests_are_recognised_by_their_accept_header() {
    let accepting = |accept: &'static str| {
        let mut head = head("GET /api/v1/pods?limit=500");
        head.headers.insert(ACCEPT, http::HeaderValue::from_static(accept));
        head
    };
    let whole = accepting("application/json");
    let metadata = accepting("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json");
    for (matcher, expected) in [
        (Matcher::lists(), (true, true)),
        (Matcher::lists().whole(), (true, false)),
        (Matcher::lists().metadata(), (false, true)),
    ] {
        assert_eq!(
            (matcher.matches(&whole), matcher.matches(&metadata)),
            expected,
            "{matcher:?}"
        );
    }
}

#[test]
fn only_paged_requests_get_smaller_pages() {
    for (request, expected) in [
        ("GET /api/v1/pods", None),
        (
            "GET /api/v1/pods?labelSelector=a%3Db",
            Some("/api/v1/pods?labelSelector=a%3Db"),
        ),
        ("GET /api/v1/pods?limit=500", Some("/api/v1/pods?limit=2")),
        (
            "GET /api/v1/pods?x=1&limit=500&continue=abc",
            Some("/api/v1/pods?x=1&limit=2&continue=abc"),
        ),
    ] {
        let expected = expected.map(|expected| expected.parse().unwrap());
        assert_eq!(with_page_size(2, &head(request)), expected, "{request}");
    }
}

/// Returns the fate of equal requests: `a` for a fault, `-` for forwarded.
fn outcomes_of(rules: &mut Rules, requests: usize) -> String {
    let put = head(&format!("PUT {LEASE}"));
    let action = |_| match rules.decide(&put) {
        None => '-',
        Some(_) => 'a',
    };
    (0..requests).map(action).collect()
}

fn responding(times: Repeat) -> (Rules, RuleId) {
    let mut rules = Rules::default();
    let id = rules.add(
        Matcher::writes(),
        Some(Fault::Respond(CannedResponse::conflict())),
        times,
    );
    (rules, id)
}

#[test]
fn a_rule_acts_as_often_as_its_repeat_says() {
    for (times, expected) in [
        (Repeat::Nth(1), "a----"),
        (Repeat::Nth(3), "--a--"),
        (Repeat::Nth(0), "-----"),
        (Repeat::Next(2), "aa---"),
        (Repeat::Next(0), "-----"),
        (Repeat::UntilHealed, "aaaaa"),
    ] {
        let (mut rules, id) = responding(times);
        assert_eq!(outcomes_of(&mut rules, 5), expected, "{times:?}");
        assert_eq!(rules.counts(id).matched, 5, "{times:?}");
        assert_eq!(
            rules.counts(id).applied,
            expected.matches('a').count() as u64,
            "{times:?}"
        );
    }
}

#[test]
fn a_healed_rule_still_counts_but_no_longer_acts() {
    let (mut rules, id) = responding(Repeat::UntilHealed);
    assert_eq!(outcomes_of(&mut rules, 2), "aa");
    rules.heal_all();
    assert_eq!(outcomes_of(&mut rules, 2), "--");
    assert_eq!(rules.counts(id), RequestCounts { matched: 4, applied: 2 });
    rules.add(
        Matcher::any(),
        Some(Fault::Respond(CannedResponse::unavailable())),
        Repeat::Next(1),
    );
    assert_eq!(outcomes_of(&mut rules, 2), "a-");
}

#[test]
fn healing_one_rule_does_not_affect_the_others() {
    let mut rules = Rules::default();
    let ids = [CannedResponse::conflict(), CannedResponse::unavailable()]
        .map(|canned| rules.add(Matcher::any(), Some(Fault::Respond(canned)), Repeat::UntilHealed));
    rules.heal(ids[0]);
    assert_eq!(ids.map(|id| rules.is_healed(id)), [true, false]);
    assert_eq!(outcomes_of(&mut rules, 2), "aa");
    assert_eq!(ids.map(|id| rules.counts(id).applied), [0, 2]);
}

#[test]
fn the_oldest_rule_acts_first_and_counting_rules_do_not_interfere() {
    let mut rules = Rules::default();
    let counting = rules.add(Matcher::any(), None, Repeat::UntilHealed);
    let older = rules.add(
        Matcher::any(),
        Some(Fault::Respond(CannedResponse::conflict())),
        Repeat::Next(1),
    );
    let newer = rules.add(
        Matcher::any(),
        Some(Fault::Respond(CannedResponse::unavailable())),
        Repeat::Next(1),
    );
    let put = head(&format!("PUT {LEASE}"));
    let mut decide = || rules.decide(&put).map(|(_, fault)| fault);
    assert_eq!(decide(), Some(Fault::Respond(CannedResponse::conflict())));
    assert_eq!(decide(), Some(Fault::Respond(CannedResponse::unavailable())));
    assert_eq!(decide(), None);
    assert_eq!(rules.counts(counting), RequestCounts { matched: 3, applied: 0 });
    assert_eq!(rules.counts(older), RequestCounts { matched: 3, applied: 1 });
    assert_eq!(rules.counts(newer), RequestCounts { matched: 3, applied: 1 });
}

#[test]
fn a_chance_has_its_frequency_and_depends_only_on_its_seed() {
    let hits = |percent, seed| {
        let (mut rules, _) = responding(Repeat::Chance { percent, seed });
        outcomes_of(&mut rules, 2_000)
    };
    for seed in 0..5 {
        let outcomes = hits(30, seed);
        let count = outcomes.matches('a').count();
        assert!((500..700).contains(&count), "seed {seed}: {count}");
        assert_eq!(outcomes, hits(30, seed));
        assert_ne!(outcomes, hits(30, seed + 1));
    }
    assert_eq!(hits(0, 1).matches('a').count(), 0);
    assert_eq!(hits(100, 1).matches('a').count(), 2_000);
}
