//! Decisions while the watch of Jobs is held up: what this process has created counts, although its
//! cache does not have it.

use portreeve_reconcile::{Effect, Next};

use super::{
    cases::{due, idle, with_recorded},
    samples::{Sample, at},
    simulation::{Outcome, Simulation},
};
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

/// Returns an idle schedule with this policy that has started its run of 10:00. The watch of Jobs
/// has not shown that Job.
fn started<K: Sample>(policy: &str) -> Simulation<K> {
    let mut simulation = due(with_recorded(idle::<K>(), "concurrencyPolicy", policy));
    converge(&mut simulation);
    assert_eq!(simulation.active(), [K::slot("10:00")]);
    simulation
}

/// Reconciles until there is nothing to do. The cache receives no change of a Job.
fn converge<K: Sample>(simulation: &mut Simulation<K>) {
    for _ in 0..12 {
        simulation.deliver(usize::MAX, 0);
        let before = simulation.activity();
        if simulation.reconcile() == Outcome::Done && simulation.activity() == before {
            return;
        }
    }
    panic!("the plans do not converge: {}", simulation.plan());
}

fn active_in_status<K: Sample>(simulation: &Simulation<K>) -> Vec<&str> {
    let active = simulation.object["status"]["active"].as_array().into_iter().flatten();
    active.filter_map(|job| job["name"].as_str()).collect()
}

#[test]
fn forbid_counts_a_job_that_the_watch_has_not_shown() {
    fn check<K: Sample>() {
        let mut simulation = started::<K>("Forbid");
        simulation.set_clock("11:00");
        converge(&mut simulation);
        assert_eq!(simulation.active(), [K::slot("10:00")]);
        assert_eq!(simulation.reasons(), ["SuccessfulCreate", "JobAlreadyActive"]);
        // The watch does not show the end of the Job either, so the Job is read again.
        simulation.finish(&K::slot("10:00"), "Complete");
        let Next::At(next) = simulation.plan().next else {
            panic!("the Job is not read again");
        };
        assert_eq!(next, at("11:00:30"));
        simulation.clock = next;
        converge(&mut simulation);
        assert_eq!(simulation.active(), [K::slot("11:00")]);
        assert_eq!(active_in_status(&simulation), [K::slot("11:00")]);
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

#[test]
fn replace_deletes_a_job_that_the_watch_has_not_shown() {
    fn check<K: Sample>() {
        let mut simulation = started::<K>("Replace");
        // The Job starts, which changes its version.
        simulation.change_job(&K::slot("10:00"), &serde_json::json!({"status": {"active": 1}}));
        simulation.set_clock("11:00");
        converge(&mut simulation);
        assert_eq!(simulation.record.deleted, [K::slot("10:00")]);
        assert_eq!(simulation.active(), [K::slot("11:00")]);
        assert_eq!(active_in_status(&simulation), [K::slot("11:00")]);
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

#[test]
fn a_run_whose_job_is_gone_before_the_watch_shows_it_is_not_repeated() {
    fn check<K: Sample>() {
        for policy in ["Allow", "Forbid", "Replace"] {
            for is_recorded in [false, true] {
                let mut simulation = due(with_recorded(idle::<K>(), "concurrencyPolicy", policy));
                if is_recorded {
                    converge(&mut simulation);
                } else {
                    assert_eq!(simulation.reconcile(), Outcome::Done);
                }
                simulation.remove_job(&K::slot("10:00"));
                for seconds in [0, 29, 1, 30] {
                    simulation.pass(seconds);
                    simulation.touch(|object| object["metadata"]["labels"]["touched"] = "yes".into());
                    converge(&mut simulation);
                }
                let created: Vec<_> = simulation.record.created.into_values().collect();
                assert_eq!(created, [1], "{policy}, recorded: {is_recorded}");
                let active = simulation.object["status"]["active"].as_array();
                assert!(active.is_none_or(Vec::is_empty), "{policy}: {active:?}");
            }
        }
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

/// The apiserver creates the Job, but the answer is lost.
#[test]
fn a_job_whose_creation_was_not_answered_is_looked_for() {
    fn check<K: Sample>() {
        for (policy, active) in [("Forbid", "10:00"), ("Replace", "11:00")] {
            for is_repeated in [false, true] {
                let mut simulation = due(with_recorded(idle::<K>(), "concurrencyPolicy", policy));
                simulation.loses_answer = true;
                assert_eq!(simulation.reconcile(), Outcome::Unanswered);
                if is_repeated {
                    converge(&mut simulation);
                    assert_eq!(active_in_status(&simulation), [K::slot("10:00")], "{policy}");
                }
                simulation.set_clock("11:00");
                converge(&mut simulation);
                assert_eq!(simulation.active(), [K::slot(active)], "{policy}");
            }
        }
    }
    check::<CachedCronTab>();
    check::<CachedCronJob>();
}

/// The apiserver has not created the Job.
#[test]
fn a_rejected_job_is_forgotten() {
    let mut simulation = due(with_recorded(idle::<CachedCronJob>(), "concurrencyPolicy", "Forbid"));
    simulation.rejections.push(("create", "quota exceeded"));
    simulation.deliver(usize::MAX, 0);
    assert!(matches!(simulation.reconcile(), Outcome::Rejected(..)));
    simulation.rejections.clear();
    let is_read = |effect: &Effect| matches!(effect, Effect::Read { .. });
    assert!(!simulation.plan().effects.iter().any(is_read));
    converge(&mut simulation);
    assert_eq!(simulation.active(), [CachedCronJob::slot("10:00")]);
}

/// Another process has created the Job. The watch shows neither of the two.
#[test]
fn a_job_that_already_exists_is_read() {
    fn check<K: Sample>(owner: Option<&str>, reasons: &[&str]) {
        let mut simulation = due(with_recorded(idle::<K>(), "concurrencyPolicy", "Forbid"));
        simulation.sync();
        simulation.add_job(&K::slot("10:00"), owner, serde_json::json!({}));
        assert_eq!(simulation.reconcile(), Outcome::Stale);
        converge(&mut simulation);
        assert_eq!(simulation.reasons(), reasons);
        assert!(simulation.record.created.is_empty());
    }
    check::<CachedCronTab>(Some("uid-1"), &[]);
    check::<CachedCronJob>(Some("uid-1"), &[]);
    check::<CachedCronTab>(None, &["FailedCreate"]);
    check::<CachedCronJob>(None, &["FailedCreate"]);
}
