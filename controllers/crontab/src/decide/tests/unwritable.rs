//! Runs that replace each other while no status can be written, for example because the conversion
//! webhook is away.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    cases::{idle, with_recorded},
    samples::{Sample, at},
    simulation::{Outcome, Simulation},
};
use crate::{
    cronjob::CachedCronJob, crontab::CachedCronTab, job::CachedJob, origin::Origin, replaced_runs::ReplacedRuns,
};

const REJECTION: (&str, &str) = ("patch status", "conversion webhook for stable.example.com/v1 failed");
const ANNOTATION: &str = "stable.example.com/replaced-runs";

/// Returns a schedule with the policy Replace, at 09:30, whose status cannot be written any more.
fn unwritable<K: Sample>() -> Simulation<K> {
    let mut simulation = with_recorded(idle(), "concurrencyPolicy", "Replace");
    simulation.rejection = Some(REJECTION);
    simulation
}

/// Reconciles at each of these times.
fn pass<K: Sample>(simulation: &mut Simulation<K>, times: &[&str]) {
    for time in times {
        simulation.set_clock(time);
        simulation.converge();
    }
}

fn replaced<K: Sample>(simulation: &Simulation<K>, job: &str) -> Value {
    let annotation = &simulation.jobs[job]["metadata"]["annotations"][ANNOTATION];
    annotation.as_str().map_or(Value::Null, |text| {
        serde_json::from_str(text).expect("the annotation is JSON")
    })
}

