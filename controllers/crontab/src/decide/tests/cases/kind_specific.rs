//! The cases for only one of the kinds.

use serde_json::{Value, json};

use super::{Cases, add_finished_job, after, due, idle, running, terminating, with, with_recorded};
use crate::{
    cronjob::CachedCronJob,
    crontab::CachedCronTab,
    decide::tests::{
        samples::Sample as _,
        simulation::{Record, Simulation},
    },
};

/// Returns the cases for CronTabs.
pub(in crate::decide::tests) fn crontab_only() -> Cases<CachedCronTab> {
    [
        run_now_cases(),
        run_now_name_cases(),
        name_format_cases(),
        unusual_cases(),
    ]
    .concat()
}

fn with_requested_run(mut simulation: Simulation<CachedCronTab>) -> Simulation<CachedCronTab> {
    simulation.run_now("1");
    simulation
}

fn with_started_run() -> Simulation<CachedCronTab> {
    let mut simulation = with_requested_run(idle());
    simulation.converge();
    simulation
}

fn run_now_cases() -> Cases<CachedCronTab> {
    let forbid = |simulation| with_recorded(simulation, "concurrencyPolicy", "Forbid");
    let replace = |simulation| with_recorded(simulation, "concurrencyPolicy", "Replace");
    vec![
        ("run now", with_requested_run(idle())),
        ("run now, the same value", with_started_run()),
        (
            "run now, another value",
            after(with_started_run(), |simulation| simulation.run_now("2")),
        ),
        ("run now, no value", after(idle(), |simulation| simulation.run_now(""))),
        (
            "run now, suspended",
            with_requested_run(with_recorded(idle(), "suspend", true)),
        ),
        ("run now, terminating", terminating(with_requested_run(idle()))),
        (
            "run now, bad schedule",
            with_requested_run(with_recorded(idle(), "schedule", "61 * * * *")),
        ),
        ("run now, Forbid, active", with_requested_run(forbid(running()))),
        (
            "run now, Forbid, no longer active",
            after(with_requested_run(forbid(running())), |simulation| {
                simulation.converge();
                simulation.finish(&CachedCronTab::slot("09:00"), "Complete");
            }),
        ),
        ("run now, Replace, active", with_requested_run(replace(running()))),
        ("run now, due", due(with_requested_run(idle()))),
        ("run now, due, Forbid", due(with_requested_run(forbid(idle())))),
        ("run now, due, Replace", due(with_requested_run(replace(idle())))),
        (
            "run now, due, Replace, active",
            due(with_requested_run(replace(running()))),
        ),
        (
            "Replace, due, an active run-now is not recorded",
            due(after(with_requested_run(replace(idle())), |simulation| {
                _ = simulation.step();
            })),
        ),
        (
            "history, a run-now is not recorded",
            after(
                with_requested_run(with(idle(), "successfulJobsHistoryLimit", 0)),
                |simulation| {
                    simulation.step();
                    let name = simulation.active().pop().expect("there is a Job");
                    simulation.finish(&name, "Complete");
                },
            ),
        ),
    ]
}

fn run_now_name_cases() -> Cases<CachedCronTab> {
    let long = || {
        let mut simulation = Simulation::new("0 * * * *", "08:30");
        simulation.touch(|object| object["metadata"]["name"] = "n".repeat(52).into());
        simulation.converge();
        simulation
    };
    // Deletes the schedule without its Jobs, recreates it, and requests the same run.
    let recreated = |mut simulation: Simulation<CachedCronTab>| {
        let now = format!("{:.0}", simulation.clock);
        simulation.touch(|object| {
            object["metadata"]["creationTimestamp"] = now.into();
            object["metadata"]["uid"] = "uid-2".into();
            object["metadata"]["annotations"] = Value::Null;
            object["status"] = Value::Null;
        });
        simulation.converge();
        with_requested_run(simulation)
    };
    let without_annotation = |mut simulation: Simulation<CachedCronTab>| {
        let name = simulation.active().pop().expect("there is a Job");
        simulation.change_job(&name, &json!({"metadata": {"annotations": null}}));
        simulation
    };
    vec![
        ("run now, a name of 52 characters", with_requested_run(long())),
        (
            "run now, a name of 52 characters, taken",
            recreated(after(with_requested_run(long()), |simulation| {
                _ = simulation.converge();
            })),
        ),
        ("run now, taken", recreated(with_started_run())),
        (
            "run now, its annotation was removed",
            without_annotation(after(with_requested_run(idle()), |simulation| {
                _ = simulation.step();
            })),
        ),
        (
            "run now, its annotation was removed later",
            without_annotation(with_started_run()),
        ),
        (
            "run now, a hash collision",
            after(idle(), |simulation| {
                simulation.run_now("costarring");
                simulation.converge();
                simulation.run_now("liquid");
            }),
        ),
    ]
}

