//! The cases of Kubernetes' `TestMostRecentScheduleTime`, `TestNextScheduleTime`,
//! `TestNextScheduleTimeDuration`, `TestByJobStartTime`, `TestGetJobFromTemplate2`
//! (`pkg/controller/cronjob/utils_test.go`) and `TestControllerV2CleanupFinishedJobs`, as tables.

use jiff::Timestamp;
use portreeve_reconcile::{Effect, Next};
use serde_json::{Value, json};

use super::{
    kubernetes::at,
    samples::{Sample, time_of},
    simulation::Simulation,
};
use crate::cronjob::CachedCronJob;

/// Columns: the case's name in Kubernetes | the schedule | creation, last run, deadline and current
/// time | the time of the run that starts. `many` means that more than a hundred times were missed,
/// `error` that the schedule never runs.
///
/// One case differs (`here`). Kubernetes estimates from the distance of the first two times, finds
/// no time after its estimate, and misses the run. Here the run takes place.
const MOST_RECENT: &str = "
    now before next schedule          | 0 * * * *              | 10:00 - - 10:00:30          | -
    now just after next schedule      | 0 * * * *              | 10:00 - - 11:01             | 11:00
    missed 5 schedules                | 0 * * * *              | 10:00:10 - - 15:01          | 15:00
    complex schedule                  | 30 6-16/4 * * 1-5      | 10:00 10:30 - 20T10:31      | 20T10:30
    another complex schedule          | 30 10,11,12 * * 1-5    | 10:00 10:30 - 20T16:30      | - here 20T12:30
    complex, longer diff              | 30 6-16/4 * * 1-5      | 10:00 10:30 - 23T10:31      | 23T10:30
    complex, shorter diff             | 30 6-16/4 * * 1-5      | 10:00 - - 20T10:31          | 20T10:30
    @every schedule                   | @every 1h              | 09:01 10:01 - 26T10:00      | 26T09:01 many
    rogue cronjob                     | 59 23 31 2 *           | 10:00:10 - - 11:00          | error
    earliest is creation and last     | 0 * * * *              | 10:00 10:00 - 10:00:30      | -
    earliest is last                  | */5 * * * *            | 10:00 10:30 - 10:31         | -
    earliest is last, within deadline | */5 * * * *            | 10:00 10:30 60 10:31        | -
    earliest is last, outside         | */5 * * * *            | 10:00 10:30 60 10:32        | -
";

/// The same table for the cases of `TestNextScheduleTime`, which are numbered there.
const NEXT: &str = "
    1, no known start, none needed    | 0 * * * ?              | 09:50 - - 09:53             | -
    2, no known start, one needed     | 0 * * * ?              | 09:50 - - 10:00:02          | 10:00
    3, known start, none needed       | 0 * * * ?              | 09:50 10:00 - 10:02         | -
    4, known start, one needed        | 0 * * * ?              | 09:50 10:00 - 11:05         | 11:00
    5, known start, two needed        | 0 * * * ?              | 08:00 09:00 - 11:05         | 11:00
    6, far ahead, no deadline         | 0 * * * ?              | 08:00 09:00 - 29T11:00      | 29T11:00 many
    7, far ahead, a deadline          | 0 * * * ?              | 08:00 09:00 7200 29T11:00   | 29T11:00
    8, rogue schedule                 | 59 23 31 2 *           | 10:00:10 - - 11:00          | error
";

/// The same table, with the duration until the next time in the last column.
const DURATION: &str = "
    complex, skipping weekend         | 30 6-16/4 * * 1-5      | 10:00 10:30 - 20T10:31      | 3h59m
    another complex, skipping weekend | 30 10,11,12 * * 1-5    | 10:00 10:30 - 20T16:30      | 66h
    once a week, missed two runs      | 0 12 * * 4             | 10:00 12:00 - 2016-06-07T11:30:00Z | 48h30m
    no previous run                   | 0 12 * * 5             | 10:00 - - 16:00             | 20h
";

/// Compares the last cell of each row with the result that `result` returns for its simulation.
fn check(table: &str, cases: usize, result: impl Fn(&Simulation<CachedCronJob>) -> String) {
    let rows: Vec<_> = table.lines().filter(|line| !line.trim().is_empty()).collect();
    assert_eq!(rows.len(), cases);
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [case, schedule, input, expected] = cells[..] else {
            panic!("the row must have four columns: {row}");
        };
        let expected = expected.rsplit_once("here ").map_or(expected, |(_, here)| here);
        assert_eq!(result(&simulation(schedule, input)), expected, "{case}");
    }
}

fn simulation(schedule: &str, input: &str) -> Simulation<CachedCronJob> {
    let input: Vec<_> = input.split(' ').collect();
    let [created, last, deadline, now] = input[..] else {
        panic!("the cell must have four words: {input:?}");
    };
    let spec = json!({"schedule": schedule, "jobTemplate": CachedCronJob::template()});
    let mut simulation = Simulation::of(json!({"metadata": {"name": "a"}, "spec": spec}), at(created));
    if let Ok(seconds) = deadline.parse::<i64>() {
        simulation.touch(|object| object["spec"]["startingDeadlineSeconds"] = seconds.into());
    }
    if last != "-" {
        let last = at(last).to_string();
        simulation.touch(|object| object["status"] = json!({"lastScheduleTime": last}));
    }
    simulation.sync();
    simulation.clock = now.parse().unwrap_or_else(|_| at(now));
    simulation
}

/// Formats a time as `at` parses it.
fn format_moment(time: Timestamp) -> String {
    let text = time.strftime("%dT%H:%M").to_string();
    text.strip_prefix("19T").unwrap_or(&text).to_owned()
}

