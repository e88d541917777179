//! The cases for only one of the kinds.

use serde_json::{Value, json};

use super::{Cases, after, due, ended, routine, running, terminating, with, with_recorded};
use crate::{
    cronjob::CachedCronJob,
    crontab::CachedCronTab,
    decide::tests::{samples::slot, simulation::Simulation},
};

/// Returns the cases for CronTabs.
pub(in crate::decide::tests) fn crontab_only() -> Cases<CachedCronTab> {
    [runs_now(), names_of_runs_now(), oddities()].concat()
}

fn asked(mut simulation: Simulation<CachedCronTab>) -> Simulation<CachedCronTab> {
    simulation.run_now("1");
    simulation
}

fn answered() -> Simulation<CachedCronTab> {
    let mut simulation = asked(routine());
    simulation.converge();
    simulation
}

fn runs_now() -> Cases<CachedCronTab> {
    let forbid = |simulation| with_recorded(simulation, "concurrencyPolicy", "Forbid");
    let replace = |simulation| with_recorded(simulation, "concurrencyPolicy", "Replace");
    vec![
        ("run now", asked(routine())),
        ("run now, the same value", answered()),
        (
            "run now, another value",
            after(answered(), |simulation| simulation.run_now("2")),
        ),
        (
            "run now, no value",
            after(routine(), |simulation| simulation.run_now("")),
        ),
        ("run now, suspended", asked(with_recorded(routine(), "suspend", true))),
        ("run now, terminating", terminating(asked(routine()))),
        (
            "run now, bad schedule",
            asked(with_recorded(routine(), "schedule", "61 * * * *")),
        ),
        ("run now, Forbid, active", asked(forbid(running()))),
        (
            "run now, Forbid, no longer active",
            after(asked(forbid(running())), |simulation| {
                simulation.converge();
                simulation.finish(&slot("09:00"), "Complete");
            }),
        ),
        ("run now, Replace, active", asked(replace(running()))),
        ("run now, due", due(asked(routine()))),
        ("run now, due, Forbid", due(asked(forbid(routine())))),
        ("run now, due, Replace", due(asked(replace(routine())))),
        ("run now, due, Replace, active", due(asked(replace(running())))),
        (
            "Replace, due, an active run-now is not recorded",
            due(after(asked(replace(routine())), |simulation| _ = simulation.step())),
        ),
        (
            "history, a run-now is not recorded",
            after(asked(with(routine(), "successfulJobsHistoryLimit", 0)), |simulation| {
                simulation.step();
                let name = simulation.active().pop().expect("there is a Job");
                simulation.finish(&name, "Complete");
            }),
        ),
    ]
}

fn names_of_runs_now() -> Cases<CachedCronTab> {
    let long = || {
        let mut simulation = Simulation::new("0 * * * *", "08:30");
        simulation.touch(|object| object["metadata"]["name"] = "n".repeat(52).into());
        simulation
    };
    // The schedule was deleted without its Jobs and created again.
    let again = |mut simulation: Simulation<CachedCronTab>| {
        simulation.touch(|object| {
            object["metadata"]["uid"] = "uid-2".into();
            object["status"] = Value::Null;
        });
        simulation
    };
    vec![
        ("run now, a name of 52 characters", asked(long())),
        (
            "run now, a name of 52 characters, taken",
            again(after(asked(long()), |simulation| _ = simulation.converge())),
        ),
        ("run now, taken", again(answered())),
        (
            "run now, its annotation was removed",
            after(asked(routine()), |simulation| {
                simulation.step();
                let name = simulation.jobs.keys().last().expect("there is a Job").clone();
                simulation.change_job(&name, &json!({"metadata": {"annotations": null}}));
            }),
        ),
        (
            "run now, a hash collision",
            after(routine(), |simulation| {
                simulation.run_now("costarring");
                simulation.converge();
                simulation.run_now("liquid");
            }),
        ),
    ]
}

fn oddities() -> Cases<CachedCronTab> {
    let no_spec = |mut simulation: Simulation<CachedCronTab>| {
        simulation.touch(|object| {
            object
                .as_object_mut()
                .expect("the schedule is an object")
                .remove("spec");
        });
        simulation
    };
    let in_zurich = |policy: &str| {
        let mut simulation = Simulation::new("30 2 * * *", "2026-10-24T12:00:00Z");
        simulation.set("timeZone", "Europe/Zurich");
        simulation.set("dstPolicy", policy);
        simulation.converge();
        simulation.set_clock("2026-10-25T00:30:00Z");
        simulation.converge();
        simulation.set_clock("2026-10-25T01:30:00Z");
        simulation
    };
    vec![
        ("no spec", no_spec(routine())),
        (
            "no spec, run now",
            after(no_spec(routine()), |simulation| simulation.run_now("1")),
        ),
        ("an @every under a minute", with(routine(), "schedule", "@every 30s")),
        ("TZ= in the schedule", with(routine(), "schedule", "TZ=UTC 0 * * * *")),
        ("a repeated hour, Once", in_zurich("Once")),
        ("a repeated hour, Kubernetes", in_zurich("Kubernetes")),
        (
            "a fraction of a second in the annotation",
            after(due(routine()), |simulation| {
                let marks = json!({"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-10T10:00:00.5Z"});
                simulation.add_job(
                    &slot("10:00"),
                    Some("uid-1"),
                    json!({"metadata": {"annotations": marks}}),
                );
                simulation.pass(5);
            }),
        ),
        (
            "missed between two served times",
            after(routine(), |simulation| {
                for time in ["10:00", "12:00", "13:00"] {
                    ended(simulation, &slot(time), time, "Complete");
                }
                simulation.set_clock("13:30");
            }),
        ),
        (
            "missed before two served times",
            after(routine(), |simulation| {
                for time in ["11:00", "12:00"] {
                    ended(simulation, &slot(time), time, "Complete");
                }
                simulation.set_clock("12:30");
            }),
        ),
    ]
}

/// Returns the cases for CronJobs.
pub(in crate::decide::tests) fn cronjob_only() -> Cases<CachedCronJob> {
    vec![
        (
            "TZ= in the schedule",
            after(Simulation::new("TZ=Asia/Kolkata 0 * * * *", "08:30"), |simulation| {
                simulation.set_clock("09:30");
            }),
        ),
        (
            "TZ= in the schedule, and a zone",
            after(Simulation::new("TZ=Asia/Kolkata 0 * * * *", "08:30"), |simulation| {
                simulation.touch(|object| object["spec"]["timeZone"] = "UTC".into());
                simulation.sync();
                simulation.set_clock("09:30");
            }),
        ),
        ("a template with annotations of Jobs", {
            let marks = json!({"stable.example.com/run-now": "1", "cronjob.kubernetes.io/instantiate": "manual"});
            let mut simulation = with(routine(), "successfulJobsHistoryLimit", 0);
            simulation.set("jobTemplate", json!({"metadata": {"annotations": marks}, "spec": {}}));
            simulation.set_clock("10:00");
            simulation.step();
            simulation.finish(&slot("10:00"), "Complete");
            simulation
        }),
        ("@every twenty seconds", {
            let mut simulation = Simulation::new("@every 20s", "10:00:10");
            simulation.set("successfulJobsHistoryLimit", 0);
            simulation.set_clock("10:01:10");
            simulation.converge();
            simulation.finish(&slot("10:01"), "Complete");
            simulation.converge();
            simulation.set_clock("10:01:30");
            simulation
        }),
    ]
}
