//! Runs that replace each other while no status can be written, for example because the conversion
//! webhook is away.

use std::{collections::BTreeMap, iter};

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    cases::{REJECTION, idle, unwritable, with_recorded},
    samples::{Sample, at},
    simulation::{Outcome, Simulation},
};
use crate::{
    cronjob::CachedCronJob, crontab::CachedCronTab, job::CachedJob, origin::Origin, replaced_runs::ReplacedRuns,
};

const ANNOTATION: &str = "stable.example.com/replaced-runs";

/// Reconciles at each of these times.
fn pass<K: Sample>(simulation: &mut Simulation<K>, times: &[&str]) {
    for time in times {
        simulation.converge_at(time);
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
        let mut simulation = unwritable::<K>("Replace");
        pass(&mut simulation, &["10:00", "11:00", "12:00"]);
        let names: Vec<_> = ["10:00", "11:00", "12:00"].into_iter().map(K::slot).collect();
        for name in &names {
            assert_eq!(simulation.record.created.get(name), Some(&1), "{name}");
        }
        assert_eq!(simulation.active(), names[2..]);
        let runs = json!({"scheduled": {"default": ["2026-03-10T10:00:00Z", "2026-03-10T11:00:00Z"]}});
        assert_eq!(replaced(&simulation, &names[2])["scheduled"], runs["scheduled"]);
        assert_eq!(
            simulation.recorded_jobs(),
            [K::slot("09:00")],
            "the status is the earlier one"
        );

        simulation.rejections.clear();
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
    let mut simulation = unwritable::<CachedCronTab>("Replace");
    pass(&mut simulation, &["10:00"]);
    simulation.rejections.clear();
    simulation.converge();
    pass(&mut simulation, &["11:00"]);
    assert_eq!(simulation.active(), [CachedCronTab::slot("11:00")]);
    assert_eq!(replaced(&simulation, &CachedCronTab::slot("11:00")), Value::Null);
}

/// Ends the process between any two effects of the replacement of a scheduled and of a requested
/// run. No run is repeated, and one Job remains.
#[test]
fn an_interrupted_replacement_is_completed() {
    let mut tried = 0;
    let mut start = unwritable::<CachedCronTab>("Replace");
    pass(&mut start, &["10:00"]);
    start.run_now("1");
    start.converge();
    pass(&mut start, &["11:00"]);
    let created = start.record.created.clone();
    assert_eq!(created.len(), 3, "{created:?}");
    for (change, is_request, is_restarted) in [("11:30", true, false), ("12:00", false, false), ("12:00", false, true)]
    {
        let mut before = start.clone();
        before.set_clock(change);
        if is_request {
            before.run_now("2");
        }
        if is_restarted {
            before.restart();
        }
        before.sync();
        let mut effects = before.plan().effects;
        // A process that does not know yet that the status cannot be written tries it first.
        if is_restarted || is_request {
            let outcome = before.carry_out(&effects);
            assert!(matches!(outcome, Outcome::Rejected(..)), "{outcome:?}");
            effects = before.report(&outcome).effects;
        }
        for done in 0..=effects.len() {
            for (is_writable, is_standby) in [(false, false), (false, true), (true, false), (true, true)] {
                let mut simulation = before.clone();
                simulation.carry_out(&effects[..done]);
                if is_standby {
                    simulation.fail_over();
                } else {
                    simulation.restart();
                }
                if is_writable {
                    simulation.rejections.clear();
                }
                let case = format!("{change}: after {done} of {effects:?}, {is_writable}, {is_standby}");
                simulation.converge();
                assert_eq!(simulation.active().len(), 1, "{case}");
                // The clock of the new process may be behind.
                simulation.set_clock("11:59");
                simulation.restart();
                simulation.converge();
                simulation.rejections.clear();
                pass(&mut simulation, &["12:30"]);
                let created = &simulation.record.created;
                assert!(created.values().all(|times| *times == 1), "{case}: {created:?}");
                assert_eq!(simulation.active().len(), 1, "{case}");
                assert_eq!(simulation.record.missed, 0, "{case}");
                assert!(!simulation.reasons().contains(&"MissingJob"), "{case}");
                let status = &simulation.object["status"];
                let expected = ["1", "2"][usize::from(is_request)];
                assert_eq!(status["lastRunNow"], expected, "{case}");
                tried += 1;
            }
        }
    }
    assert!(tried > 60, "the test tried only {tried} interruptions");
}

#[test]
fn an_annotation_of_somebody_else_is_ignored() {
    let mut simulation = unwritable::<CachedCronJob>("Replace");
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
    simulation.rejections.clear();
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

/// The process ends before it deletes a Job whose run needs no record: it was requested by an
/// earlier value.
#[test]
fn a_job_is_replaced_even_if_its_run_needs_no_record() {
    let mut simulation = unwritable::<CachedCronTab>("Replace");
    pass(&mut simulation, &["10:00"]);
    simulation.run_now("1");
    simulation.converge();
    let requested = simulation.active();
    simulation.run_now("2");
    simulation.rejections.push(("delete", "not allowed"));
    simulation.converge();
    assert_eq!(simulation.active().len(), 2, "the deletion was rejected");
    simulation.rejections.pop();
    simulation.restart();
    simulation.converge();
    assert_eq!(simulation.record.deleted.last(), requested.last());
    assert_eq!(simulation.active().len(), 1);
}

#[test]
fn a_job_that_cannot_be_deleted_is_replaced_once_and_does_not_keep_the_status_from_being_written() {
    let mut simulation = unwritable::<CachedCronTab>("Replace");
    pass(&mut simulation, &["10:00"]);
    let refused = ("delete", "not allowed");
    simulation.rejections.push(refused);
    pass(&mut simulation, &["11:00", "12:00", "13:00"]);
    let two = ["10:00", "11:00"].map(CachedCronTab::slot);
    assert_eq!(simulation.active(), two, "further runs wait");
    assert!(
        simulation.reasons().contains(&"FailedDelete"),
        "{:?}",
        simulation.reasons()
    );
    simulation.rejections = vec![refused];
    simulation.converge();
    assert_eq!(simulation.last_schedule_time(), Some(at("11:00")));
    simulation.rejections.clear();
    simulation.converge();
    assert_eq!(simulation.active(), [CachedCronTab::slot("13:00")]);
}

/// A Job that another one lists still exists when the status counts the missed runs.
#[test]
fn a_run_with_two_records_hides_no_missed_run() {
    let mut simulation = unwritable::<CachedCronTab>("Replace");
    pass(&mut simulation, &["10:00"]);
    simulation.rejections.push(("delete", "not allowed"));
    pass(&mut simulation, &["13:00"]);
    simulation.rejections.remove(0);
    simulation.converge();
    assert_eq!(simulation.last_schedule_time(), Some(at("13:00")));
    assert_eq!(simulation.record.missed, 2);
    assert_eq!(simulation.object["status"]["lastMissedTime"], "2026-03-10T12:00:00Z");
}

/// The Job that was replaced last has finished before the status can be written.
#[test]
fn a_replaced_job_is_not_missing() {
    fn check<K: Sample>() {
        let mut simulation = with_recorded(idle::<K>(), "concurrencyPolicy", "Replace");
        pass(&mut simulation, &["10:00"]);
        simulation.rejections = vec![REJECTION];
        pass(&mut simulation, &["11:00", "12:00"]);
        simulation.finish(&K::slot("12:00"), "Complete");
        simulation.rejections.clear();
        simulation.converge();
        assert!(
            !simulation.reasons().contains(&"MissingJob"),
            "{:?}",
            simulation.reasons()
        );
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

/// Somebody has edited the annotation. The status has whole seconds.
#[test]
fn a_listed_time_with_a_fraction_is_recorded() {
    let mut simulation = unwritable::<CachedCronJob>("Replace");
    pass(&mut simulation, &["10:00"]);
    let first = CachedCronJob::slot("10:00");
    let runs = "{\"scheduled\":{\"default\":[\"2026-03-10T10:00:00.5Z\"]}}";
    simulation.change_job(&first, &json!({"metadata": {"annotations": {ANNOTATION: runs}}}));
    simulation.rejections.clear();
    pass(&mut simulation, &["11:00"]);
    assert_eq!(simulation.active(), [CachedCronJob::slot("11:00")]);
}

#[test]
fn the_latest_times_of_each_schedule_are_kept() {
    let minutes = |count: usize| {
        let minutes = (0..count).map(|minute| SignedDuration::from_mins(minute.try_into().expect("a small number")));
        minutes.map(|minute| at("10:00") + minute).collect::<Vec<_>>()
    };
    let kept = |scheduled: Value| {
        let runs = json!({"scheduled": scheduled}).to_string();
        let job = json!({"metadata": {"name": "j", "annotations": {ANNOTATION: runs}}});
        let job: CachedJob = serde_json::from_str(&job.to_string()).expect("the JSON is a Job");
        let mut kept = BTreeMap::<_, Vec<_>>::new();
        for run in ReplacedRuns::of(job.runs("a"), iter::empty()).iter() {
            if let Origin::Scheduled(schedule, slot) = run {
                kept.entry(schedule.to_string()).or_default().push(slot);
            }
        }
        json!(kept)
    };
    for (count, first) in [(0, 0), (999, 0), (1_000, 0), (1_001, 1), (1_500, 500)] {
        let slots = &minutes(count)[first..];
        let expected = if count == 0 {
            json!({})
        } else {
            json!({"default": slots})
        };
        assert_eq!(kept(json!({"default": minutes(count)})), expected, "of {count}");
    }
    let (often, rarely) = (minutes(1_500), [at("09:00")]);
    assert_eq!(
        kept(json!({"often": often, "rarely": rarely})),
        json!({"often": often[1_000..], "rarely": rarely})
    );
}
