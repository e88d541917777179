//! Steps of the wall clock, forward and back.

use anyhow::{Result, ensure};
use serde_json::json;

use super::environment::ScheduleEnvironment;
use crate::fixtures::schedules::{Kind, minutes, next_minute};

#[tokio::test]
async fn a_clock_set_forward_starts_the_latest_run_and_reports_the_others_as_missed() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    for kind in Kind::BOTH {
        environment.clock.reset();
        let name = kind.name();
        environment.wait_until_time_left(5).await;
        let created = environment.create(kind, name, "*/5 * * * *", json!({})).await?;
        environment.wait_until_reconciled(kind, name).await?;
        let latest = next_minute(created, 5) + minutes(5 * 7);
        environment.clock.set(latest + minutes(2));
        environment.wait_for_jobs(name, &[kind.job_of(name, latest)]).await?;
        let time = format!("{latest:.0}");
        let status = environment
            .status(kind, name, "the latest run", |status| {
                status["lastScheduleTime"] == *time
            })
            .await?;
        if kind == Kind::CronTab {
            let before = format!("{:.0}", latest - minutes(5));
            ensure!(
                status["lastMissedTime"] == *before && status["missedRuns"] == 7,
                "{status}"
            );
            let events = environment
                .wait_for_events(name, &["SuccessfulCreate", "MissSchedule"])
                .await?;
            let note = events[1].note.clone().unwrap_or_default();
            ensure!(note.starts_with("Missed 7 scheduled times"), "{note}");
            let metrics = environment.daemon.admin.metrics().await?;
            let missed = metrics.sum("crontab_controller_missed_runs_total", &[]);
            ensure!((missed - 7.0).abs() < f64::EPSILON, "{missed}");
        } else {
            environment.wait_for_events(name, &["SuccessfulCreate"]).await?;
        }
    }
    environment.finish().await
}

#[tokio::test]
async fn a_clock_set_back_starts_no_run_twice() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    for kind in Kind::BOTH {
        environment.clock.reset();
        let name = kind.name();
        // The canaries must be created before the time to which the clock is set back.
        environment.wait_until_time_left(1).await;
        // Without a Job history, only the status records a run.
        let created = environment
            .create(kind, name, "* * * * *", json!({"successfulJobsHistoryLimit": 0}))
            .await?;
        environment.wait_until_reconciled(kind, name).await?;
        let first = next_minute(created, 1) + minutes(30);
        environment.clock.set(first);
        let time = format!("{first:.0}");
        environment
            .status(kind, name, "the run", |status| status["lastScheduleTime"] == *time)
            .await?;
        environment.end_job(&kind.job_of(name, first), true).await?;
        environment.wait_for_jobs(name, &[]).await?;
        // Repeat the last half hour. At each step a canary shows that the daemon uses the new
        // time.
        for (number, minute) in (-30..=0).step_by(10).enumerate() {
            let time = first + minutes(minute);
            environment.clock.set(time);
            let canary = format!("{name}-canary-{number}");
            let schedule = format!("{} * * * *", time.as_second() / 60 % 60);
            environment.create(kind, &canary, &schedule, json!({})).await?;
            environment
                .wait_for_jobs(&canary, &[kind.job_of(&canary, time)])
                .await?;
            environment.delete(kind, &canary).await?;
            environment.wait_for_jobs(name, &[]).await?;
        }
        let second = first + minutes(1);
        environment.clock.set(second);
        environment.wait_for_jobs(name, &[kind.job_of(name, second)]).await?;
        let mut events = vec![
            "SuccessfulCreate",
            "SawCompletedJob",
            "SuccessfulDelete",
            "SuccessfulCreate",
        ];
        if kind == Kind::CronTab {
            // The first clock change skipped half an hour of runs.
            events.insert(1, "MissSchedule");
        }
        environment.wait_for_events(name, &events).await?;
    }
    environment.finish().await
}
