//! What every concurrency policy does while no status can be written: runs start, and failures are
//! reported.

use serde_json::json;

use super::{cases::unwritable, samples::Sample};
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];

#[test]
fn a_changed_schedule_starts_runs_after_a_restart() {
    fn check<K: Sample>() {
        for policy in POLICIES {
            for is_restarted in [false, true] {
                let mut simulation = unwritable::<K>(policy);
                simulation.set("schedule", "45 * * * *");
                simulation.converge();
                if is_restarted {
                    simulation.restart();
                    simulation.converge();
                }
                for time in ["09:45", "10:45", "11:45"] {
                    simulation.converge_at(time);
                    let started = simulation.record.created.get(&K::slot(time));
                    assert_eq!(started, Some(&1), "{policy}, {is_restarted}: {time}");
                    if policy == "Forbid" {
                        simulation.finish(&K::slot(time), "Complete");
                    }
                }
                assert_eq!(simulation.record.created.len(), 3, "{policy}, {is_restarted}");
            }
        }
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

#[test]
fn a_rejected_job_is_reported() {
    fn check<K: Sample>() {
        for policy in POLICIES {
            for is_active in [false, true] {
                let mut simulation = unwritable::<K>(policy);
                // An old Job above the limit, whose deletion follows the status.
                simulation.set("successfulJobsHistoryLimit", 0);
                if is_active {
                    simulation.converge_at("10:00");
                }
                simulation.rejections.push(("create", "quota exceeded"));
                simulation.converge_at("11:00");
                let reasons = simulation.reasons();
                let is_blocked = is_active && policy == "Forbid";
                assert_eq!(reasons.contains(&"FailedCreate"), !is_blocked, "{policy}: {reasons:?}");
                let deleted = reasons.iter().filter(|reason| **reason == "SuccessfulDelete");
                assert_eq!(
                    deleted.count(),
                    simulation.record.deleted.len(),
                    "{policy}: {reasons:?}"
                );
            }
        }
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

#[test]
fn an_invalid_schedule_is_reported() {
    let mut simulation = unwritable::<CachedCronTab>("Allow");
    simulation.set("schedule", "61 * * * *");
    simulation.converge();
    let reasons = simulation.reasons();
    assert!(reasons.contains(&"InvalidSchedule"), "{reasons:?}");
}

/// The schedule has many runs that the status does not record, and some that were missed.
#[test]
fn missed_runs_are_those_without_a_job() {
    for (started, missed) in [(120, 0), (60, 30), (20, 120)] {
        let mut simulation = unwritable::<CachedCronTab>("Replace");
        simulation.set("schedule", "* * * * *");
        simulation.set("startingDeadlineSeconds", json!(null));
        simulation.converge();
        for run in 0..started {
            simulation.pass(if run == started / 2 { 60 * (missed + 1) } else { 60 });
            simulation.converge();
        }
        let reasons = simulation.reasons();
        let warned = reasons.iter().filter(|reason| **reason == "TooManyMissedTimes").count();
        assert_eq!(warned, usize::from(missed > 100), "{started} started, {missed} missed");
        simulation.rejections.clear();
        simulation.converge();
        let case = format!("{started} started, {missed} missed");
        assert_eq!(
            simulation.record.created.len(),
            usize::try_from(started).unwrap(),
            "{case}"
        );
        assert_eq!(simulation.record.missed, u64::try_from(missed).unwrap(), "{case}");
    }
}