#[test]
fn runs_replace_each_other_and_are_recorded_later() {
    fn check<K: Sample>() {
        let mut simulation = unwritable::<K>();
        pass(&mut simulation, &["10:00", "11:00", "12:00"]);
        let names: Vec<_> = ["10:00", "11:00", "12:00"].into_iter().map(K::slot).collect();
        for name in &names {
            assert_eq!(simulation.record.created.get(name), Some(&1), "{name}");
        }
        assert_eq!(simulation.active(), names[2..]);
        let runs = json!({"scheduled": {"default": ["2026-03-10T10:00:00Z", "2026-03-10T11:00:00Z"]}});
        assert_eq!(replaced(&simulation, &names[2]), runs);
        assert_eq!(
            simulation.recorded_jobs(),
            [K::slot("09:00")],
            "the status is the earlier one"
        );

        simulation.rejection = None;
        simulation.restart();
        pass(&mut simulation, &["12:30"]);
        assert_eq!(simulation.object["status"]["lastScheduleTime"], "2026-03-10T12:00:00Z");
        assert_eq!(simulation.record.missed, 0);
        assert!(
            !simulation.reasons().contains(&"MissSchedule"),
            "{:?}",
            simulation.reasons()
        );
        // From now on, the status is the record again.
        pass(&mut simulation, &["13:00", "14:00"]);
        assert_eq!(simulation.active(), [K::slot("14:00")]);
        assert_eq!(replaced(&simulation, &K::slot("14:00")), Value::Null);
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

#[test]
fn a_status_that_is_rejected_for_a_moment_is_waited_for() {
    let mut simulation = unwritable::<CachedCronTab>();
    pass(&mut simulation, &["10:00"]);
    simulation.rejection = None;
    pass(&mut simulation, &["11:00"]);
    assert_eq!(simulation.active(), [CachedCronTab::slot("11:00")]);
    assert_eq!(replaced(&simulation, &CachedCronTab::slot("11:00")), Value::Null);
}

/// Ends the process between any two effects of the replacement of a scheduled and of a requested
/// run. No run is repeated, and one Job remains.
#[test]
fn an_interrupted_replacement_is_completed() {
    let mut tried = 0;
    let mut start = unwritable::<CachedCronTab>();
    pass(&mut start, &["10:00"]);
    start.run_now("1");
    start.converge();
    pass(&mut start, &["11:00"]);
    let created = start.record.created.clone();
    assert_eq!(created.len(), 3, "{created:?}");
    for (change, is_request) in [("11:30", true), ("12:00", false)] {
        let mut before = start.clone();
        before.set_clock(change);
        if is_request {
            before.run_now("2");
        }
        before.sync();
        let effects = before.plan().effects;
        let outcome = before.carry_out(&effects);
        assert!(matches!(outcome, Outcome::Rejected(..)), "{outcome:?}");
        let report = before.report(&outcome).effects;
        for done in 0..=report.len() {
            for (is_writable, is_standby) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut simulation = before.clone();
                simulation.carry_out(&report[..done]);
                if is_standby {
                    simulation.fail_over();
                } else {
                    simulation.restart();
                }
                if is_writable {
                    simulation.rejection = None;
                }
                let case = format!("{change}: after {done} of {report:?}, {is_writable}, {is_standby}");
                simulation.converge();
                assert_eq!(simulation.active().len(), 1, "{case}");
                // The clock of the new process may be behind.
                simulation.set_clock("11:59");
                simulation.restart();
                simulation.converge();
                simulation.rejection = None;
                pass(&mut simulation, &["12:30"]);
                let created = &simulation.record.created;
                assert!(created.values().all(|times| *times == 1), "{case}: {created:?}");
                assert_eq!(simulation.active().len(), 1, "{case}");
                assert_eq!(simulation.record.missed, 0, "{case}");
                let status = &simulation.object["status"];
                let expected = ["1", "2"][usize::from(is_request)];
                assert_eq!(status["lastRunNow"], expected, "{case}");
                tried += 1;
            }
        }
    }
    assert!(tried > 30, "the test tried only {tried} interruptions");
}

#[test]
fn an_annotation_of_somebody_else_is_ignored() {
    let mut simulation = unwritable::<CachedCronJob>();
    simulation.set(
        "jobTemplate",
        json!({"metadata": {"annotations": {ANNOTATION: "{\"runNow\":\"1\"}"}}}),
    );
    pass(&mut simulation, &["10:00"]);
    let first = CachedCronJob::slot("10:00");
    assert_eq!(
        replaced(&simulation, &first),
        Value::Null,
        "the template may not set it"
    );
    for broken in ["", "[]", "{\"scheduled\":{\"default\":[\"x\"]}}"] {
        simulation.change_job(&first, &json!({"metadata": {"annotations": {ANNOTATION: broken}}}));
        simulation.converge();
    }
    pass(&mut simulation, &["11:00"]);
    assert_eq!(simulation.active(), [CachedCronJob::slot("11:00")]);
    simulation.rejection = None;
    pass(&mut simulation, &["12:00"]);
    let second = CachedCronJob::slot("12:00");
    assert_eq!(simulation.active(), [&*second]);
    // A time in the future stops nothing.
    let future = "{\"scheduled\":{\"default\":[\"2027-01-01T00:00:00Z\"]}}";
    simulation.change_job(&second, &json!({"metadata": {"annotations": {ANNOTATION: future}}}));
    simulation.set("concurrencyPolicy", "Allow");
    pass(&mut simulation, &["13:00"]);
    assert_eq!(simulation.last_schedule_time(), Some(simulation.clock));
}

#[test]
fn the_latest_times_are_kept() {
    let job = |minutes: usize| {
        let slots: Vec<_> = (0..minutes)
            .map(|minute| at("10:00") + SignedDuration::from_mins(minute.try_into().expect("a small number")))
            .collect();
        let runs = json!({"scheduled": {"default": slots}}).to_string();
        let job = json!({"metadata": {"name": "j", "annotations": {ANNOTATION: runs}}});
        serde_json::from_str::<CachedJob>(&job.to_string()).expect("the JSON is a Job")
    };
    for (before, after) in [(0, 0), (999, 999), (1_000, 1_000), (1_001, 1_000), (1_500, 1_000)] {
        let replaced = ReplacedRuns::of(job(before).runs("a"));
        assert_eq!(replaced.iter().count(), after, "of {before}");
        let last = at("10:00") + SignedDuration::from_mins(i64::try_from(before).expect("a small number") - 1);
        assert_eq!(
            replaced.contains(&Origin::Scheduled("default".into(), last)),
            before > 0
        );
    }
}
