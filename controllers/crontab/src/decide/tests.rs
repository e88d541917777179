//! Properties that hold for every case: a carried-out plan leaves nothing to do, a stale plan is
//! harmless, and every write has preconditions. The submodules test the plans, the written objects,
//! and interruptions.

mod cases;
mod clock;
mod corpus;
mod crashes;
mod kubernetes;
mod kubernetes_times;
mod plans;
mod samples;
mod several;
mod simulation;
mod unrecorded;
mod unseen;
mod unwritable;
mod versions;
mod written;

use self::{
    cases::{Cases, common_cases, cronjob_only, crontab_only, due, idle, running, with_recorded},
    samples::Sample,
    simulation::{Outcome, Simulation, identity},
};
use super::*;
use crate::{cronjob::CachedCronJob, crontab::CachedCronTab};

fn crontab_cases() -> Cases<CachedCronTab> {
    [common_cases(), crontab_only()].concat()
}

fn cronjob_cases() -> Cases<CachedCronJob> {
    [common_cases(), cronjob_only()].concat()
}

#[test]
fn carried_out_plan_leaves_nothing_to_do() {
    fn check<K: Sample>(cases: Cases<K>) {
        for (case, mut simulation) in cases {
            let rounds = simulation.converge();
            assert!(rounds <= 4, "{case}: {rounds} rounds");
            let plan = simulation.plan();
            assert_eq!(plan, simulation.plan(), "{case}: the decision is not pure");
            let is_reported_once =
                |effect: &Effect| matches!(effect, Effect::Event(_, note) if note.report_once.is_some());
            assert!(plan.effects.iter().all(is_reported_once), "{case}: {plan}");
        }
    }
    check(crontab_cases());
    check(cronjob_cases());
}

#[test]
fn plan_from_a_stale_cache_changes_nothing() {
    fn check<K: Sample>(cases: Cases<K>) {
        for (case, mut simulation) in cases {
            simulation.sync();
            let stale = simulation.plan();
            simulation.converge();
            // A create has no precondition. Only the Lease's fence prevents one that arrives after
            // its Job was deleted.
            let is_too_late = |effect: &Effect| match effect {
                Effect::Create(job) => simulation.record.deleted.contains(&job.key.name.to_string()),
                _ => false,
            };
            if stale.effects.iter().any(is_too_late) {
                continue;
            }
            let before = (simulation.snapshot(), simulation.activity());
            simulation.carry_out(&stale.effects);
            assert_eq!(
                (simulation.snapshot(), simulation.activity()),
                before,
                "{case}: {stale}"
            );
        }
    }
    check(crontab_cases());
    check(cronjob_cases());
}

#[test]
fn every_write_except_create_has_preconditions() {
    fn check<K: Sample>(cases: Cases<K>) {
        for (case, mut simulation) in cases {
            simulation.sync();
            for effect in simulation.plan().effects {
                match effect {
                    Effect::Create(job) => {
                        let owner = &job.body["metadata"]["ownerReferences"][0];
                        assert_eq!(owner["uid"], simulation.object["metadata"]["uid"], "{case}");
                        assert_eq!(job.body["metadata"].get("uid"), None, "{case}");
                    }
                    Effect::Delete { target, .. } => {
                        let job = &simulation.jobs[&*target.key.name];
                        assert_eq!((target.uid, target.version), identity(job), "{case}");
                    }
                    Effect::PatchStatus { target, .. } | Effect::Replace { target, .. } | Effect::Event(target, _) => {
                        assert_eq!((target.uid, target.version), identity(&simulation.object), "{case}");
                    }
                    Effect::RequireAbsent { key, uid, .. } => {
                        let active = simulation.object["status"]["active"]
                            .as_array()
                            .expect("status.active is a list");
                        let has_name = |job: &&serde_json::Value| job["name"] == *key.name;
                        assert_eq!(
                            active.iter().find(has_name).expect("the Job was active")["uid"],
                            *uid,
                            "{case}"
                        );
                    }
                    Effect::Count { .. } | Effect::ObserveLatency { .. } | Effect::Read { .. } => {}
                    Effect::Apply { .. } | Effect::RequirePresent { .. } | Effect::List { .. } => {
                        panic!("{case}: no schedule needs this effect")
                    }
                }
            }
        }
    }
    check(crontab_cases());
    check(cronjob_cases());
}

