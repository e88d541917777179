//! Faults together, as a seed has it.

use std::{env, time::Duration};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{Counter, Fault, Spoil, Times, eventually};

use super::{
    course::Course,
    weather::{self, Target, Weather},
};
use crate::support::LIMIT;

/// As many rounds as `make test` plays.
const ROUNDS: u64 = 4;
/// How late everything is on a slow line.
const LATE: Duration = Duration::from_millis(150);
/// How many connections hang at a paused apiserver before it goes on.
const HANGING: u64 = 5;

/// What may happen besides, in a round.
#[derive(Clone, Copy, Debug)]
enum Event {
    Nothing,
    Cut,
    Slow,
    ApiserverKilled,
    ApiserverPaused,
    EtcdKilled,
    Restart,
    ClockBack,
}

/// What a seed has in store: some weather, what else happens, and the odds.
#[derive(Debug)]
struct Forecast {
    weather: Vec<(Weather, Times)>,
    event: Event,
}

impl Forecast {
    fn of(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let all = weather::all();
        let weather = (0..dice.usize(1..4)).filter_map(|_| {
            let one = dice.choice(&all)?.clone();
            let holds = matches!(one.fault, Fault::BlackHole | Fault::Spoil(Spoil::SilentAt(_)));
            let times = if holds && one.target != Target::Watches {
                // Or else nobody is left to do anything until it is over.
                Times::Next(dice.u64(1..4))
            } else {
                Times::Chance {
                    percent: dice.u8(5..60),
                    seed: dice.u64(..),
                }
            };
            Some((one, times))
        });
        Self {
            weather: weather.collect(),
            event: match dice.u8(..10) {
                0 => Event::Cut,
                1 => Event::Slow,
                2 => Event::ApiserverKilled,
                3 => Event::ApiserverPaused,
                4 => Event::EtcdKilled,
                5 => Event::Restart,
                6 => Event::ClockBack,
                _ => Event::Nothing,
            },
        }
    }
}

/// Lets something happen. What is stopped runs again when this returns.
async fn happen(mut course: Course, event: Event) -> Result<Course> {
    match event {
        // The line is slow from the beginning.
        Event::Nothing | Event::Slow => {}
        Event::Cut => course.proxy.reset(),
        Event::ApiserverKilled => {
            course.plane.apiserver().kill().await?;
            course.plane.apiserver().start().await?;
        }
        Event::ApiserverPaused => {
            let before = course.proxy.accepted();
            course.plane.apiserver().pause()?;
            course.proxy.reset();
            // Those that are opened anew hang.
            eventually(LIMIT, "connections to hang", async || {
                let anew = course.proxy.accepted() - before;
                ensure!(anew >= HANGING, "{anew} connections");
                anyhow::Ok(())
            })
            .await?;
            course.plane.apiserver().resume()?;
        }
        Event::EtcdKilled => {
            course.plane.etcd().kill().await?;
            course.plane.etcd().start().await?;
        }
        Event::Restart => course = course.restart().await?,
        Event::ClockBack => course.turn_back_and_on().await?,
    }
    Ok(course)
}

/// Returns how many requests met a fault.
async fn play(mut course: Course, seed: u64) -> Result<(Course, u64)> {
    let forecast = Forecast::of(seed);
    println!("seed {seed}: {forecast:?}");
    let come = |(weather, times): &(Weather, Times)| weather.come(&course.proxy, *times);
    let met: Vec<Counter> = forecast.weather.iter().map(come).collect();
    if matches!(forecast.event, Event::Slow) {
        course.proxy.slow(LATE);
    }
    course.work.wave().await?;
    course = happen(course, forecast.event).await?;
    for (met, (weather, times)) in met.iter().zip(&forecast.weather) {
        // One in twenty of few requests may be none, and of two faults for the same requests the first acts.
        if let Times::Next(count) = times
            && forecast.weather.len() == 1
        {
            let answered = met.until_answered(*count, LIMIT).await;
            answered.with_context(|| format!("{weather:?}"))?;
        }
    }
    course.proxy.heal();
    course.judge().await?;
    Ok((course, met.iter().map(Counter::answered).sum()))
}

fn number(variable: &str, default: u64) -> Result<u64> {
    match env::var(variable) {
        Ok(number) if !number.is_empty() => number.parse().with_context(|| format!("{variable} is a number")),
        _ => Ok(default),
    }
}

#[tokio::test]
async fn faults_in_random_combinations_are_made_up_for() -> Result<()> {
    let (first, rounds) = (number("SEED", 1)?, number("ROUNDS", ROUNDS)?);
    let mut course = Course::start().await?;
    let mut faults = 0;
    for seed in first..first.saturating_add(rounds) {
        let played = play(course, seed).await;
        let (same, again) = (seed - first + 1, "plays it again");
        let met;
        (course, met) = played.with_context(|| {
            format!(
                "seed {seed}: SEED={seed} ROUNDS=1 {again}, SEED={first} ROUNDS={same} with all that came before it"
            )
        })?;
        println!("seed {seed}: {met} requests met a fault");
        faults += met;
    }
    ensure!(faults > 0, "nothing was disturbed");
    course.finish().await
}
