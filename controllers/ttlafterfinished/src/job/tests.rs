mod corpus;

use expect_test::expect;
use portreeve_reconcile::{Effect, Plan, Propagation};
use serde_json::{Value, json};

use super::*;
use crate::expiry;

const NOON: &str = "2026-01-01T12:00:00Z";
const MUCH_LATER: &str = "2030-01-01T00:00:00Z";

/// Returns a Job with conditions of these types and statuses, all set at noon.
fn job(ttl: impl Into<Option<i32>>, conditions: &[(&str, &str)]) -> CachedJob {
    let conditions: Vec<_> = conditions.iter().map(|pair| condition(*pair)).collect();
    job_with_conditions(ttl.into(), &json!(conditions))
}

fn job_with_conditions(ttl: Option<i32>, conditions: &Value) -> CachedJob {
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

/// Returns a Job that completed at noon.
fn complete(ttl: impl Into<Option<i32>>) -> CachedJob {
    job(ttl, &[("SuccessCriteriaMet", "True"), ("Complete", "True")])
}

fn decide(job: &CachedJob, now: &str) -> Plan {
    expiry::decide(job, now.parse().unwrap())
}

#[test]
fn finished_job_is_deleted_exactly_when_its_ttl_ends() {
    let failed = job(60, &[("FailureTarget", "True"), ("Failed", "True")]);
    let mut twice = vec![condition(("Failed", "True")), condition(("Complete", "True"))];
    twice[0]["lastTransitionTime"] = "2026-01-01T11:00:00Z".into();
    let twice = job_with_conditions(Some(60), &json!(twice));
    let cases = [
        ("just before the expiry", complete(60), "2026-01-01T12:00:59.999999999Z"),
        ("at the expiry", complete(60), "2026-01-01T12:01:00Z"),
        ("just after the expiry", complete(60), "2026-01-01T12:01:00.000000001Z"),
        ("years later", complete(60), MUCH_LATER),
        ("a TTL of zero", complete(0), NOON),
        ("failed", failed, "2026-01-01T12:01:00Z"),
        ("two ends, the first one counts", twice, "2026-01-01T11:01:00Z"),
        ("the longest TTL", complete(i32::MAX), MUCH_LATER),
        ("finishes in half a second", complete(0), "2026-01-01T11:59:59.5Z"),
        ("finishes in a second", complete(0), "2026-01-01T11:59:59Z"),
        ("finishes in hours", complete(60), "2026-01-01T09:29:59.5Z"),
    ];
    let width = cases.iter().map(|(case, ..)| case.len()).max().unwrap_or_default();
    let row = |(case, job, now): &(&str, CachedJob, &str)| format!("{case:width$}  {}\n", decide(job, now));
    let table: String = cases.iter().map(row).collect();
    expect![[r"
        just before the expiry          nothing; again at 2026-01-01T12:01:00Z
        at the expiry                   delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        just after the expiry           delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        years later                     delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        a TTL of zero                   delete Job n/a, observe the time since 2026-01-01T12:00:00Z in LATENCY_METRIC
        failed                          delete Job n/a, observe the time since 2026-01-01T12:01:00Z in LATENCY_METRIC
        two ends, the first one counts  delete Job n/a, observe the time since 2026-01-01T11:01:00Z in LATENCY_METRIC
        the longest TTL                 nothing; again at 2094-01-19T15:14:07Z
        finishes in half a second       nothing; again at 2026-01-01T12:00:00Z
        finishes in a second            event ClockSkew on Job n/a; again at 2026-01-01T12:00:00Z
        finishes in hours               event ClockSkew on Job n/a; again at 2026-01-01T12:01:00Z
    "]]
    .assert_eq(&table.replace(CachedJob::LATENCY_METRIC, "LATENCY_METRIC"));
}

#[test]
fn jobs_without_ttl_and_unfinished_jobs_are_left_alone() {
    let new = serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "n"}})).unwrap();
    let without_time = job_with_conditions(Some(0), &json!([{"type": "Complete", "status": "True"}]));
    let null = job_with_conditions(
        Some(0),
        &json!([{"type": "Complete", "status": "True", "lastTransitionTime": null}]),
    );
    let mut terminating = complete(0);
    terminating.metadata.deletion_timestamp = NOON.parse().ok();
    let cases = [
        ("no ttl", complete(None)),
        ("new", new),
        ("no conditions", job_with_conditions(Some(0), &json!(null))),
        ("suspended", job(0, &[("Suspended", "True")])),
        ("about to succeed", job(0, &[("SuccessCriteriaMet", "True")])),
        ("about to fail", job(0, &[("FailureTarget", "True")])),
        ("not complete", job(0, &[("Complete", "False")])),
        ("unknown whether failed", job(0, &[("Failed", "Unknown")])),
        ("no time of the finish", without_time),
        ("the time of the finish is null", null),
        ("being deleted", terminating),
    ];
    for (case, job) in cases {
        assert_eq!(decide(&job, MUCH_LATER), Plan::nothing(), "{case}");
    }
}

#[test]
fn deletion_has_preconditions_and_foreground_propagation() {
    let effects = decide(&complete(60), MUCH_LATER).effects;
    let [
        Effect::Delete { target, propagation },
        Effect::ObserveLatency { metric, since },
    ] = &effects[..]
    else {
        panic!("the plan must be a deletion and its latency: {effects:?}");
    };
    assert_eq!(*propagation, Propagation::Foreground);
    assert_eq!((&*target.uid, &*target.version), ("u", "7"));
    assert_eq!(*metric, CachedJob::LATENCY_METRIC);
    assert_eq!(since.to_string(), "2026-01-01T12:01:00Z");
}

#[test]
fn future_finish_time_is_reported_once() {
    let reported = |now: &str| {
        let mut effects = decide(&complete(60), now).effects;
        match (effects.pop(), effects.is_empty()) {
            (Some(Effect::Event(_, note)), true) => (note.message, note.report_once),
            found => panic!("{found:?}"),
        }
    };
    let (message, subject) = reported("2026-01-01T10:30:00.5Z");
    expect!["The Job finished at 2026-01-01T12:00:00Z, 1h 29m 59s ahead of this controller's clock: the clocks in the cluster differ. The Job is kept until 2026-01-01T12:01:00Z"].assert_eq(&message);
    assert_eq!(
        reported("2026-01-01T09:00:00Z").1,
        subject,
        "the subject does not depend on the skew"
    );
    assert_eq!(subject.as_deref(), Some(NOON));
}

#[test]
fn cached_job_stores_only_the_fields_that_decisions_need() {
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
        "a cached Job is its metadata, a number and a time"
    );
}
