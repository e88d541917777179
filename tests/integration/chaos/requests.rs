//! Each fault of single requests, alone.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::DeleteParams};
use portreeve_testing::{Fault, Matcher, Spoil, Times, eventually};

use super::{
    course::Course,
    record,
    weather::{self, Target, Weather},
    work::STEP,
};
use crate::{
    schedules::{
        kinds::Kind,
        stage::{job_of, minutes},
    },
    support::SETTLED,
};

/// Who has schedules.
const SCHEDULERS: [&str; 2] = ["crontab-controller", "cronjob-controller"];
/// How many requests of each a fault meets: what is tried again, too.
const MET: u64 = 2;
/// How many watches a fault meets before there is anything to tell: most of them.
const WATCHES: u64 = 40;

/// One wave in this weather, and what there is to see when it is over.
async fn weather_a(course: &mut Course, weather: &Weather) -> Result<()> {
    let is_watch = weather.target == Target::Watches;
    let times = if is_watch {
        Times::UntilHealed
    } else if weather.holds() {
        Times::Next(1)
    } else {
        Times::Next(MET)
    };
    let met = weather.come(&course.proxy, times);
    if is_watch {
        for (_, met) in &met {
            met.until_answered(WATCHES, SETTLED).await?;
        }
    }
    course.work.wave().await?;
    for (who, met) in met {
        met.until_answered(1, SETTLED).await.context(who)?;
    }
    course.proxy.heal();
    course.judge().await
}

async fn weather_all(is_meant: fn(&Weather) -> bool) -> Result<()> {
    let mut course = Course::start().await?;
    for weather in weather::all().into_iter().filter(is_meant) {
        if weather.target == Target::Lists {
            // Or else they would wait for longer in each weather, as long as none of their watches goes on for a while.
            course = course.restart().await?;
        }
        let begun = Instant::now();
        let ended = weather_a(&mut course, &weather).await;
        ended.with_context(|| format!("{weather:?}"))?;
        println!("{weather:?}: {:?}", begun.elapsed());
    }
    course.finish().await
}

#[tokio::test]
async fn writes_that_fail_are_made_up_for() -> Result<()> {
    weather_all(|weather| weather.target == Target::Writes).await
}

#[tokio::test]
async fn reads_that_fail_are_made_up_for() -> Result<()> {
    weather_all(|weather| weather.target == Target::Reads).await
}

/// A Job that a status names and no cache knows is read before it is forgotten.
#[tokio::test]
async fn a_running_job_that_others_delete_is_forgotten_though_reads_of_it_fail() -> Result<()> {
    let course = Course::start().await?;
    let jobs: Api<Job> = course.work.scene.namespace.api();
    let mut slot = course.work.slot;
    for weather in weather::all() {
        if weather.target != Target::Reads {
            continue;
        }
        let times = if weather.holds() {
            Times::Next(1)
        } else {
            Times::Next(MET)
        };
        let met = SCHEDULERS.map(|name| {
            let reads = Matcher::objects().user_agent(name);
            course.proxy.fault(reads, weather.fault.clone(), times)
        });
        for kind in Kind::BOTH {
            let running = job_of(kind.name(), slot);
            jobs.delete(&running, &DeleteParams::background()).await?;
        }
        for (who, met) in SCHEDULERS.iter().zip(&met) {
            let met = met.until_answered(1, SETTLED).await;
            met.with_context(|| format!("{who}, {weather:?}"))?;
        }
        course.proxy.heal();
        slot += minutes(STEP);
        course.clock.set(slot);
        for kind in Kind::BOTH {
            until_only(&course, kind, &job_of(kind.name(), slot)).await?;
        }
    }
    course.ensure_well(|_| false).await?;
    record::ensure_clean(&course.plane)?;
    course.finish().await
}

/// Waits until the status of a schedule names this Job alone.
async fn until_only(course: &Course, kind: Kind, job: &str) -> Result<()> {
    let objects = kind.objects(&course.work.scene.namespace);
    eventually(SETTLED, &format!("{job} to be the only one"), || async {
        let object = objects.get(kind.name()).await?;
        let active = object.data["status"]["active"].as_array().context("it has none")?;
        ensure!(active.len() == 1 && active[0]["name"] == *job, "{active:?}");
        anyhow::Ok(())
    })
    .await
}

fn is_spoiled(weather: &Weather) -> bool {
    matches!(weather.fault, Fault::Spoil(_))
}

#[tokio::test]
async fn lists_that_are_refused_are_made_up_for() -> Result<()> {
    weather_all(|weather| weather.target == Target::Lists && !is_spoiled(weather)).await
}

#[tokio::test]
async fn lists_that_break_are_made_up_for() -> Result<()> {
    weather_all(|weather| weather.target == Target::Lists && is_spoiled(weather)).await
}

#[tokio::test]
async fn watches_that_break_are_gone_on_with() -> Result<()> {
    weather_all(|weather| weather.target == Target::Watches && is_spoiled(weather)).await
}

#[tokio::test]
async fn watches_that_are_refused_or_late_are_made_up_for() -> Result<()> {
    weather_all(|weather| weather.target == Target::Watches && !is_spoiled(weather)).await
}

#[tokio::test]
async fn watches_that_go_silent_for_ever_are_given_up_and_begun_anew() -> Result<()> {
    let mut course = Course::start_with(&["--watch-idle-timeout=3s"], async |_| Ok(())).await?;
    let silent = Fault::Spoil(Spoil::SilentAt(200));
    let met = course.proxy.fault(Matcher::watches(), silent, Times::Next(WATCHES));
    course.proxy.reset();
    met.until_answered(WATCHES, SETTLED).await?;
    course.work.wave().await?;
    // Nobody heals them, and with so little patience some are stale for a moment.
    course.judge_red(|line| line.contains("stale")).await?;
    course.finish().await
}