#[test]
fn rejection_is_reported_once_and_cleared_when_it_ends() {
    let mut simulation = due(idle::<CachedCronTab>());
    simulation.rejections = vec![("create", "quota exceeded")];
    simulation.converge();
    assert_eq!(simulation.reasons(), ["FailedCreate"]);
    let ready = |simulation: &Simulation<CachedCronTab>| simulation.object["status"]["conditions"][1].clone();
    assert_eq!(
        (
            ready(&simulation)["reason"].as_str(),
            ready(&simulation)["message"].as_str()
        ),
        (Some("FailedCreate"), Some("quota exceeded"))
    );
    simulation.restart();
    simulation.converge();
    assert_eq!(
        simulation.reasons(),
        ["FailedCreate"],
        "the status records the rejection"
    );
    simulation.rejections.clear();
    simulation.converge();
    assert_eq!(simulation.reasons(), ["FailedCreate", "SuccessfulCreate"]);
    assert_eq!(ready(&simulation)["status"], "True");
    assert_eq!(simulation.last_schedule_time(), Some(simulation.clock));
}

#[test]
fn rejection_of_one_write_does_not_block_the_others() {
    let mut simulation = due(with_recorded(idle::<CachedCronJob>(), "concurrencyPolicy", "Replace"));
    simulation.converge();
    simulation.set_clock("11:00");
    simulation.rejections = vec![("delete", "not allowed")];
    simulation.converge();
    assert_eq!(simulation.reasons(), ["SuccessfulCreate", "FailedDelete"]);
    assert!(
        !simulation.jobs.contains_key(&CachedCronJob::slot("11:00")),
        "the Job that is to be replaced still exists"
    );
    simulation.rejections = vec![("create", "quota exceeded")];
    simulation.set("successfulJobsHistoryLimit", 0);
    simulation.converge();
    assert_eq!(
        simulation.record.deleted,
        [CachedCronJob::slot("10:00"), CachedCronJob::slot("09:00")],
        "a full quota does not prevent the deletion of old Jobs"
    );
    simulation.rejections.clear();
    simulation.converge();
    assert_eq!(simulation.active(), [CachedCronJob::slot("11:00")]);
}

#[test]
fn rejected_first_status_is_reported_and_delays_the_first_run() {
    let mut simulation = Simulation::<CachedCronTab>::new("0 * * * *", "08:30");
    simulation.rejections = vec![("write status", "not allowed")];
    simulation.converge_at("09:00");
    assert_eq!(simulation.reasons(), ["FailedStatusUpdate"]);
    assert!(simulation.record.created.is_empty());
    simulation.rejections.clear();
    simulation.converge();
    assert_eq!(simulation.reasons(), ["FailedStatusUpdate", "SuccessfulCreate"]);
}

#[test]
fn requested_run_that_is_replaced_before_it_starts_is_not_run() {
    let mut simulation = with_recorded(running::<CachedCronTab>(), "concurrencyPolicy", "Forbid");
    for value in ["1", "2"] {
        simulation.run_now(value);
        simulation.converge();
    }
    assert!(simulation.record.created.is_empty());
    simulation.finish(&CachedCronTab::slot("09:00"), "Complete");
    simulation.converge();
    let created: Vec<_> = simulation.record.created.keys().collect();
    assert_eq!(created, ["a-a299e94a-r370cabd5"], "only the last value is run");
}

#[test]
fn absence_of_an_active_job_from_the_cache_is_verified() {
    for policy in ["Forbid", "Replace"] {
        let mut simulation = with_recorded(idle::<CachedCronTab>(), "concurrencyPolicy", policy);
        simulation.rejections = vec![("check that", "no")];
        simulation.converge_at("10:00");
        simulation.remove_job(&CachedCronTab::slot("10:00"));
        simulation.converge_at("11:00");
        assert_eq!(simulation.reasons(), ["SuccessfulCreate", "FailedGet"], "{policy}");
        assert_eq!(
            simulation.record.created.len(),
            1,
            "{policy}: the missing Job may still be active"
        );
    }
}

#[test]
fn run_is_not_repeated_if_its_job_is_deleted_before_the_status_records_it() {
    fn check<K: Sample>(start: &Simulation<K>, job: &str) {
        for (is_recorded, is_other_process) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut simulation = start.clone();
            simulation.step();
            simulation.deliver(0, usize::MAX);
            if is_recorded {
                let effects = simulation.plan().effects;
                assert_eq!(simulation.carry_out(&effects), Outcome::Done);
            }
            simulation.remove_job(job);
            if is_other_process {
                simulation.fail_over();
            }
            // The cache does not have the status update yet.
            simulation.deliver(0, usize::MAX);
            let effects = simulation.plan().effects;
            simulation.carry_out(&effects);
            assert_eq!(simulation.record.created[job], 1, "recorded: {is_recorded}");
            simulation.converge();
            assert_eq!(simulation.record.created[job], 1, "recorded: {is_recorded}");
        }
    }
    check(&due(idle::<CachedCronTab>()), &CachedCronTab::slot("10:00"));
    check(&due(idle::<CachedCronJob>()), &CachedCronJob::slot("10:00"));
    let mut requested = idle::<CachedCronTab>();
    requested.run_now("1");
    check(&requested, "a-a299e94a-r340ca71c");
}
