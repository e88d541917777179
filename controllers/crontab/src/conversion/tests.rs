//! Tests of the conversion without an apiserver.

mod properties;
mod sizes;

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;

const V1: &str = "stable.example.com/v1";
const V2: &str = "stable.example.com/v2";

/// Returns the object in a version.
pub(crate) fn to(version: &str, object: &Value) -> Value {
    let text = object.to_string();
    let mut object: LazyObject<'_> = serde_json::from_str(&text).expect("it is an object");
    convert(&mut object, version).expect("the version is known");
    let mut object = json!(object);
    object["apiVersion"] = version.into();
    object
}

fn fits_v1(object: &Value) -> bool {
    super::fits_v1(serde_json::from_str(&object.to_string()).expect("it is an object"))
}

fn check(version: &str, object: &Value, expected: &Expect) {
    let converted = to(version, object);
    expected.assert_eq(&serde_json::to_string_pretty(&converted).expect("serializes"));
    let back = to(object["apiVersion"].as_str().expect("has a version"), &converted);
    assert_eq!(&back, object, "the conversion back");
}

fn v1(spec: &Value) -> Value {
    json!({"apiVersion": V1, "metadata": {"name": "a"}, "spec": spec})
}

fn v2(spec: &Value) -> Value {
    json!({"apiVersion": V2, "metadata": {"name": "a"}, "spec": spec})
}

/// A CronTab of v1 with every field.
fn full_v1() -> Value {
    json!({
        "apiVersion": V1,
        "metadata": {"name": "a"},
        "spec": {
            "schedule": "@daily", "timeZone": "Europe/Zurich", "dstPolicy": "Once", "suspend": true,
            "concurrencyPolicy": "Forbid", "startingDeadlineSeconds": 1, "successfulJobsHistoryLimit": 2,
            "failedJobsHistoryLimit": 3, "backoffLimit": 4, "activeDeadlineSeconds": 5,
            "ttlSecondsAfterFinished": 6, "jobTemplate": {"containers": []},
        },
        "status": {
            "lastScheduleTime": "t1", "nextScheduleTime": "t2", "lastMissedTime": "t3", "missedRuns": 1,
            "observedSchedule": "@daily UTC", "scheduledSince": null, "active": [], "activeCount": 0,
            "schedules": [{"name": "weekend", "lastScheduleTime": "t4"}],
        },
    })
}

