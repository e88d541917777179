//! What holds of every sight: a plan that was carried out leaves nothing to do, a stale plan is harmless, and every write is bound to
//! what was seen. What is planned, what is written, and what an interruption does to it, is in the files beside.

mod clock;
mod corpus;
mod crashes;
mod kubernetes;
mod kubernetes_times;
mod plans;
mod samples;
mod sights;
mod world;
mod written;

use self::{
    samples::{Sample, slot},
    sights::{Sights, common, due, of_a_cronjob, of_a_crontab, routine, since_ever},
    world::{Outcome, World, identity},
};
use super::*;
use crate::{cronjob::SeenCronJob, crontab::SeenCronTab};

fn of_crontabs() -> Sights<SeenCronTab> {
    [common(), of_a_crontab()].concat()
}

fn of_cronjobs() -> Sights<SeenCronJob> {
    [common(), of_a_cronjob()].concat()
}

#[test]
fn a_plan_that_was_carried_out_leaves_nothing_to_do() {
    fn check<K: Sample>(sights: Sights<K>) {
        for (case, mut world) in sights {
            let rounds = world.settle();
            assert!(rounds <= 4, "{case}: {rounds} rounds");
            let plan = world.plan();
            assert_eq!(plan, world.plan(), "{case}: a decision is pure");
            let is_said_once = |effect: &Effect| matches!(effect, Effect::Event(_, note) if note.once.is_some());
            assert!(plan.effects.iter().all(is_said_once), "{case}: {plan}");
        }
    }
    check(of_crontabs());
    check(of_cronjobs());
}

#[test]
fn a_plan_that_was_decided_on_a_stale_cache_changes_nothing() {
    fn check<K: Sample>(sights: Sights<K>) {
        for (case, mut world) in sights {
            world.sync();
            let stale = world.plan();
            world.settle();
            // Nothing can bind a Create to what was seen: from one that comes after the Job's end the lease's fence protects.
            let is_too_late = |effect: &Effect| match effect {
                Effect::Create(job) => world.record.deleted.contains(&job.key.name.to_string()),
                _ => false,
            };
            if stale.effects.iter().any(is_too_late) {
                continue;
            }
            let before = (world.picture(), world.activity());
            world.carry_out(&stale.effects);
            assert_eq!((world.picture(), world.activity()), before, "{case}: {stale}");
        }
    }
    check(of_crontabs());
    check(of_cronjobs());
}

#[test]
fn every_write_but_a_create_is_bound_to_the_object_that_was_seen() {
    fn check<K: Sample>(sights: Sights<K>) {
        for (case, mut world) in sights {
            world.sync();
            for effect in world.plan().effects {
                match effect {
                    Effect::Create(job) => {
                        let owner = &job.body["metadata"]["ownerReferences"][0];
                        assert_eq!(owner["uid"], world.object["metadata"]["uid"], "{case}");
                        assert_eq!(job.body["metadata"].get("uid"), None, "{case}");
                    }
                    Effect::Delete { target, .. } => {
                        let job = &world.jobs[&*target.key.name];
                        assert_eq!((target.uid, target.version), identity(job), "{case}");
                    }
                    Effect::PatchStatus { target, .. } | Effect::Event(target, _) => {
                        assert_eq!((target.uid, target.version), identity(&world.object), "{case}");
                    }
                    Effect::Absent { key, uid, .. } => {
                        let active = world.object["status"]["active"].as_array().expect("a list");
                        let is_it = |job: &&serde_json::Value| job["name"] == *key.name;
                        assert_eq!(active.iter().find(is_it).expect("it was active")["uid"], *uid, "{case}");
                    }
                    Effect::Count { .. } | Effect::Lag { .. } => {}
                    Effect::Apply { .. } | Effect::Present { .. } => panic!("{case}: nothing is applied here"),
                }
            }
        }
    }
    check(of_crontabs());
    check(of_cronjobs());
}

#[test]
fn a_refusal_is_said_once_and_taken_back_when_it_is_over() {
    let mut world = due(routine::<SeenCronTab>());
    world.refusal = Some(("create", "quota exceeded"));
    world.settle();
    assert_eq!(world.reasons(), ["FailedCreate"]);
    let ready = |world: &World<SeenCronTab>| world.object["status"]["conditions"][1].clone();
    assert_eq!(
        (ready(&world)["reason"].as_str(), ready(&world)["message"].as_str()),
        (Some("FailedCreate"), Some("quota exceeded"))
    );
    world.restart();
    world.settle();
    assert_eq!(world.reasons(), ["FailedCreate"], "the status remembers it");
    world.refusal = None;
    world.settle();
    assert_eq!(world.reasons(), ["FailedCreate", "SuccessfulCreate"]);
    assert_eq!(ready(&world)["status"], "True");
    assert_eq!(world.stored(), Some(world.clock));
}

#[test]
fn a_refusal_of_one_thing_does_not_stop_the_others() {
    let mut world = due(since_ever(routine::<SeenCronJob>(), "concurrencyPolicy", "Replace"));
    world.settle();
    world.go("11:00");
    world.refusal = Some(("delete", "not allowed"));
    world.settle();
    assert_eq!(world.reasons(), ["SuccessfulCreate", "FailedDelete"]);
    assert!(
        !world.jobs.contains_key(&slot("11:00")),
        "what is to be replaced is still there"
    );
    world.refusal = Some(("create", "quota exceeded"));
    world.set("successfulJobsHistoryLimit", 0);
    world.settle();
    assert_eq!(
        world.record.deleted,
        [slot("10:00"), slot("09:00")],
        "a full quota is no reason to keep the old ones"
    );
    world.refusal = None;
    world.settle();
    assert_eq!(world.active(), [slot("11:00")]);
}

#[test]
fn a_cache_that_misses_an_active_job_is_not_believed() {
    for policy in ["Forbid", "Replace"] {
        let mut world = since_ever(routine::<SeenCronTab>(), "concurrencyPolicy", policy);
        world.refusal = Some(("make sure", "no"));
        world.go("10:00");
        world.settle();
        world.remove_job(&slot("10:00"));
        world.go("11:00");
        world.settle();
        assert_eq!(world.reasons(), ["SuccessfulCreate", "FailedGet"], "{policy}");
        assert_eq!(world.record.created.len(), 1, "{policy}: what was active may still be");
    }
}

#[test]
fn a_run_is_not_repeated_when_its_job_goes_before_the_status_tells_of_it() {
    fn check<K: Sample>(start: &World<K>, job: &str) {
        for (is_stored, is_other_process) in [(true, false), (false, false), (true, true), (false, true)] {
            let mut world = start.clone();
            world.step();
            world.advance(0, usize::MAX);
            if is_stored {
                let effects = world.plan().effects;
                assert_eq!(world.carry_out(&effects), Outcome::Done);
            }
            world.remove_job(job);
            if is_other_process {
                world.fail_over();
            }
            // Of its own status the process has not heard.
            world.advance(0, usize::MAX);
            let effects = world.plan().effects;
            world.carry_out(&effects);
            assert_eq!(world.record.created[job], 1, "stored: {is_stored}");
            world.settle();
            assert_eq!(world.record.created[job], 1, "stored: {is_stored}");
        }
    }
    check(&due(routine::<SeenCronTab>()), &slot("10:00"));
    check(&due(routine::<SeenCronJob>()), &slot("10:00"));
    let mut asked = routine::<SeenCronTab>();
    asked.run_now("1");
    check(&asked, "a-run-340ca71c");
}
