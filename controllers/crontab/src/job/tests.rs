//! Tests of the annotations, origins and final conditions of Jobs.

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("the text is a time")
}

fn job(name: &str, annotations: &Value, status: &Value) -> CachedJob {
    let metadata = json!({"name": name, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("the JSON is a Job")
}

#[test]
fn name_gives_the_scheduled_minute_and_annotation_the_second() {
    let scheduled = |slot| Origin::Scheduled("default".into(), slot);
    let ten = at("2026-03-10T10:00:00Z");
    let table = [
        ("a-29552280", None, scheduled(ten)),
        ("a-29552280", Some("2026-03-10T10:00:00Z"), scheduled(ten)),
        ("a-29552280", Some("2026-03-10T11:00:00+01:00"), scheduled(ten)),
        (
            "a-29552280",
            Some("2026-03-10T10:00:59Z"),
            scheduled(at("2026-03-10T10:00:59Z")),
        ),
        (
            "a--1",
            Some("1969-12-31T23:59:59Z"),
            scheduled(at("1969-12-31T23:59:59Z")),
        ),
        // Fractions are truncated, as in the status.
        ("a-29552280", Some("2026-03-10T10:00:00.999Z"), scheduled(ten)),
        // Editing the annotation cannot move a run.
        ("a-29552280", Some("2026-03-10T10:01:00Z"), scheduled(ten)),
        ("a-29552280", Some("2027-03-10T10:00:00Z"), scheduled(ten)),
        ("a-29552280", Some("yesterday"), scheduled(ten)),
        ("a-29552280x", Some("2026-03-10T10:00:00Z"), Origin::Unknown),
        ("a-", None, Origin::Unknown),
        ("a", None, Origin::Unknown),
        ("ab-29552280", None, Origin::Unknown),
        ("b-29552280", None, Origin::Unknown),
        ("a-b-29552280", None, Origin::Unknown),
        ("a-9223372036854775807", None, Origin::Unknown),
        ("a-999999999999", None, Origin::Unknown),
    ];
    for (name, annotation, expected) in table {
        let annotations = json!({ SCHEDULED_TIMESTAMP_ANNOTATION: annotation });
        assert_eq!(
            job(name, &annotations, &json!({})).origin("a"),
            expected,
            "{name} {annotation:?}"
        );
    }
    let hashed = job("a-a299e94a-t29552280", &json!(null), &json!({}));
    assert_eq!(hashed.origin("a"), scheduled(ten), "the name has the other format");
    let others = job("a-b-29552280", &json!(null), &json!({}));
    assert_eq!(
        others.origin("a-b"),
        scheduled(ten),
        "the owner's name may contain a dash"
    );
}

#[test]
fn annotations_give_the_origin() {
    let manual = json!({"cronjob.kubernetes.io/instantiate": "manual"});
    let run_now = json!({"stable.example.com/run-now": "1"});
    for (name, annotations, expected) in [
        ("anything", &manual, Origin::Manual),
        ("a-29552280", &manual, Origin::Manual),
        ("anything", &run_now, Origin::RunNow("1".into())),
        ("a-29552280", &run_now, Origin::RunNow("1".into())),
    ] {
        assert_eq!(
            job(name, annotations, &json!({})).origin("a"),
            expected,
            "{name} {annotations}"
        );
        // The template may contain these annotations; then the Job is a scheduled run like any
        // other.
        let mut both = annotations.clone();
        both[SCHEDULED_TIMESTAMP_ANNOTATION] = "2026-03-10T10:00:00Z".into();
        let origin = job("a-29552280", &both, &json!({})).origin("a");
        assert_eq!(
            origin,
            Origin::Scheduled("default".into(), at("2026-03-10T10:00:00Z")),
            "{both}"
        );
    }
}

#[test]
fn annotation_has_the_time_in_the_zone_as_go_formats_it() {
    let annotation_value = |zone: &str, time: &str| {
        let zone = portreeve_cron::load_zone(zone).expect("the zone exists");
        Run::Scheduled("default".into(), at(time)).annotation(&zone).1
    };
    for (zone, time, expected) in [
        ("UTC", "2026-03-10T10:00:00Z", "2026-03-10T10:00:00Z"),
        ("Etc/UTC", "2026-03-10T10:00:00Z", "2026-03-10T10:00:00Z"),
        ("Europe/London", "2026-03-10T10:00:00Z", "2026-03-10T10:00:00Z"),
        ("Europe/London", "2026-07-10T10:00:00Z", "2026-07-10T11:00:00+01:00"),
        ("Asia/Kolkata", "2026-03-10T10:00:00Z", "2026-03-10T15:30:00+05:30"),
        ("America/New_York", "2026-03-10T02:00:00Z", "2026-03-09T22:00:00-04:00"),
    ] {
        assert_eq!(annotation_value(zone, time), expected, "{zone}");
    }
}

#[test]
fn finished_status_requires_a_true_final_condition() {
    let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "lastTransitionTime": "2026-03-10T10:05:00Z"});
    let completed = "2026-03-10T10:04:00Z";
    let (five, four) = (Some(at("2026-03-10T10:05:00Z")), Some(at(completed)));
    for (status, expected) in [
        (json!(null), None),
        (json!({"conditions": null}), None),
        (
            json!({"conditions": [condition("Complete", "False"), condition("Suspended", "True")]}),
            None,
        ),
        (json!({"conditions": [condition("SuccessCriteriaMet", "True")]}), None),
        (json!({"conditions": [condition("FailureTarget", "True")]}), None),
        (
            json!({"conditions": [condition("Complete", "True")]}),
            Some(FinishedStatus::Complete(five)),
        ),
        (
            json!({"conditions": [condition("SuccessCriteriaMet", "True"), condition("Complete", "True")], "completionTime": completed}),
            Some(FinishedStatus::Complete(four)),
        ),
        (
            json!({"conditions": [condition("FailureTarget", "True"), condition("Failed", "True")]}),
            Some(FinishedStatus::Failed(five)),
        ),
        (
            json!({"conditions": [{"type": "Failed", "status": "True"}]}),
            Some(FinishedStatus::Failed(None)),
        ),
    ] {
        let mut whole = json!({"metadata": {"name": "a"}, "status": status});
        if status.is_null() {
            whole.as_object_mut().expect("the Job is an object").remove("status");
        }
        let job: CachedJob = serde_json::from_value(whole).expect("the JSON is a Job");
        assert_eq!(job.finished_status(), expected, "{status}");
    }
}
