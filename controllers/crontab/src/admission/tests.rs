use std::sync::Arc;

use expect_test::{Expect, expect};
use portreeve_reconcile::admission::WebhookHandler;
use serde_json::{Value, json, value::to_raw_value};

use super::*;

const NOW: &str = "2026-11-24T12:00:00Z";

fn crontab(spec: &Value) -> Value {
    json!({"metadata": {"name": "a", "uid": "1"}, "spec": spec})
}

fn review(old: Option<Value>, new: Value, parameters: Option<&[Arc<Value>]>) -> Verdict {
    let WebhookHandler::Validate(validate) = &webhooks()[0].handler else {
        panic!("it validates");
    };
    let now = NOW.parse().unwrap();
    let raw = |object: Value| to_raw_value(&object).unwrap();
    validate(&Review {
        old: old.map(raw).as_deref(),
        new: &raw(new),
        parameters,
        now,
    })
}

fn check(spec: &Value, parameters: Option<&[Arc<Value>]>, expected: &Expect) {
    let Verdict { errors, warnings } = review(None, crontab(spec), parameters);
    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
    let lines: Vec<_> = errors.iter().map(ToString::to_string).chain(warnings).collect();
    expected.assert_eq(&lines.join("\n"));
}

#[test]
fn schedules_that_can_never_work_are_errors() {
    for good in ["* * * * *", "@daily", "@every 90m", "H H * * *", "0 0 29 2 *"] {
        check(&json!({"schedule": good}), Some(&[]), &expect![""]);
    }
    check(
        &json!({"schedule": "invalid-cron-schedule", "timeZone": "Europe/Zürich"}),
        Some(&[]),
        &expect![[r#"
            spec.schedule: Invalid value: "invalid-cron-schedule": found 1 fields in "invalid-cron-schedule", not 5: minute, hour, day of month, month, day of week (no seconds)
            spec.timeZone: Invalid value: "Europe/Zürich": unknown time zone: use a name from the IANA time zone database, such as Europe/Berlin"#]],
    );
    check(
        &json!({"schedule": "61 * * * *"}),
        Some(&[]),
        &expect![[r#"spec.schedule: Invalid value: "61 * * * *": invalid minute "61": must be from 0 to 59"#]],
    );
    check(
        &json!({"schedule": "0 0 30 2 *"}),
        Some(&[]),
        &expect![[
            r#"spec.schedule: Invalid value: "0 0 30 2 *": it never runs: no day within five years matches all fields"#
        ]],
    );
    check(
        &json!({"schedule": "@daily", "timeZone": "Local"}),
        Some(&[]),
        &expect![[
            r#"spec.timeZone: Invalid value: "Local": unknown time zone: use a name from the IANA time zone database, such as Europe/Berlin"#
        ]],
    );
    assert_eq!(review(None, json!({"metadata": {}}), None), Verdict::new());
}

#[test]
fn only_a_changed_field_is_rejected() {
    let limited = [Arc::new(
        json!({"metadata": {"name": "a"}, "spec": {"limits": {"minIntervalSeconds": 300}}}),
    )];
    let unknown = crontab(&json!({"schedule": "* * * * *", "timeZone": "Atlantis"}));
    let known = crontab(&json!({"schedule": "* * * * *", "timeZone": "UTC"}));
    assert_eq!(review(Some(unknown), known, Some(&limited)).errors.len(), 1);
    let both = crontab(&json!({"schedule": "61 * * * *", "timeZone": "Atlantis"}));
    let one = crontab(&json!({"schedule": "61 * * * *", "timeZone": "UTC"}));
    let none = crontab(&json!({"schedule": "@daily", "timeZone": "UTC"}));
    assert_eq!(review(Some(both.clone()), one.clone(), Some(&[])), Verdict::new());
    assert_eq!(review(Some(both), none.clone(), Some(&[])), Verdict::new());
    assert_eq!(review(Some(none), one.clone(), Some(&[])).errors.len(), 1);
    let suspended = crontab(&json!({"schedule": "61 * * * *", "timeZone": "UTC", "suspend": true}));
    assert_eq!(review(Some(one.clone()), suspended, Some(&[])), Verdict::new());
    let other = crontab(&json!({"schedule": "62 * * * *", "timeZone": "UTC"}));
    assert_eq!(review(Some(one), other, Some(&[])).errors.len(), 1);
    let often = crontab(&json!({"schedule": "* * * * *"}));
    let moved = crontab(&json!({"schedule": "* * * * *", "timeZone": "Europe/Berlin"}));
    assert_eq!(review(None, often.clone(), Some(&limited)).errors.len(), 1);
    assert_eq!(review(Some(often), moved, Some(&limited)), Verdict::new());
}

#[test]
fn the_shortest_interval_of_the_namespace_is_checked() {
    let policy = |name: &str, seconds: i64| {
        Arc::new(json!({"metadata": {"name": name}, "spec": {"limits": {"minIntervalSeconds": seconds}}}))
    };
    let policies = [
        policy("hourly", 3600),
        policy("minutes", 300),
        Arc::new(json!({"metadata": {"name": "defaults"}, "spec": {"defaults": {"timeZone": "UTC"}}})),
    ];
    for (schedule, violated) in [
        ("@hourly", 0),
        ("@every 1h", 0),
        ("@every 59m", 1),
        ("@every 4m", 2),
        ("*/30 * * * *", 1),
        ("0,59 0,23 * * *", 2),
        ("0 0,23 * * *", 0),
        ("0 0 1 1 *", 0),
        ("0,30 0 1 1 *", 1),
    ] {
        let verdict = review(None, crontab(&json!({"schedule": schedule})), Some(&policies));
        assert_eq!(verdict.errors.len(), violated, "{schedule}: {verdict:?}");
    }
    let two_hours = [policy("two-hours", 7200)];
    // Runs at 0:00 and at 23:00 are an hour apart if there are two days in a row with runs, which
    // `1-31/2` has only at the ends of months.
    for (schedule, violated) in [("0 0,23 1-31/2 * *", 1), ("0 0,23 1-15/2 * *", 0), ("0 0,23 * * *", 1)] {
        let verdict = review(None, crontab(&json!({"schedule": schedule})), Some(&two_hours));
        assert_eq!(verdict.errors.len(), violated, "{schedule}: {verdict:?}");
    }
    check(
        &json!({"schedule": "@every 59m"}),
        Some(&policies),
        &expect![[
            r#"spec.schedule: Forbidden: "@every 59m": two runs are only 3540 s apart, but CronTabPolicy hourly of the namespace requires 3600 s (spec.limits.minIntervalSeconds)"#
        ]],
    );
    check(
        &json!({"schedule": "@daily"}),
        None,
        &expect![
            "warning: spec.schedule: the minimum interval of the namespace was not checked, because the webhook cannot read CronTabPolicies"
        ],
    );
}

#[test]
fn a_clock_change_that_skips_or_repeats_a_run_is_a_warning() {
    let spec =
        |schedule: &str, policy: &str| json!({"schedule": schedule, "timeZone": "Europe/Berlin", "dstPolicy": policy});
    check(
        &spec("30 2 * * *", "Kubernetes"),
        Some(&[]),
        &expect!["warning: spec.dstPolicy: the clock change of 2027-03-28 skips a run; with Once, it runs once"],
    );
    check(
        &spec("30 2 * 10 *", "Kubernetes"),
        Some(&[]),
        &expect!["warning: spec.dstPolicy: the clock change of 2027-10-31 repeats a run; with Once, it runs once"],
    );
    for unaffected in [
        spec("30 2 * * *", "Once"),
        spec("30 4 * * *", "Kubernetes"),
        spec("30 * * * *", "Kubernetes"),
        spec("@every 1h", "Kubernetes"),
    ] {
        check(&unaffected, Some(&[]), &expect![""]);
    }
    check(
        &json!({"schedule": "@daily", "startingDeadlineSeconds": 0}),
        Some(&[]),
        &expect!["warning: spec.startingDeadlineSeconds: with 0, no run ever starts in time"],
    );
}

#[test]
fn every_schedule_of_v2_is_reviewed_in_both_versions() {
    let others = json!([
        {"name": "default", "schedule": "@daily"},
        {"name": "nightly", "schedule": "61 3 * * *", "timeZone": "Europe/Zürich"},
    ]);
    let v2 = json!({"schedules": others, "runPolicy": {"startingDeadlineSeconds": 0}});
    let expected = expect![[r#"
        spec.schedules[nightly].schedule: Invalid value: "61 3 * * *": invalid minute "61": must be from 0 to 59
        spec.schedules[nightly].timeZone: Invalid value: "Europe/Zürich": unknown time zone: use a name from the IANA time zone database, such as Europe/Berlin"#]];
    check(&v2, Some(&[]), &expected);
    // In v1, the others are in the annotation.
    let v1 = in_v1(&json!({"schedules": others}));
    let errors: Vec<_> = review(None, v1.clone(), Some(&[])).errors;
    expected.assert_eq(&errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    // Only changed schedules are rejected.
    assert_eq!(review(Some(v1.clone()), v1, Some(&[])), Verdict::new());
    let good =
        json!({"schedules": [{"name": "default", "schedule": "@daily"}], "runPolicy": {"startingDeadlineSeconds": 0}});
    check(
        &good,
        Some(&[]),
        &expect!["warning: spec.runPolicy.startingDeadlineSeconds: with 0, no run ever starts in time"],
    );
}

fn in_v1(spec: &Value) -> Value {
    conversion::tests::to(&CRONTABS.api_version(), &crontab(spec))
}

/// The definition of v1 cannot check what the annotation has.
#[test]
fn v1_has_no_schedules_that_v2_would_not_accept() {
    let with = |others: &[Value]| {
        let default = json!({"name": "default", "schedule": "@daily"});
        let schedules = [&[default], others].concat();
        in_v1(&json!({ "schedules": schedules }))
    };
    let many: Vec<_> = (0..32)
        .map(|number| json!({"name": format!("s{number}"), "schedule": "@daily"}))
        .collect();
    assert_eq!(review(None, with(&many[1..]), Some(&[])), Verdict::new());
    let rows = [
        with(&many),
        with(&[json!({"name": "Bad_Name", "schedule": "@daily"})]),
        with(&[json!({"name": "a", "schedule": 5})]),
        with(&[json!(7)]),
        with(&[
            json!({"name": "a", "schedule": "* * * * *"}),
            json!({"name": "b", "dstPolicy": "zz"}),
        ]),
    ];
    for object in rows {
        let verdict = review(None, object.clone(), Some(&[]));
        let field = "metadata.annotations[stable.example.com/v2]";
        assert!(verdict.errors.iter().any(|error| error.field == field), "{verdict:?}");
        // One that is stored can be changed otherwise.
        let mut labelled = object.clone();
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(review(Some(object), labelled, Some(&[])), Verdict::new());
    }
}

/// The markers of fields are annotations too.
#[test]
fn v1_keeps_the_markers_of_the_fields_that_only_v2_has() {
    let stored = in_v1(&json!({"schedules": [
        {"name": "default", "schedule": "@daily"},
        {"name": "a", "schedule": "@daily", "timeZone": "Europe/Berlin"},
        {"name": "b", "schedule": "@daily"},
    ]}));
    let without = |path: &str| {
        let mut edited = stored.clone();
        let annotations = edited["metadata"]["annotations"].as_object_mut().unwrap();
        let count = annotations.len();
        annotations.retain(|_, value| value != path);
        assert_eq!(annotations.len(), count - 1, "{path}");
        review(Some(stored.clone()), edited, Some(&[]))
    };
    let fields: Vec<_> = without("schedules/a/schedule")
        .errors
        .into_iter()
        .map(|error| error.field)
        .collect();
    assert_eq!(fields, ["metadata.annotations[stable.example.com/v2]"]);
    assert_eq!(without("schedules/b/name"), Verdict::new(), "the schedule is removed");
}

/// Nothing is computed for an object with more schedules than v2 accepts.
#[test]
fn the_number_of_reviewed_schedules_is_limited() {
    let schedules: Vec<_> = (0..70_000)
        .map(|number| json!({"name": format!("s{number}"), "schedule": "invalid"}))
        .collect();
    let mut object = crontab(&json!({ "schedules": schedules }));
    object["apiVersion"] = "stable.example.com/v2".into();
    let errors = review(None, object, Some(&[])).errors;
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["spec.schedules: Forbidden: a CronTab can have at most 32 schedules"]
    );
}

/// No schema has admitted these.
#[test]
fn objects_of_other_types_cause_no_panic() {
    let stored = in_v1(&json!({"schedules": [{"name": "a", "schedule": "@daily"}]}));
    for spec in [json!(1), json!("text"), json!([]), json!(null), json!({"schedules": 1})] {
        for version in ["v1", "v2"] {
            let mut object = stored.clone();
            object["apiVersion"] = format!("stable.example.com/{version}").into();
            object["spec"] = spec.clone();
            review(Some(stored.clone()), object.clone(), Some(&[]));
            review(Some(object), stored.clone(), None);
        }
    }
}
