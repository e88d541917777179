//! Tests of the summary of Jobs and recorded status.

use serde_json::{Value, json};

use super::*;
use crate::{
    api::{CRONTABS, ConcurrencyPolicy},
    input::{DesiredRuns, DesiredSchedule, Fault, ObservedRuns, RecordedSchedule, RecordedStatus},
    job_names::JobNames,
};

const NOW: &str = "2026-03-10T10:30:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().expect("the text is a time")
}

fn job(name: &str, started_at: Option<&str>, end: Option<&str>) -> Arc<CachedJob> {
    let condition = end.map(|end| json!({"type": end, "status": "True", "lastTransitionTime": NOW}));
    let conditions: Vec<_> = condition.into_iter().collect();
    cached_job(&json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": "2026-03-10T10:00:00Z"},
        "status": {"startTime": started_at, "conditions": conditions},
    }))
}

fn cached_job(job: &Value) -> Arc<CachedJob> {
    Arc::new(serde_json::from_str(&job.to_string()).expect("the JSON is a Job"))
}

/// An object `a` with the schedule `default`, whose status lists these Jobs as active.
fn input<'a>(
    metadata: &'a Metadata,
    runs: &'a ObservedRuns,
    active: &'a [JobReference],
    jobs: &'a [Arc<CachedJob>],
) -> Input<'a> {
    Input {
        resource: CRONTABS,
        metadata,
        names: JobNames {
            owner: "a",
            format: None,
        },
        is_new: false,
        desired: DesiredRuns {
            schedules: vec![DesiredSchedule {
                name: "default".into(),
                timetable: Err(Fault {
                    reason: "Unused",
                    message: String::new(),
                }),
                suspend: false,
            }],
            suspend: false,
            concurrency: ConcurrencyPolicy::Allow,
            keep_successful: None,
            keep_failed: None,
            run_now: None,
            warning: None,
        },
        recorded: RecordedStatus {
            active,
            schedules: vec![RecordedSchedule::default()],
            last_success: None,
            last_failure: None,
            last_run_now: None,
            last_reported: None,
        },
        jobs,
        taken_names: &[],
        runs,
        missed_metric: None,
        now: at(NOW),
    }
}

fn owner() -> Metadata {
    serde_json::from_value(json!({"name": "a", "uid": "u"})).expect("the JSON is metadata")
}

fn names(jobs: &[&Arc<CachedJob>]) -> Vec<String> {
    jobs.iter().map(|job| job.name().to_owned()).collect()
}

/// As in Kubernetes' `TestByJobStartTime`, except that a Job that has not started is sorted by its
/// creation time.
#[test]
fn jobs_are_sorted_by_start_time_and_then_by_name() {
    let complete = Some("Complete");
    let jobs = [
        job("c", Some("2026-03-10T09:00:00Z"), complete),
        job("b", None, complete),
        job("a", None, complete),
        job("e", Some("2026-03-10T08:00:00Z"), complete),
        job("d", Some("2026-03-10T10:00:00Z"), complete),
    ];
    let (metadata, runs) = (owner(), ObservedRuns::default());
    let input = input(&metadata, &runs, &[], &jobs);
    let summary = summarize(&input);
    assert_eq!(names(&summary.successful), ["e", "c", "a", "b", "d"]);
}

#[test]
fn summarize_classifies_each_job() {
    let reference = |name: &str| JobReference {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        ..JobReference::default()
    };
    let known = ["known", "ended", "gone"].map(reference);
    let by_hand = json!({"metadata": {"name": "by-hand", "uid": "1",
        "annotations": {"cronjob.kubernetes.io/instantiate": "manual"}}});
    let jobs = [
        job("a-29552280", None, None),
        job("known", None, None),
        job("ended", None, Some("Failed")),
        job("stranger", None, None),
        job("a-29552220", None, Some("Complete")),
        cached_job(&by_hand),
    ];
    let (metadata, runs) = (owner(), ObservedRuns::default());
    let input = input(&metadata, &runs, &known, &jobs);
    let summary = summarize(&input);
    assert_eq!(names(&summary.active), ["a-29552280", "known"]);
    assert_eq!(names(&summary.unexpected), ["stranger"]);
    assert_eq!(names(&summary.failed), ["ended"]);
    assert_eq!(names(&summary.successful), ["a-29552220"]);
    let completed: Vec<_> = summary
        .completed
        .iter()
        .map(|(job, end)| (job.name(), end.condition_type()))
        .collect();
    assert_eq!(
        completed,
        [("ended", "Failed")],
        "the status did not list the other finished Jobs as active"
    );
    let missing: Vec<_> = summary.missing.iter().map(|job| &*job.name).collect();
    assert_eq!(missing, ["gone"]);
    let active_references: Vec<_> = summary.active_references().into_iter().map(|job| job.uid).collect();
    assert_eq!(active_references, ["uid-a-29552280", "uid-known"]);
}

#[test]
fn recorded_times_only_increase_and_future_times_are_ignored() {
    let recorded_time = Some(at("2026-03-10T09:00:00Z"));
    let recorded_success = Some(at("2026-03-10T23:00:00Z"));
    let last = |name: &str| {
        let jobs = [job(name, None, Some("Complete"))];
        let (metadata, runs) = (owner(), ObservedRuns::default());
        let mut input = input(&metadata, &runs, &[], &jobs);
        input.recorded.schedules[0].last_schedule = recorded_time;
        input.recorded.last_success = recorded_success;
        let summary = summarize(&input);
        assert_eq!(
            summary.last_success, recorded_success,
            "the recorded time stays after the clock was set back"
        );
        summary.schedules[0].last_schedule
    };
    assert_eq!(last("a-29552160"), recorded_time, "the Job is for 08:00");
    assert_eq!(last("a-29552280"), Some(at("2026-03-10T10:00:00Z")));
    assert_eq!(last("a-29552310"), Some(at(NOW)), "the Job is for the current time");
    assert_eq!(last("a-29552311"), recorded_time, "the Job is for 10:31");
}
