mod corpus;

use expect_test::expect;
use portreeve_reconcile::{Effect, Plan, Propagation};
use serde_json::{Value, json};

use super::*;
use crate::expiry;

const NOON: &str = "2026-01-01T12:00:00Z";
const MUCH_LATER: &str = "2030-01-01T00:00:00Z";

/// A Job with conditions of these types and values since noon.
fn job(ttl: impl Into<Option<i32>>, conditions: &[(&str, &str)]) -> CachedJob {
    let conditions: Vec<_> = conditions.iter().map(|found| condition(*found)).collect();
    of(ttl.into(), &json!(conditions))
}

fn of(ttl: Option<i32>, conditions: &Value) -> CachedJob {
    let metadata = json!({"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7"});
    let (spec, status) = (
        json!({"ttlSecondsAfterFinished": ttl}),
        json!({"conditions": conditions}),
    );
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn condition((type_, status): (&str, &str)) -> Value {
    json!({"type": type_, "status": status, "lastTransitionTime": NOON, "lastProbeTime": NOON})
}

/// Complete at noon.
fn complete(ttl: impl Into<Option<i32>>) -> CachedJob {
    job(ttl, &[("SuccessCriteriaMet", "True"), ("Complete", "True")])
}

fn decide(job: &CachedJob, now: &str) -> Plan {
    expiry::decide(job, now.parse().unwrap())
}

#[test]
fn a_finished_job_lives_for_its_ttl_to_the_second() {
    let failed = job(60, &[("FailureTarget", "True"), ("Failed", "True")]);
    let mut twice = vec![condition(("Failed", "True")), condition(("Complete", "True"))];
    twice[0]["lastTransitionTime"] = "2026-01-01T11:00:00Z".into();
    let twice = of(Some(60), &json!(twice));
    let cases = [
        ("a moment before", complete(60), "2026-01-01T12:00:59.999999999Z"),
        ("on the second", complete(60), "2026-01-01T12:01:00Z"),
        ("a moment after", complete(60), "2026-01-01T12:01:00.000000001Z"),
        ("years later", complete(60), MUCH_LATER),
        ("no time at all", complete(0), NOON),
        ("failed", failed, "2026-01-01T12:01:00Z"),
        ("ended twice: the first counts", twice, "2026-01-01T11:01:00Z"),
        ("the longest time", complete(i32::MAX), MUCH_LATER),
        ("to finish in a moment", complete(0), "2026-01-01T11:59:59.5Z"),
        ("to finish in a second", complete(0), "2026-01-01T11:59:59Z"),
        ("to finish in hours", complete(60), "2026-01-01T09:29:59.5Z"),
    ];
    let width = cases.iter().map(|(case, ..)| case.len()).max().unwrap_or_default();
    let row = |(case, job, now): &(&str, CachedJob, &str)| format!("{case:width$}  {}\n", decide(job, now));
    let table: String = cases.iter().map(row).collect();
    expect![[r"
        a moment before                nothing; again at 2026-01-01T12:01:00Z
        on the second                  delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        a moment after                 delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        years later                    delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        no time at all                 delete Job n/a, observe the time since 2026-01-01T12:00:00Z in LATENCY_METRIC
        failed                         delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        ended twice: the first counts  delete Job n/a, observe the time since 2026-01-01T11:01:00Z in LATENCY_METRIC
        the longest time               nothing; again at 2094-01-19T15:14:07Z
        to finish in a moment          nothing; again at 2026-01-01T12:00:00Z
        to finish in a second          event ClockSkew on Job n/a; again at 2026-01-01T12:00:00Z
        to finish in hours             event ClockSkew on Job n/a; again at 2026-01-01T12:01:00Z
    "]]
    .assert_eq(&table.replace(CachedJob::LATENCY_METRIC, "LATENCY_METRIC"));
}

#[test]
fn what_has_no_ttl_or_has_not_finished_is_left_alone() {
    let new = serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "n"}})).unwrap();
    let timeless = of(Some(0), &json!([{"type": "Complete", "status": "True"}]));
    let null = of(
        Some(0),
        &json!([{"type": "Complete", "status": "True", "lastTransitionTime": null}]),
    );
    let mut going = complete(0);
    going.metadata.deletion_timestamp = NOON.parse().ok();
    let cases = [
        ("no ttl", complete(None)),
        ("new", new),
        ("no conditions", of(Some(0), &json!(null))),
        ("suspended", job(0, &[("Suspended", "True")])),
        ("about to succeed", job(0, &[("SuccessCriteriaMet", "True")])),
        ("about to fail", job(0, &[("FailureTarget", "True")])),
        ("not complete", job(0, &[("Complete", "False")])),
        ("perhaps failed", job(0, &[("Failed", "Unknown")])),
        ("nobody says when it finished", timeless),
        ("the time of the finish is null", null),
        ("being deleted", going),
    ];
    for (case, job) in cases {
        assert_eq!(decide(&job, MUCH_LATER), Plan::nothing(), "{case}");
    }
}

#[test]
fn a_deletion_is_of_what_was_seen_and_in_the_foreground() {
    let effects = decide(&complete(60), MUCH_LATER).effects;
    let [
        Effect::Delete { target, propagation },
        Effect::ObserveLatency { metric, since },
    ] = &effects[..]
    else {
        panic!("a deletion, and then how late it was: {effects:?}");
    };
    assert_eq!(*propagation, Propagation::Foreground);
    assert_eq!((&*target.uid, &*target.version), ("u", "7"));
    assert_eq!(*metric, CachedJob::LATENCY_METRIC);
    assert_eq!(since.to_string(), "2026-01-01T12:01:00Z");
}

#[test]
fn a_finish_in_the_future_is_told_of_once_for_each_finish() {
    let told = |now: &str| {
        let mut effects = decide(&complete(60), now).effects;
        match (effects.pop(), effects.is_empty()) {
            (Some(Effect::Event(_, note)), true) => (note.message, note.report_once),
            found => panic!("{found:?}"),
        }
    };
    let (message, subject) = told("2026-01-01T10:30:00.5Z");
    expect!["The Job finished at 2026-01-01T12:00:00Z, 1h 29m 59s ahead of this controller's clock: the clocks in the cluster differ. The Job is kept until 2026-01-01T12:01:00Z"].assert_eq(&message);
    assert_eq!(told("2026-01-01T09:00:00Z").1, subject, "however far it is ahead");
    assert_eq!(subject.as_deref(), Some(NOON));
}

#[test]
fn what_is_not_decided_on_is_not_kept() {
    let job: CachedJob = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}, "managedFields": [{}]},
        "spec": {"ttlSecondsAfterFinished": 5, "suspend": false, "template": {"spec": {"containers": []}}},
        "status": {"startTime": NOON, "succeeded": 1, "conditions": [condition(("Complete", "True"))]},
    }))
    .unwrap();
    let lifetime = job.lifetime().unwrap();
    assert_eq!(lifetime.expires_at().unwrap().to_string(), "2026-01-01T12:00:05Z");
    assert!(
        size_of::<CachedJob>() - size_of::<Metadata>() <= 32,
        "a number and a time"
    );
}