fn name_format_cases() -> Cases<CachedCronTab> {
    let new = || Simulation::new("0 * * * *", "08:30");
    // An earlier version has written the status.
    let recorded = || {
        after(new(), |simulation| {
            simulation.touch(|object| object["status"]["observedGeneration"] = 1.into());
            simulation.converge();
            simulation.record = Record::default();
        })
    };
    let with_job = |name: &'static str| {
        after(new(), |simulation| {
            simulation.add_job(name, Some("uid-1"), json!({}));
        })
    };
    vec![
        ("new, due", due(new())),
        ("new, run now", with_requested_run(new())),
        (
            "new, run now, suspended",
            with_requested_run(with(new(), "suspend", true)),
        ),
        ("names as CronJob, due", due(recorded())),
        ("names as CronJob, run now", with_requested_run(recorded())),
        (
            "names as CronJob, due, taken",
            due(after(recorded(), |simulation| {
                simulation.add_job("a-29552280", None, json!({}));
            })),
        ),
        ("no status, but a Job", due(with_job("a-29552280"))),
        (
            "no status, but a Job, run now",
            with_requested_run(with_job("a-29552280")),
        ),
        (
            "new, taken",
            due(after(new(), |simulation| {
                simulation.add_job(&CachedCronTab::slot("10:00"), None, json!({}));
            })),
        ),
        (
            "a Job of a CronJob of the same name",
            due(after(idle(), |simulation| {
                simulation.add_job("a-29552280", Some("uid-9"), json!({}));
            })),
        ),
    ]
}

fn unusual_cases() -> Cases<CachedCronTab> {
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
        simulation.converge_at("2026-10-25T00:30:00Z");
        simulation.set_clock("2026-10-25T01:30:00Z");
        simulation
    };
    vec![
        ("no spec", no_spec(idle())),
        (
            "no spec, run now",
            after(no_spec(idle()), |simulation| simulation.run_now("1")),
        ),
        ("an @every under a minute", with(idle(), "schedule", "@every 30s")),
        ("TZ= in the schedule", with(idle(), "schedule", "TZ=UTC 0 * * * *")),
        ("a repeated hour, Once", in_zurich("Once")),
        ("a repeated hour, Kubernetes", in_zurich("Kubernetes")),
        (
            "a fraction of a second in the annotation",
            after(due(idle()), |simulation| {
                let annotations = json!({"batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-10T10:00:00.5Z"});
                simulation.add_job(
                    &CachedCronTab::slot("10:00"),
                    Some("uid-1"),
                    json!({"metadata": {"annotations": annotations}}),
                );
                simulation.pass(5);
            }),
        ),
        (
            "missed between two runs",
            after(idle(), |simulation| {
                for time in ["10:00", "12:00", "13:00"] {
                    add_finished_job(simulation, &CachedCronTab::slot(time), time, "Complete");
                }
                simulation.set_clock("13:30");
            }),
        ),
        (
            "missed before two runs",
            after(idle(), |simulation| {
                for time in ["11:00", "12:00"] {
                    add_finished_job(simulation, &CachedCronTab::slot(time), time, "Complete");
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
            let annotations = json!({"stable.example.com/run-now": "1", "cronjob.kubernetes.io/instantiate": "manual"});
            let mut simulation = with(idle(), "successfulJobsHistoryLimit", 0);
            simulation.set(
                "jobTemplate",
                json!({"metadata": {"annotations": annotations}, "spec": {}}),
            );
            simulation.set_clock("10:00");
            simulation.step();
            simulation.finish(&CachedCronJob::slot("10:00"), "Complete");
            simulation
        }),
        ("@every twenty seconds", {
            let mut simulation = Simulation::new("@every 20s", "10:00:10");
            simulation.set("successfulJobsHistoryLimit", 0);
            simulation.converge_at("10:01:10");
            simulation.finish(&CachedCronJob::slot("10:01"), "Complete");
            simulation.converge();
            simulation.set_clock("10:01:30");
            simulation
        }),
    ]
}
