//! Tests of the outcomes that tests of the collector expect.

use std::collections::BTreeSet;

use crate::fixtures::expected_objects::{ExpectedOutcome, expected_outcomes};

/// Checks the expected outcomes. `objects` are names with their owners, `deleted` are objects that
/// are deleted with their dependents, and `orphaning` are objects whose dependents are orphaned
/// when they are deleted.
fn check(objects: &[(&str, &[&str])], deleted: &[&str], orphaning: &[&str], expected: &str) {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let owners = objects.iter().map(|(name, owners)| ((*name).to_owned(), set(owners)));
    let of = |names: &[&str], orphans| {
        names
            .iter()
            .map(move |name| ((*name).to_owned(), orphans))
            .collect::<Vec<_>>()
    };
    let deleted = of(deleted, false).into_iter().chain(of(orphaning, true));
    let expected_outcomes = expected_outcomes(&owners.collect(), &deleted.collect());
    let described = expected_outcomes.iter().map(|(name, outcome)| match outcome {
        ExpectedOutcome::Gone => format!("-{name}"),
        ExpectedOutcome::Kept(owners) => {
            let owners: Vec<_> = owners.iter().map(String::as_str).collect();
            format!("{name}({})", owners.join(","))
        }
    });
    assert_eq!(described.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn objects_with_a_living_owner_or_no_owner_remain() {
    let chain: &[(&str, &[&str])] = &[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &[])];
    check(chain, &[], &[], "a() b(a) c(b) d()");
    check(chain, &["a"], &[], "-a -b -c d()");
    check(chain, &["b"], &[], "a() -b -c d()");
    check(chain, &[], &["a"], "-a b() c(b) d()");
    let shared: &[(&str, &[&str])] = &[("a", &[]), ("b", &[]), ("c", &["a", "b"]), ("d", &["a", "nobody"])];
    check(shared, &["a"], &[], "-a b() c(b) -d");
    check(shared, &["a", "b"], &[], "-a -b -c -d");
    check(&[("a", &["nobody"]), ("b", &["a"])], &[], &[], "-a -b");
    let circle: &[(&str, &[&str])] = &[("a", &["c"]), ("b", &["a"]), ("c", &["b"])];
    check(circle, &[], &[], "a(c) b(a) c(b)");
    check(circle, &["a"], &[], "-a -b -c");
}