fn run(simulation: &Simulation<CachedCronJob>) -> String {
    let plan = simulation.plan();
    let has_event = |reason: &str| {
        let mut effects = plan.effects.iter();
        effects.any(|effect| matches!(effect, Effect::Event(_, note) if note.reason == reason))
    };
    if has_event("InvalidSchedule") {
        assert_eq!(plan.next, Next::OnChange);
        return "error".to_owned();
    }
    let many = if has_event("TooManyMissedTimes") { " many" } else { "" };
    let started = plan.effects.iter().find_map(|effect| match effect {
        Effect::Create(job) => time_of(&job.key.name),
        _ => None,
    });
    started.map_or_else(|| "-".to_owned(), format_moment) + many
}

#[test]
fn most_recent_time_is_the_same_as_in_kubernetes() {
    check(MOST_RECENT, 13, run);
    check(NEXT, 8, run);
}

#[test]
fn duration_until_the_next_time_is_the_same_as_in_kubernetes() {
    check(DURATION, 4, |simulation| match simulation.plan().next {
        Next::At(time) => format!("{:#}", time.duration_since(simulation.clock)).replace(' ', ""),
        Next::OnChange => "-".to_owned(),
    });
}

#[test]
fn finished_jobs_are_cleaned_up_as_in_kubernetes() {
    let finished = |now: &str, limit: u32, jobs: &[(&str, &str)]| {
        let mut simulation = simulation("0 * * * ?", "08:00 09:01 - 09:02");
        simulation.touch(|object| object["spec"]["successfulJobsHistoryLimit"] = limit.into());
        for (name, began) in jobs {
            let began = json!({"status": {"startTime": at(began).to_string()}});
            simulation.add_job(name, Some("uid-1"), began);
            simulation.finish(name, "Complete");
        }
        simulation.clock = at(now);
        simulation
    };
    // The quota prevents the creation of a Job. Deleting old Jobs is even more important then.
    let mut at_quota = finished(
        "10:01",
        1,
        &[("started-minute-ago", "09:59"), ("started-hour-ago", "08:59")],
    );
    at_quota.rejections = vec![("create", "quota for # of jobs reached")];
    at_quota.converge();
    assert_eq!(at_quota.record.deleted, ["started-hour-ago"]);
    let mut within_limit = finished("09:59", 2, &[("started-hour-ago", "08:59")]);
    within_limit.converge();
    assert!(within_limit.record.deleted.is_empty());
}

/// As in Kubernetes' `TestByJobStartTime`, except that a Job that has not started is sorted by its
/// creation time.
#[test]
fn jobs_are_deleted_in_the_order_of_their_start_times_and_names() {
    let mut simulation = simulation("0 * * * ?", "08:00 09:01 - 09:02");
    simulation.touch(|object| object["spec"]["successfulJobsHistoryLimit"] = 0.into());
    let created = json!({"creationTimestamp": at("10:00").to_string()});
    for (name, began) in [
        ("c", Some("09:00")),
        ("b", None),
        ("a", None),
        ("e", Some("08:00")),
        ("d", Some("10:00")),
    ] {
        let began = began.map(|began| at(began).to_string());
        let job = json!({"metadata": created, "status": {"startTime": began}});
        simulation.add_job(name, Some("uid-1"), job);
        simulation.finish(name, "Complete");
    }
    simulation.converge();
    assert_eq!(simulation.record.deleted, ["e", "c", "a", "b", "d"]);
}

#[test]
fn job_is_built_from_the_template_as_in_kubernetes() {
    let table = [
        (
            "UTC zone, one annotation",
            Some("UTC"),
            json!({"x": "y"}),
            "2016-05-19T10:00:00Z",
        ),
        (
            "no zone, one annotation",
            None,
            json!({"x": "y"}),
            "2016-05-19T10:00:00Z",
        ),
        (
            "correct zone, several annotations",
            Some("Europe/Rome"),
            json!({"x": "y", "z": "x"}),
            "2016-05-19T12:00:00+02:00",
        ),
    ];
    for (case, zone, annotations, scheduled) in table {
        let mut simulation = simulation("* * * * ?", "09:59 - - 10:00");
        let pod = json!({"metadata": {"labels": {"foo": "bar"}}, "spec": {"containers": [{"image": "foo/bar"}]}});
        let spec = json!({"activeDeadlineSeconds": 1, "manualSelector": false, "template": pod});
        let template = json!({"metadata": {"labels": {"a": "b"}, "annotations": annotations}, "spec": spec});
        simulation.touch(|object| {
            object["spec"]["jobTemplate"] = template;
            object["spec"]["timeZone"] = zone.into();
        });
        simulation.restart();
        let effects = simulation.plan().effects;
        let Some(Effect::Create(job)) = effects.first() else {
            panic!("{case}: the plan must create a Job: {effects:?}");
        };
        let metadata = &job.body["metadata"];
        assert_eq!(metadata["name"], "a-24394200", "{case}");
        assert_eq!(metadata["labels"], json!({"a": "b"}), "{case}");
        let mut expected = annotations;
        expected["batch.kubernetes.io/cronjob-scheduled-timestamp"] = scheduled.into();
        assert_eq!(metadata["annotations"], expected, "{case}");
        assert_eq!(job.body["spec"], spec, "{case}");
        let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "a", "uid": "uid-1",
            "controller": true, "blockOwnerDeletion": true});
        assert_eq!(metadata["ownerReferences"], Value::Array(vec![owner]), "{case}");
    }
}
