//! Tests of the written objects: the Jobs, the statuses and the events.

use std::collections::BTreeSet;

use expect_test::{Expect, expect};
use portreeve_reconcile::Effect;
use serde_json::{Value, json};

use super::{
    cases::{Cases, due, idle, running, with_recorded},
    cronjob_cases, crontab_cases,
    samples::Sample,
    simulation::Simulation,
};
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

fn check(value: &Value, expected: &Expect) {
    expected.assert_eq(&format!("{value:#}\n"));
}

fn created<K: Sample>(simulation: &Simulation<K>) -> Value {
    let mut effects = simulation.plan().effects.into_iter();
    let created = effects.find_map(|effect| match effect {
        Effect::Create(job) => Some(job.body),
        _ => None,
    });
    created.expect("the plan creates a Job")
}

#[test]
fn job_of_a_crontab_has_the_pod_and_labels() {
    let mut simulation = with_recorded(idle::<CachedCronTab>(), "timeZone", "Europe/Zurich");
    simulation.set("backoffLimit", 2);
    simulation.set("activeDeadlineSeconds", 600);
    simulation.set("ttlSecondsAfterFinished", 0);
    simulation.sync();
    check(
        &created(&due(simulation)),
        &expect![[r#"
        {
          "apiVersion": "batch/v1",
          "kind": "Job",
          "metadata": {
            "annotations": {
              "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-10T11:00:00+01:00"
            },
            "labels": {
              "stable.example.com/crontab": "a"
            },
            "name": "a-a299e94a-t29552280",
            "namespace": "n",
            "ownerReferences": [
              {
                "apiVersion": "stable.example.com/v1",
                "blockOwnerDeletion": true,
                "controller": true,
                "kind": "CronTab",
                "name": "a",
                "uid": "uid-1"
              }
            ]
          },
          "spec": {
            "activeDeadlineSeconds": 600,
            "backoffLimit": 2,
            "template": {
              "metadata": {
                "labels": {
                  "stable.example.com/crontab": "a"
                }
              },
              "spec": {
                "containers": [
                  {
                    "image": "i",
                    "name": "c"
                  }
                ],
                "restartPolicy": "Never"
              }
            },
            "ttlSecondsAfterFinished": 0
          }
        }
    "#]],
    );
}

#[test]
fn job_of_a_run_now_records_the_value() {
    let mut simulation = idle::<CachedCronTab>();
    simulation.run_now("now!");
    simulation.sync();
    let metadata = &created(&simulation)["metadata"];
    assert_eq!(metadata["name"], "a-a299e94a-re596bee2");
    assert_eq!(metadata["annotations"], json!({"stable.example.com/run-now": "now!"}));
}

#[test]
fn status_of_a_crontab_has_all_fields() {
    let mut simulation = due(running::<CachedCronTab>());
    simulation.converge();
    check(
        &simulation.object["status"],
        &expect![[r#"
            {
              "active": [
                {
                  "apiVersion": "batch/v1",
                  "kind": "Job",
                  "name": "a-a299e94a-t29552220",
                  "namespace": "n",
                  "uid": "job-3"
                },
                {
                  "apiVersion": "batch/v1",
                  "kind": "Job",
                  "name": "a-a299e94a-t29552280",
                  "namespace": "n",
                  "uid": "job-5"
                }
              ],
              "activeCount": 2,
              "conditions": [
                {
                  "lastTransitionTime": "2026-03-10T08:30:00Z",
                  "message": "",
                  "observedGeneration": 1,
                  "reason": "Parsed",
                  "status": "True",
                  "type": "Valid"
                },
                {
                  "lastTransitionTime": "2026-03-10T08:30:00Z",
                  "message": "",
                  "observedGeneration": 1,
                  "reason": "Scheduled",
                  "status": "True",
                  "type": "Ready"
                }
              ],
              "jobNameFormat": "Hashed",
              "lastScheduleTime": "2026-03-10T10:00:00Z",
              "missedRuns": 0,
              "nextScheduleTime": "2026-03-10T11:00:00Z",
              "observedGeneration": 1,
              "observedSchedule": "0 * * * * UTC",
              "schedules": [
                {
                  "active": 2,
                  "name": "default"
                }
              ]
            }
        "#]],
    );
}

/// Returns the conditions, one per line.
fn conditions<K>(simulation: &Simulation<K>) -> String {
    let conditions = simulation.object["status"]["conditions"].as_array();
    let line = |condition: &Value| {
        let fields = ["type", "status", "reason", "lastTransitionTime", "message"];
        let fields = fields.map(|field| condition[field].as_str().expect("a text"));
        format!("{} {fields:?}\n", condition["observedGeneration"])
    };
    conditions.into_iter().flatten().map(line).collect()
}

#[test]
fn status_of_a_crontab_reports_why_it_cannot_run() {
    let mut simulation = idle::<CachedCronTab>();
    simulation.set("schedule", "61 * * * *");
    simulation.converge();
    let invalid = expect![[r#"
        2 ["Valid", "False", "InvalidSchedule", "2026-03-10T09:30:00Z", ".spec.schedule: invalid minute \"61\": must be from 0 to 59"]
        2 ["Ready", "False", "InvalidSchedule", "2026-03-10T09:30:00Z", ".spec.schedule: invalid minute \"61\": must be from 0 to 59"]
    "#]];
    invalid.assert_eq(&conditions(&simulation));
    simulation.set("schedule", "0 * * * *");
    simulation.set("suspend", true);
    simulation.converge();
    let suspended = expect![[r#"
        4 ["Valid", "True", "Parsed", "2026-03-10T09:30:00Z", ""]
        4 ["Ready", "True", "Suspended", "2026-03-10T09:30:00Z", "all schedules are suspended"]
    "#]];
    suspended.assert_eq(&conditions(&simulation));
}

#[test]
fn status_of_a_cronjob_is_the_same_as_in_kubernetes() {
    let mut simulation = due(running::<CachedCronJob>());
    simulation.converge();
    check(
        &simulation.object["status"],
        &expect![[r#"
        {
          "active": [
            {
              "apiVersion": "batch/v1",
              "kind": "Job",
              "name": "a-29552220",
              "namespace": "n",
              "uid": "job-2"
            },
            {
              "apiVersion": "batch/v1",
              "kind": "Job",
              "name": "a-29552280",
              "namespace": "n",
              "uid": "job-4"
            }
          ],
          "lastScheduleTime": "2026-03-10T10:00:00Z"
        }
    "#]],
    );
}

/// Returns all events of all cases, except those about each created and deleted Job.
fn events<K: Sample>(cases: Cases<K>) -> String {
    let mut events = BTreeSet::new();
    for (_, mut simulation) in cases {
        simulation.converge();
        let record = simulation.record;
        let created = record
            .created
            .keys()
            .map(|job| format!("Normal SuccessfulCreate: Created job {job}\n"));
        let deleted = record
            .deleted
            .iter()
            .map(|job| format!("Normal SuccessfulDelete: Deleted job {job}\n"));
        let usual: Vec<_> = created.chain(deleted).collect();
        let texts = record.events.iter().map(|event| {
            let type_ = if event.is_warning { "Warning" } else { "Normal" };
            format!("{type_} {}: {}\n", event.reason, event.message)
        });
        events.extend(texts.filter(|text| !usual.contains(text)));
    }
    events.into_iter().collect()
}

#[test]
fn crontab_events_have_the_expected_messages() {
    expect![[r#"
        Normal JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid
        Normal MissingJob: Active job went missing: a-a299e94a-t29552220
        Normal SawCompletedJob: Saw completed job: a-a299e94a-t29552220, condition: Complete
        Normal SawCompletedJob: Saw completed job: a-a299e94a-t29552220, condition: Failed
        Warning FailedCreate: Error creating job: a-29552280 already exists for another owner or run; delete or rename it
        Warning FailedCreate: Error creating job: a-a299e94a-r340ca71c already exists for another owner or run; delete or rename it
        Warning FailedCreate: Error creating job: a-a299e94a-r5e4daa9d already exists for another owner or run; delete or rename it
        Warning FailedCreate: Error creating job: a-a299e94a-t29552280 already exists for another owner or run; delete or rename it
        Warning FailedCreate: Error creating job: cannot decode .spec.jobTemplate: invalid type: sequence, expected a map at line 1 column 0
        Warning FailedCreate: Error creating job: nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn-02c7d533-r340ca71c already exists for another owner or run; delete or rename it
        Warning InvalidSchedule: .spec.schedule: cannot use TZ or CRON_TZ in schedule, use timeZone field instead
        Warning InvalidSchedule: .spec.schedule: invalid @every duration "30s": must be at least one minute, because a CronTab runs at most once a minute
        Warning InvalidSchedule: .spec.schedule: invalid minute "61": must be from 0 to 59
        Warning InvalidSchedule: invalid schedule: 0 0 31 2 * : no run within five years, because no day matches all of its fields
        Warning MissSchedule: Missed 2 scheduled times to start a job, the last one: Tue, 10 Mar 2026 11:00:00 +0000
        Warning MissSchedule: Missed 216 scheduled times to start a job, the last one: Thu, 19 Mar 2026 09:00:00 +0000
        Warning MissSchedule: Missed 3 scheduled times to start a job, the last one: Tue, 10 Mar 2026 12:00:00 +0000
        Warning MissSchedule: Missed 48 scheduled times to start a job, the last one: Thu, 12 Mar 2026 09:00:00 +0000
        Warning MissSchedule: Missed scheduled time to start a job: Tue, 10 Mar 2026 09:00:00 +0000
        Warning MissSchedule: Missed scheduled time to start a job: Tue, 10 Mar 2026 10:00:00 +0000
        Warning MissSchedule: Missed scheduled time to start a job: Tue, 10 Mar 2026 11:00:00 +0000
        Warning MissingSpec: the CronTab has no spec: set .spec.schedule and .spec.jobTemplate
        Warning SkippedRunNow: Not starting a run for the annotation stable.example.com/run-now, because it was set before the controller first observed the object, as in a restored or copied one; set another value to start a run
        Warning TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew
        Warning UnexpectedJob: Saw a job that the controller did not create or forgot: a-a299e94a-r340ca71c
        Warning UnexpectedJob: Saw a job that the controller did not create or forgot: whose
        Warning UnknownTimeZone: .spec.timeZone: unknown time zone "Mars/Olympus": use a name from the IANA time zone database, such as Europe/Berlin
    "#]].assert_eq(&events(crontab_cases()));
}

#[test]
fn cronjob_events_have_the_messages_of_kubernetes() {
    expect![[r#"
        Normal JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid
        Normal MissingJob: Active job went missing: a-29552220
        Normal SawCompletedJob: Saw completed job: a-29552220, condition: Complete
        Normal SawCompletedJob: Saw completed job: a-29552220, condition: Failed
        Normal SawCompletedJob: Saw completed job: a-29552281, condition: Complete
        Warning FailedCreate: Error creating job: a-29552280 already exists for another owner or run; delete or rename it
        Warning FailedCreate: Error creating job: cannot decode .spec.jobTemplate: invalid length 1, expected struct Template with 2 elements at line 1 column 2
        Warning InvalidSchedule: invalid schedule: 0 0 31 2 * : no run within five years, because no day matches all of its fields
        Warning MissSchedule: Missed scheduled time to start a job: Tue, 10 Mar 2026 10:00:00 +0000
        Warning MissSchedule: Missed scheduled time to start a job: Tue, 10 Mar 2026 12:00:00 +0000
        Warning TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew
        Warning UnParseableCronJobSchedule: unparseable schedule: "61 * * * *" : invalid minute "61": must be from 0 to 59
        Warning UnexpectedJob: Saw a job that the controller did not create or forgot: whose
        Warning UnknownTimeZone: invalid timeZone: "Mars/Olympus": unknown time zone "Mars/Olympus": use a name from the IANA time zone database, such as Europe/Berlin
        Warning UnparseableSchedule: unparseable schedule: "61 * * * *" : invalid minute "61": must be from 0 to 59
        Warning UnsupportedSchedule: CRON_TZ or TZ used in schedule "TZ=Asia/Kolkata 0 * * * *" is not officially supported, use .spec.timeZone instead
    "#]].assert_eq(&events(cronjob_cases()));
}
