//! Properties of the conversion, on random objects: partial, invalid and valid ones.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::api::V2_FIELDS;

use super::{V1, V2, to};

/// A value of any type.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3_i64).prop_map(Value::from),
        "[a-c@*]{0,3}".prop_map(Value::from),
        vec(0..3_i64, 0..2).prop_map(Value::from),
        Just(json!({})),
        Just(json!({"name": "default"})),
        Just(json!({"containers": [{"name": "main"}, 1]})),
    ]
}

/// An object with some of these fields.
fn object(fields: &'static [&'static str], value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    vec((select(fields), value), 0..6)
        .prop_map(|fields| {
            fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        })
        .boxed()
}

/// Mostly `likely`, and else any value.
fn mostly(likely: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    prop_oneof![4 => likely, 1 => value()].boxed()
}

fn schedules(fields: &'static [&'static str]) -> BoxedStrategy<Value> {
    let name = select(vec![
        json!("default"),
        json!("default"),
        json!("weekend"),
        json!(1),
        json!(null),
    ]);
    let entry = (object(fields, value().boxed()), name).prop_map(|(mut entry, name)| {
        if !name.is_null() {
            entry["name"] = name;
        }
        entry
    });
    mostly(vec(mostly(entry), 0..4).prop_map(Value::from))
}

/// Sets some fields of an object.
fn with(base: BoxedStrategy<Value>, name: &'static str, value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (base, proptest::option::of(value))
        .prop_map(move |(mut base, value)| {
            if let (Some(value), true) = (value, base.is_object()) {
                base[name] = value;
            }
            base
        })
        .boxed()
}

fn v2_spec() -> BoxedStrategy<Value> {
    let pods = with(object(&["metadata"], value().boxed()), "spec", value().boxed());
    let job = object(
        &[
            "backoffLimit",
            "activeDeadlineSeconds",
            "ttlSecondsAfterFinished",
            "parallelism",
            "podFailurePolicy",
        ],
        value().boxed(),
    );
    let template = with(
        object(&["metadata"], value().boxed()),
        "spec",
        mostly(with(job, "template", mostly(pods))),
    );
    let run_policy = object(
        &[
            "concurrencyPolicy",
            "startingDeadlineSeconds",
            "failedJobsHistoryLimit",
            "other",
        ],
        value().boxed(),
    );
    let spec = object(&["suspend", "unknown", "schedule", "jobTemplate"], value().boxed());
    let spec = with(
        spec,
        "schedules",
        schedules(&["schedule", "timeZone", "dstPolicy", "suspend", "other"]),
    );
    mostly(with(
        with(spec, "runPolicy", mostly(run_policy)),
        "template",
        mostly(template),
    ))
}

fn v1_spec() -> BoxedStrategy<Value> {
    mostly(object(
        &[
            "schedule",
            "timeZone",
            "dstPolicy",
            "suspend",
            "concurrencyPolicy",
            "startingDeadlineSeconds",
            "successfulJobsHistoryLimit",
            "failedJobsHistoryLimit",
            "jobTemplate",
            "backoffLimit",
            "activeDeadlineSeconds",
            "ttlSecondsAfterFinished",
            "unknown",
        ],
        value().boxed(),
    ))
}

fn v1_status() -> BoxedStrategy<Value> {
    let times = &[
        "lastScheduleTime",
        "missedRuns",
        "observedSchedule",
        "active",
        "activeCount",
        "unknown",
    ];
    // An entry `default` without a field exists only beside another one, which v1 never has.
    let other = select(vec![json!({"name": "weekend", "missedRuns": 1}), json!(1), json!({})]);
    let others = vec(other, 1..3).prop_map(Value::from);
    with(object(times, value().boxed()), "schedules", others.boxed())
}

fn v2_status() -> BoxedStrategy<Value> {
    let base = object(&["active", "activeCount", "unknown"], value().boxed());
    mostly(with(
        base,
        "schedules",
        schedules(&["lastScheduleTime", "missedRuns", "active"]),
    ))
}

fn metadata() -> BoxedStrategy<Value> {
    let annotation = select(vec![
        "text".to_owned(),
        json!({"spec": {"runPolicy": {}}}).to_string(),
        json!({"annotation": "text"}).to_string(),
    ]);
    let annotations = prop_oneof![
        Just(json!({"x": "y"})),
        annotation.prop_map(|text| json!({V2_FIELDS: text})),
    ];
    with(
        Just(json!({"name": "a", "labels": {"l": "m"}})).boxed(),
        "annotations",
        annotations.boxed(),
    )
}

fn crontab(version: &'static str, spec: BoxedStrategy<Value>, status: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let base = with(
        Just(json!({"apiVersion": version, "metadata": {}})).boxed(),
        "metadata",
        metadata(),
    );
    with(with(base, "spec", spec), "status", status)
}

/// A value that both versions treat alike: `{}` for annotations that are gone.
fn normalized(mut object: Value) -> Value {
    if object.get("metadata").is_none() {
        object["metadata"] = json!({});
    }
    object
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn v2_to_v1_and_back_loses_nothing(object in crontab(V2, v2_spec(), v2_status())) {
        prop_assert_eq!(normalized(to(V2, &to(V1, &object))), object);
    }

    #[test]
    fn v1_to_v2_and_back_loses_nothing(object in crontab(V1, v1_spec(), v1_status())) {
        // An annotation that looks like ours but is not its normal form may change.
        prop_assume!(object.pointer("/metadata/annotations").is_none_or(|annotations| {
            annotations.get(V2_FIELDS).is_none_or(|text| text == "text")
        }));
        prop_assert_eq!(normalized(to(V1, &to(V2, &object))), object);
    }

    #[test]
    fn a_second_conversion_changes_nothing(object in crontab(V2, v2_spec(), v2_status())) {
        let seen = to(V1, &object);
        prop_assert_eq!(to(V1, &to(V2, &seen)), seen);
    }
}