#[test]
fn every_field_of_v1_has_a_place_in_v2() {
    check(
        V2,
        &full_v1(),
        &expect![[r#"
            {
              "apiVersion": "stable.example.com/v2",
              "metadata": {
                "name": "a"
              },
              "spec": {
                "runPolicy": {
                  "concurrencyPolicy": "Forbid",
                  "failedJobsHistoryLimit": 3,
                  "startingDeadlineSeconds": 1,
                  "successfulJobsHistoryLimit": 2
                },
                "schedules": [
                  {
                    "dstPolicy": "Once",
                    "name": "default",
                    "schedule": "@daily",
                    "timeZone": "Europe/Zurich"
                  }
                ],
                "suspend": true,
                "template": {
                  "spec": {
                    "activeDeadlineSeconds": 5,
                    "backoffLimit": 4,
                    "template": {
                      "spec": {
                        "containers": []
                      }
                    },
                    "ttlSecondsAfterFinished": 6
                  }
                }
              },
              "status": {
                "active": [],
                "activeCount": 0,
                "schedules": [
                  {
                    "lastMissedTime": "t3",
                    "lastScheduleTime": "t1",
                    "missedRuns": 1,
                    "name": "default",
                    "nextScheduleTime": "t2",
                    "observedSchedule": "@daily UTC",
                    "scheduledSince": null
                  },
                  {
                    "lastScheduleTime": "t4",
                    "name": "weekend"
                  }
                ]
              }
            }"#]],
    );
}

#[test]
fn v1_keeps_what_only_v2_has_in_an_annotation() {
    let object = v2(&json!({
        "schedules": [
            {"name": "weekend", "schedule": "0 8 * * 6"},
            {"name": "default", "schedule": "@hourly", "suspend": true},
        ],
        "runPolicy": {"concurrencyPolicy": "Replace"},
        "template": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {"parallelism": 2, "template": {"spec": {"containers": [{"name": "main"}]}}},
        },
    }));
    check(
        V1,
        &object,
        &expect![[r#"
        {
          "apiVersion": "stable.example.com/v1",
          "metadata": {
            "annotations": {
              "stable.example.com/v2": "{\"spec\":{\"schedules\":[{\"name\":\"weekend\",\"schedule\":\"0 8 * * 6\"},{\"name\":\"default\",\"suspend\":true}],\"template\":{\"metadata\":{\"labels\":{\"team\":\"a\"}},\"spec\":{\"parallelism\":2}}},\"with\":{\"suspend\":false}}",
              "v2.stable.example.com/25c7d205": "schedules/weekend/schedule",
              "v2.stable.example.com/2636303a": "template/spec/parallelism",
              "v2.stable.example.com/29eeeaa7": "schedules/default/name",
              "v2.stable.example.com/5036cc0b": "template/metadata/labels/team",
              "v2.stable.example.com/6f8707bb": "schedules/weekend/name",
              "v2.stable.example.com/91d40490": "schedules/default/suspend"
            },
            "name": "a"
          },
          "spec": {
            "concurrencyPolicy": "Replace",
            "jobTemplate": {
              "containers": [
                {
                  "name": "main"
                }
              ]
            },
            "schedule": "@hourly"
          }
        }"#]],
    );
}

#[test]
fn a_v2_object_that_v1_can_express_has_no_annotation() {
    let object = v2(&json!({
        "schedules": [{"name": "default", "schedule": "@hourly"}],
        "suspend": false,
        "template": {"spec": {"template": {"spec": {}}}},
    }));
    let expected = v1(&json!({"jobTemplate": {}, "schedule": "@hourly", "suspend": false}));
    assert_eq!(to(V1, &object), expected);
    assert_eq!(to(V2, &expected), object);
}

/// The properties have more partial and invalid objects.
#[test]
fn objects_without_metadata_or_with_an_invalid_status_are_converted() {
    for object in [
        json!({"apiVersion": V1}),
        json!({"apiVersion": V1, "status": "text"}),
        json!({"apiVersion": V1, "status": {"schedules": "text", "missedRuns": 1}}),
    ] {
        assert_eq!(to(V1, &to(V2, &object)), object);
    }
}

#[test]
fn only_what_depends_on_an_edited_field_is_dropped() {
    let object = v2(&json!({
        "schedules": [
            {"name": "default", "schedule": "@hourly", "suspend": true},
            {"name": "weekend", "schedule": "0 8 * * 6"},
        ],
        "suspend": false,
        "template": {"spec": {
            "parallelism": 2,
            "podFailurePolicy": {"rules": []},
            "template": {"spec": {"containers": [{"name": "main", "image": "a"}]}},
        }},
    }));
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut seen = to(V1, &object);
        edit(&mut seen["spec"]);
        let spec = to(V2, &seen)["spec"].take();
        assert_eq!(
            spec["schedules"][1], object["spec"]["schedules"][1],
            "it survives every edit"
        );
        assert_eq!(spec["template"]["spec"]["parallelism"], 2, "it survives every edit");
        let is_suspended = !spec["schedules"][0]["suspend"].is_null();
        (is_suspended, !spec["template"]["spec"]["podFailurePolicy"].is_null())
    };
    assert_eq!(edited(&|_| {}), (true, true));
    for (parent, field, value, expected) in [
        ("", "schedule", json!("@daily"), (true, true)),
        ("/jobTemplate/containers/0", "image", json!("b"), (true, true)),
        ("/jobTemplate/containers/0", "name", json!("b"), (true, false)),
        ("/jobTemplate", "restartPolicy", json!("Never"), (true, true)),
        ("/jobTemplate", "restartPolicy", json!("OnFailure"), (true, false)),
        ("", "suspend", json!(true), (false, true)),
    ] {
        let found = edited(&|spec| spec.pointer_mut(parent).expect("it exists")[field] = value.clone());
        assert_eq!(found, expected, "{parent}/{field}: {value}");
    }
    assert_eq!(
        edited(&|spec| drop(spec.as_object_mut().expect("an object").remove("suspend"))),
        (true, true)
    );
}

/// Server-side apply removes the marker of a field that its manager gives up, and keeps the
/// annotation with all fields.
#[test]
fn a_leaf_without_its_marker_is_gone() {
    let object = v2(&json!({
        "schedules": [
            {"name": "weekend", "schedule": "0 8 * * 6", "suspend": true},
            {"name": "noon", "schedule": "0 12 * * *"},
        ],
        "template": {"metadata": {"labels": {"team": "a"}}},
    }));
    let without = |paths: &[&str]| {
        let mut seen = to(V1, &object);
        let annotations = seen["metadata"]["annotations"].as_object_mut().expect("an object");
        annotations.retain(|_, value| !paths.iter().any(|path| value == path));
        to(V2, &seen)
    };
    assert_eq!(without(&[]), object);
    let found = without(&["schedules/weekend/suspend"])["spec"].take();
    assert_eq!(
        found["schedules"][0],
        json!({"name": "weekend", "schedule": "0 8 * * 6"})
    );
    // An entry without a name would be invalid.
    let found = without(&["schedules/weekend/name"])["spec"].take();
    assert_eq!(found["schedules"], json!([{"name": "noon", "schedule": "0 12 * * *"}]));
    let weekend = ["name", "schedule", "suspend"].map(|field| format!("schedules/weekend/{field}"));
    let weekend = weekend.each_ref().map(|path| &**path);
    let found = without(&[&weekend[..], &["template/metadata/labels/team"]].concat());
    let left = json!({"schedules": [{"name": "noon", "schedule": "0 12 * * *"}]});
    assert_eq!(found["spec"], left);
    assert!(found["metadata"].get("annotations").is_none(), "{found}");
}

#[test]
fn a_field_of_v1_wins_over_an_edited_annotation() {
    let annotation = json!({"spec": {"runPolicy": {"concurrencyPolicy": "Forbid"}, "schedules": 1}}).to_string();
    let mut object = v1(&json!({"schedule": "@daily"}));
    object["metadata"]["annotations"] = json!({V2_FIELDS: annotation});
    let expected = json!({"schedules": [{"name": "default", "schedule": "@daily"}]});
    assert_eq!(to(V2, &object)["spec"], expected);
}

/// The properties have other annotations of this name.
#[test]
fn foreign_annotations_are_kept() {
    let mut object = v1(&json!({}));
    object["metadata"]["annotations"] = json!({V2_FIELDS: r#"{"spec": {"suspend": true}}"#, "x": "y"});
    assert_eq!(to(V1, &to(V2, &object)), object);
}

#[test]
fn the_docs_show_the_whole_table() {
    let row = |top: &str, field: &fields::Field| {
        let path = field.v2.join(".").replace("schedules.default", "schedules[default]");
        format!("| `{top}.{}` | `{top}.{path}` |\n", field.v1)
    };
    let spec = SPEC_FIELDS.iter().map(|field| row("spec", field));
    let status = STATUS_FIELDS.iter().map(|field| row("status", field));
    let table: String = spec.chain(status).collect();
    let docs = include_str!("../../../../docs/crontab-versions.md");
    assert!(
        docs.contains(&format!("| v1 | v2 |\n|---|---|\n{table}\n")),
        "docs/crontab-versions.md must contain:\n{table}"
    );
    for dependency in v2_only::DEPENDENCIES {
        let path = dependency
            .v2
            .join(".")
            .replace("schedules.default", "schedules[default]");
        assert!(
            docs.contains(&format!("| `spec.{path}` | ")),
            "docs/crontab-versions.md must contain {path}"
        );
    }
}

/// With annotations that exceed Kubernetes' limit, the object would fail every list of v1.
#[test]
fn an_object_that_is_too_large_for_v1_lacks_its_fields_of_v2_there() {
    let mut object = v2(&json!({
        "schedules": [{"name": "default", "schedule": "@daily"}],
        "template": {"metadata": {"annotations": {"large": "x".repeat(MAX_ANNOTATION_BYTES)}}},
    }));
    object["metadata"]["annotations"] = json!({"x": "y"});
    let seen = to(V1, &object);
    assert_eq!(
        seen["metadata"]["annotations"],
        json!({"x": "y", V2_FIELDS: r#"{"dropped":true}"#})
    );
    assert_eq!(seen["spec"], json!({"schedule": "@daily"}));
    assert_eq!(to(V2, &seen)["metadata"]["annotations"], json!({"x": "y"}));
    assert!(!fits_v1(&object));
    // Not even that annotation fits.
    object["metadata"]["annotations"]["x"] = "y".repeat(MAX_ANNOTATION_BYTES - 1).into();
    let annotations = to(V1, &object)["metadata"]["annotations"].take();
    assert!(annotations.get(V2_FIELDS).is_none());
    object["metadata"]["annotations"]["x"] = "y".into();
    object["spec"]["template"]["metadata"]["annotations"]["large"] = "x".into();
    assert!(fits_v1(&object));
}

#[test]
fn other_versions_are_an_error() {
    let error = convert(&mut LazyObject::default(), "stable.example.com/v3").expect_err("it is unknown");
    assert_eq!(
        error.to_string(),
        "cannot convert to \"stable.example.com/v3\": CronTabs have the versions v1 and v2"
    );
}
