//! The cases: simulations in different states, each with its name in the table.

mod kind_specific;

use serde_json::{Value, json};

use super::{
    samples::{Sample, at},
    simulation::{Record, Simulation},
};

pub(super) use kind_specific::{cronjob_only, crontab_only};

const DELETED: &str = "2026-03-10T09:30:00Z";
/// The rejection of every status.
pub(super) const REJECTION: (&str, &str) = ("write status", "conversion webhook for stable.example.com/v1 failed");

pub(super) type Cases<K> = Vec<(&'static str, Simulation<K>)>;

/// Returns an hourly schedule that was created at 08:30 and has converged. Its run at 09:00
/// succeeded, and the time is 09:30.
pub(super) fn idle<K: Sample>() -> Simulation<K> {
    let mut case = running();
    case.finish(&K::slot("09:00"), "Complete");
    case.converge();
    case.record = Record::default();
    case.set_clock("09:30");
    case
}

/// Returns the same schedule with its run still active.
pub(super) fn running<K: Sample>() -> Simulation<K> {
    let mut case = Simulation::new("0 * * * *", "08:30");
    case.converge();
    case.converge_at("09:00:00");
    case.pass(60);
    case.record = Record::default();
    case.set_clock("09:30");
    case
}

/// Sets the clock to 10:00.
pub(super) fn due<K: Sample>(mut case: Simulation<K>) -> Simulation<K> {
    case.set_clock("10:00");
    case
}

pub(super) fn with<K: Sample>(mut case: Simulation<K>, field: &str, value: impl Into<Value>) -> Simulation<K> {
    case.set(field, value);
    case
}

/// Sets a field and converges, so that the status already reflects it.
pub(super) fn with_recorded<K: Sample>(case: Simulation<K>, field: &str, value: impl Into<Value>) -> Simulation<K> {
    let mut case = with(case, field, value);
    case.converge();
    case.record = Record::default();
    case
}

/// Returns a schedule with this policy, at 09:30, whose status cannot be written any more.
pub(super) fn unwritable<K: Sample>(policy: &str) -> Simulation<K> {
    let mut case = with_recorded(idle(), "concurrencyPolicy", policy);
    case.rejections = vec![REJECTION];
    case
}

fn after<K: Sample>(mut case: Simulation<K>, change: impl FnOnce(&mut Simulation<K>)) -> Simulation<K> {
    change(&mut case);
    case
}

fn terminating<K: Sample>(case: Simulation<K>) -> Simulation<K> {
    after(case, |case| {
        case.touch(|object| object["metadata"]["deletionTimestamp"] = DELETED.into());
    })
}

/// Returns the cases for both kinds.
pub(super) fn common_cases<K: Sample>() -> Cases<K> {
    [
        times(),
        concurrency(),
        spec_faults(),
        foreign_jobs(),
        own_jobs(),
        histories(),
        changes(),
        misses(),
    ]
    .concat()
}

fn times<K: Sample>() -> Cases<K> {
    vec![
        ("new", Simulation::new("0 * * * *", "08:30")),
        ("not due", idle()),
        ("due", due(idle())),
        ("due while another runs", due(running())),
        ("suspended", due(with_recorded(idle(), "suspend", true))),
        ("terminating", due(terminating(idle()))),
        (
            "@every, counted from the creation",
            after(Simulation::new("@every 1h", "08:30"), |case| case.set_clock("09:30")),
        ),
        ("@every, counted from the last run", {
            let mut case = Simulation::new("@every 1h", "08:30");
            case.converge_at("09:30");
            case.set_clock("10:40");
            case
        }),
    ]
}

fn concurrency<K: Sample>() -> Cases<K> {
    let forbid = || with_recorded(running(), "concurrencyPolicy", "Forbid");
    let replace = || with_recorded(running(), "concurrencyPolicy", "Replace");
    let job_gone = |mut case: Simulation<K>| {
        case.remove_job(&K::slot("09:00"));
        case
    };
    let job_terminating = |mut case: Simulation<K>| {
        case.change_job(
            &K::slot("09:00"),
            &json!({"metadata": {"deletionTimestamp": "2026-03-10T09:59:59Z"}}),
        );
        case
    };
    let with_deadline = |case| with_recorded(case, "startingDeadlineSeconds", 120);
    vec![
        ("Forbid, due, active", due(forbid())),
        ("Forbid, due, the active one went missing", due(job_gone(forbid()))),
        (
            "Forbid, due, the active one is terminating",
            due(job_terminating(forbid())),
        ),
        ("Forbid, due, active, a deadline", due(with_deadline(forbid()))),
        (
            "Forbid, active, the deadline passed",
            after(with_deadline(forbid()), |case| case.set_clock("10:02")),
        ),
        ("Replace, due, active", due(replace())),
        ("Replace, due, the active one went missing", due(job_gone(replace()))),
        (
            "Replace, due, the active one is terminating",
            due(job_terminating(replace())),
        ),
        (
            "Replace, due, the active one is not recorded",
            after(with_recorded(idle(), "concurrencyPolicy", "Replace"), |case| {
                case.set_clock("10:00");
                case.step();
                case.set_clock("11:00");
            }),
        ),
        (
            "Replace, due, the active one has a future time",
            after(with_recorded(idle(), "concurrencyPolicy", "Replace"), |case| {
                case.set_clock("12:00");
                case.step();
                case.set_clock("11:00");
            }),
        ),
    ]
}

fn spec_faults<K: Sample>() -> Cases<K> {
    vec![
        ("bad schedule", due(with(idle(), "schedule", "61 * * * *"))),
        ("bad zone", due(with(idle(), "timeZone", "Mars/Olympus"))),
        (
            "a schedule that never runs",
            due(with(idle(), "schedule", "0 0 31 2 *")),
        ),
        ("bad template", due(with(idle(), "jobTemplate", json!([])))),
        (
            "bad schedule, suspended",
            due(with(with(idle(), "schedule", "61 * * * *"), "suspend", true)),
        ),
    ]
}

fn foreign_jobs<K: Sample>() -> Cases<K> {
    let taken = |owner: Option<&str>| {
        let mut case = due(idle());
        case.add_job(&K::slot("10:00"), owner, json!({}));
        case
    };
    vec![
        ("the name is taken by a Job without owner", taken(None)),
        ("the name is taken by a Job of another owner", taken(Some("uid-9"))),
        (
            "the Job that had the name was deleted",
            after(taken(Some("uid-0")), |case| {
                case.converge();
                case.remove_job(&K::slot("10:00"));
            }),
        ),
        (
            "Jobs of an earlier schedule of this name",
            after(Simulation::new("0 * * * *", "09:30"), |case| {
                case.add_job(&K::slot("09:00"), Some("uid-0"), json!({}));
                case.add_job(&K::slot("08:00"), Some("uid-0"), json!({}));
                case.set_clock("10:00");
            }),
        ),
    ]
}

fn own_jobs<K: Sample>() -> Cases<K> {
    let mine = Some("uid-1");
    let by_hand = json!({"metadata": {"annotations": {"cronjob.kubernetes.io/instantiate": "manual"}}});
    vec![
        (
            "the Job exists, but is not recorded",
            after(due(idle()), |case| {
                case.add_job(&K::slot("10:00"), mine, json!({}));
            }),
        ),
        (
            "a manual Job",
            after(idle(), |case| case.add_job("by-hand", mine, by_hand.clone())),
        ),
        (
            "Forbid, due, a manual Job",
            after(due(with_recorded(idle(), "concurrencyPolicy", "Forbid")), |case| {
                case.add_job("by-hand", mine, by_hand.clone());
            }),
        ),
        (
            "due, a manual Job has the name",
            after(due(idle()), |case| {
                case.add_job(&K::slot("10:00"), mine, by_hand.clone());
            }),
        ),
        (
            "an unexpected Job",
            after(idle(), |case| case.add_job("whose", mine, json!({}))),
        ),
        (
            "a Job of a future time",
            after(due(idle()), |case| case.add_job(&K::slot("23:00"), mine, json!({}))),
        ),
        (
            "a completed Job",
            after(running(), |case| case.finish(&K::slot("09:00"), "Complete")),
        ),
        (
            "a failed Job",
            after(running(), |case| case.finish(&K::slot("09:00"), "Failed")),
        ),
        (
            "a missing Job",
            after(running(), |case| case.remove_job(&K::slot("09:00"))),
        ),
        (
            "an active Job lost its owner",
            after(running(), |case| {
                case.change_job(&K::slot("09:00"), &json!({"metadata": {"ownerReferences": []}}));
            }),
        ),
        (
            "all Jobs were deleted",
            after(due(idle()), |case| case.remove_job(&K::slot("09:00"))),
        ),
    ]
}

/// Adds a Job that started at `started_at` and finished.
pub(super) fn add_finished_job<K: Sample>(case: &mut Simulation<K>, name: &str, started_at: &str, how: &str) {
    let started_at = format!("{:.0}", at(started_at));
    case.add_job(
        name,
        Some("uid-1"),
        json!({"metadata": {"creationTimestamp": started_at}, "status": {"startTime": started_at}}),
    );
    case.finish(name, how);
}

fn histories<K: Sample>() -> Cases<K> {
    let long = |limits: Value| {
        let mut case = with(idle(), "successfulJobsHistoryLimit", limits[0].clone());
        case.set("failedJobsHistoryLimit", limits[1].clone());
        case.converge();
        for time in ["05:00", "04:00", "06:00", "07:00"] {
            add_finished_job(&mut case, &K::slot(time), time, "Complete");
        }
        for time in ["03:00", "02:00"] {
            add_finished_job(&mut case, &K::slot(time), time, "Failed");
        }
        add_finished_job(&mut case, "by-hand", "01:00", "Complete");
        case.record = Record::default();
        case
    };
    vec![
        ("history, no limits", long(json!([null, null]))),
        ("history, 3 and 1", long(json!([3, 1]))),
        ("history, 0 and 0", long(json!([0, 0]))),
        (
            "history, the last run is not recorded",
            after(long(json!([0, 0])), |case| {
                case.converge();
                case.set_clock("10:00");
                add_finished_job(case, &K::slot("10:00"), "10:00", "Complete");
            }),
        ),
        ("history, terminating", terminating(long(json!([0, 0])))),
    ]
}

fn changes<K: Sample>() -> Cases<K> {
    let to_ten_minutes = || with(idle::<K>(), "schedule", "*/10 * * * *");
    vec![
        ("rescheduled", to_ten_minutes()),
        (
            "rescheduled, and due",
            after(to_ten_minutes(), |case| {
                case.converge();
                case.set_clock("09:40");
            }),
        ),
        ("rescheduled, and due before it was recorded", {
            let mut case = to_ten_minutes();
            case.sync();
            case.set_clock("09:40");
            case
        }),
        ("rescheduled while no process ran", {
            let mut case = to_ten_minutes();
            case.restart();
            case
        }),
        ("another zone", with(idle(), "timeZone", "Asia/Kolkata")),
        ("the clock was set back", {
            let mut case = due(idle());
            case.converge();
            case.set_clock("08:59:59");
            case
        }),
        ("the clock was set back before the run was recorded", {
            let mut case = due(idle());
            case.step();
            case.set_clock("09:59:59");
            case
        }),
        (
            "the clock was set forward",
            after(idle(), |case| case.set_clock("2026-03-12T10:00:00.5Z")),
        ),
    ]
}

fn misses<K: Sample>() -> Cases<K> {
    let with_deadline = || with_recorded(idle::<K>(), "startingDeadlineSeconds", 60);
    vec![
        ("several missed", after(idle(), |case| case.set_clock("12:10"))),
        (
            "more than a hundred missed",
            after(with_recorded(idle(), "startingDeadlineSeconds", 1_000_000), |case| {
                case.set_clock("2026-03-19T10:00:00Z");
            }),
        ),
        (
            "just within the deadline",
            after(with_deadline(), |case| case.set_clock("10:00:59")),
        ),
        (
            "the deadline passed",
            after(with_deadline(), |case| case.set_clock("10:01")),
        ),
        (
            "the deadline passed three times",
            after(with_deadline(), |case| case.set_clock("12:01")),
        ),
        (
            "a reported miss",
            after(with_deadline(), |case| case.converge_at("10:01")),
        ),
        (
            "missed while it was suspended",
            after(with_recorded(with_deadline(), "suspend", true), |case| {
                case.set_clock("12:10");
                case.set("suspend", false);
            }),
        ),
        (
            "due while it was suspended",
            after(with_recorded(idle(), "suspend", true), |case| {
                case.set_clock("12:10");
                case.set("suspend", false);
            }),
        ),
    ]
}
