//! Each fault of single requests, alone.

use std::time::Instant;

use anyhow::{Context, Result};
use portreeve_testing::{Fault, Matcher, Spoil, Times};

use super::{
    course::Course,
    weather::{self, Target, Weather},
};
use crate::support::SETTLED;

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
