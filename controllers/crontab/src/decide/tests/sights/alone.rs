//! What only one of the kinds may see.

use serde_json::{Value, json};

use super::{Sights, after, due, ended, routine, running, since_ever, terminating, with};
use crate::{
    cronjob::SeenCronJob,
    crontab::SeenCronTab,
    decide::tests::{samples::slot, world::World},
};

/// What only a CronTab sees.
pub(in crate::decide::tests) fn of_a_crontab() -> Sights<SeenCronTab> {
    [runs_now(), names_of_runs_now(), oddities()].concat()
}

fn asked(mut world: World<SeenCronTab>) -> World<SeenCronTab> {
    world.run_now("1");
    world
}

fn answered() -> World<SeenCronTab> {
    let mut world = asked(routine());
    world.settle();
    world
}

fn runs_now() -> Sights<SeenCronTab> {
    let forbid = |world| since_ever(world, "concurrencyPolicy", "Forbid");
    let replace = |world| since_ever(world, "concurrencyPolicy", "Replace");
    vec![
        ("run now", asked(routine())),
        ("run now, the same value", answered()),
        ("run now, another value", after(answered(), |world| world.run_now("2"))),
        ("run now, no value", after(routine(), |world| world.run_now(""))),
        ("run now, suspended", asked(since_ever(routine(), "suspend", true))),
        ("run now, terminating", terminating(asked(routine()))),
        (
            "run now, bad schedule",
            asked(since_ever(routine(), "schedule", "61 * * * *")),
        ),
        ("run now, Forbid, active", asked(forbid(running()))),
        (
            "run now, Forbid, no longer active",
            after(asked(forbid(running())), |world| {
                world.settle();
                world.finish(&slot("09:00"), "Complete");
            }),
        ),
        ("run now, Replace, active", asked(replace(running()))),
        ("run now, due", due(asked(routine()))),
        ("run now, due, Forbid", due(asked(forbid(routine())))),
        ("run now, due, Replace", due(asked(replace(routine())))),
        ("run now, due, Replace, active", due(asked(replace(running())))),
        (
            "Replace, due, an active run-now is not stored",
            due(after(asked(replace(routine())), |world| _ = world.step())),
        ),
        (
            "history, a run-now is not stored",
            after(asked(with(routine(), "successfulJobsHistoryLimit", 0)), |world| {
                world.step();
                let name = world.active().pop().expect("a Job");
                world.finish(&name, "Complete");
            }),
        ),
    ]
}

fn names_of_runs_now() -> Sights<SeenCronTab> {
    let long = || {
        let mut world = World::new("0 * * * *", "08:30");
        world.touch(|object| object["metadata"]["name"] = "n".repeat(52).into());
        world
    };
    // Deleted without its Jobs, and created anew.
    let again = |mut world: World<SeenCronTab>| {
        world.touch(|object| {
            object["metadata"]["uid"] = "uid-2".into();
            object["status"] = Value::Null;
        });
        world
    };
    vec![
        ("run now, a name of 52 characters", asked(long())),
        (
            "run now, a name of 52 characters, taken",
            again(after(asked(long()), |world| _ = world.settle())),
        ),
        ("run now, taken", again(answered())),
        (
            "run now, its mark was removed",
            after(asked(routine()), |world| {
                world.step();
                let name = world.jobs.keys().last().expect("a Job").clone();
                world.change_job(&name, &json!({"metadata": {"annotations": null}}));
            }),
        ),
        (
            "run now, a value with the hash of another",
            after(routine(), |world| {
                world.run_now("costarring");
                world.settle();
                world.run_now("liquid");
            }),
        ),
    ]
}

fn oddities() -> Sights<SeenCronTab> {
    let no_spec = |mut world: World<SeenCronTab>| {
        world.touch(|object| {
            object.as_object_mut().expect("an object").remove("spec");
        });
        world
    };
    let in_zurich = |policy: &str| {
        let mut world = World::new("30 2 * * *", "2026-10-24T12:00:00Z");
        world.set("timeZone", "Europe/Zurich");
        world.set("dstPolicy", policy);
        world.settle();
        world.go("2026-10-25T00:30:00Z");
        world.settle();
        world.go("2026-10-25T01:30:00Z");
        world
    };
    vec![
        ("no spec", no_spec(routine())),
        (
            "no spec, run now",
            after(no_spec(routine()), |world| world.run_now("1")),
        ),
        ("an @every under a minute", with(routine(), "schedule", "@every 30s")),
        ("TZ= in the schedule", with(routine(), "schedule", "TZ=UTC 0 * * * *")),
        ("an hour twice, Once", in_zurich("Once")),
        ("an hour twice, Kubernetes", in_zurich("Kubernetes")),
        (
            "a fraction of a second in the mark",
            after(due(routine()), |world| {
                let marks = json!({"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-10T10:00:00.5Z"});
                world.add_job(
                    &slot("10:00"),
                    Some("uid-1"),
                    json!({"metadata": {"annotations": marks}}),
                );
                world.pass(5);
            }),
        ),
        (
            "missed between two that were served",
            after(routine(), |world| {
                for time in ["10:00", "12:00", "13:00"] {
                    ended(world, &slot(time), time, "Complete");
                }
                world.go("13:30");
            }),
        ),
        (
            "missed before two that were served",
            after(routine(), |world| {
                for time in ["11:00", "12:00"] {
                    ended(world, &slot(time), time, "Complete");
                }
                world.go("12:30");
            }),
        ),
    ]
}

/// What only a CronJob sees.
pub(in crate::decide::tests) fn of_a_cronjob() -> Sights<SeenCronJob> {
    vec![
        (
            "TZ= in the schedule",
            after(World::new("TZ=Asia/Kolkata 0 * * * *", "08:30"), |world| {
                world.go("09:30");
            }),
        ),
        (
            "TZ= in the schedule, and a zone",
            after(World::new("TZ=Asia/Kolkata 0 * * * *", "08:30"), |world| {
                world.touch(|object| object["spec"]["timeZone"] = "UTC".into());
                world.sync();
                world.go("09:30");
            }),
        ),
        ("a template with marks of Jobs", {
            let marks = json!({"stable.example.com/run-now": "1", "cronjob.kubernetes.io/instantiate": "manual"});
            let mut world = with(routine(), "successfulJobsHistoryLimit", 0);
            world.set("jobTemplate", json!({"metadata": {"annotations": marks}, "spec": {}}));
            world.go("10:00");
            world.step();
            world.finish(&slot("10:00"), "Complete");
            world
        }),
        ("@every twenty seconds", {
            let mut world = World::new("@every 20s", "10:00:10");
            world.set("successfulJobsHistoryLimit", 0);
            world.go("10:01:10");
            world.settle();
            world.finish(&slot("10:01"), "Complete");
            world.settle();
            world.go("10:01:30");
            world
        }),
    ]
}
