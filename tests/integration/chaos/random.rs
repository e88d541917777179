//! Faults together, as a seed has it.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{CustomResourceExt, api::PostParams};
use portreeve_api::Foo;
use portreeve_testing::{Canned, Fault, FaultProxy, Matcher, Times, eventually};
use serde_json::json;

use super::{
    course::{Course, STRICT},
    credentials::{TokenFile, count_of, is_forbidden, revoke},
    schemas::{self, Bad},
    weather::{self, Met, Target, Weather},
};
use crate::{
    support::{LIMIT, SETTLED},
    undecodable::loose,
};

/// As many rounds as `make test` plays: each event comes once.
const ROUNDS: u64 = EVENTS.len() as u64;
/// How late everything is on a slow line.
const LATE: Duration = Duration::from_millis(150);
/// How many connections hang at a paused apiserver before it goes on.
const HANGING: u64 = 5;

/// What happens besides, in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Cut,
    Slow,
    ApiserverKilled,
    ApiserverPaused,
    EtcdKilled,
    BothKilled,
    Compaction,
    Restart,
    ClockBack,
    Pages,
    Rights,
    Definition,
    Death,
    Token,
}

impl Event {
    /// Whether the apiserver refuses everything for a while: by what it is told, or because it has just been started.
    fn forbids(self) -> bool {
        matches!(
            self,
            Self::Rights | Self::Token | Self::ApiserverKilled | Self::BothKilled | Self::Compaction
        )
    }

    /// Whether there is another daemon after it.
    fn replaces(self) -> bool {
        matches!(self, Self::Restart | Self::Death)
    }
}

/// In the order of seeds.
const EVENTS: [Event; 14] = [
    Event::Cut,
    Event::Slow,
    Event::ApiserverKilled,
    Event::ApiserverPaused,
    Event::EtcdKilled,
    Event::BothKilled,
    Event::Compaction,
    Event::Restart,
    Event::ClockBack,
    Event::Pages,
    Event::Rights,
    Event::Definition,
    Event::Death,
    Event::Token,
];

/// What a seed has in store: some weather, what else happens, and the odds.
#[derive(Debug)]
struct Forecast {
    weather: Vec<(Weather, Times)>,
    event: Event,
}

impl Forecast {
    /// Writes and watches are always met by something, lists and reads half of the time.
    fn of(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let event = EVENTS[usize::try_from(seed).unwrap_or_default() % EVENTS.len()];
        let mut targets = vec![Target::Writes, Target::Watches];
        targets.extend([Target::Reads, Target::Lists].into_iter().filter(|_| dice.bool()));
        let weather = targets.into_iter().filter_map(|target| {
            let mut all = weather::all();
            all.retain(|weather| weather.target == target);
            let one = dice.choice(all)?;
            let times = if one.holds() {
                // Or else nobody is left to do anything until it is over.
                Times::Next(1)
            } else if event.replaces() && matches!(target, Target::Reads | Target::Lists) {
                // Or else the new one may not be ready until it is over.
                Times::Next(3)
            } else {
                Times::Chance {
                    percent: dice.u8(40..80),
                    seed: dice.u64(..),
                }
            };
            Some((one, times))
        });
        let weather = weather.collect();
        Self { weather, event }
    }
}

/// What is played with.
struct Stage {
    course: Course,
    file: TokenFile,
}

impl Stage {
    async fn set() -> Result<Self> {
        let (course, file) = TokenFile::start(STRICT).await?;
        Ok(Self { course, file })
    }
}

/// Lets something happen. What is stopped runs again when this returns. What nobody can read is there until it is healed.
async fn happen(stage: Stage, event: Event) -> Result<(Stage, Option<Bad>)> {
    let Stage { mut course, mut file } = stage;
    let mut bad = None;
    match event {
        // They are there from the beginning.
        Event::Slow | Event::Pages => {}
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
            eventually(SETTLED, "connections to hang", async || {
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
        Event::BothKilled => {
            course.plane.etcd().kill().await?;
            course.plane.apiserver().kill().await?;
            course.plane.etcd().start().await?;
            course.plane.apiserver().start().await?;
        }
        Event::Compaction => {
            course.plane.compact().await?;
            course.plane.apiserver().kill().await?;
            course.plane.apiserver().start().await?;
        }
        Event::Restart => course = course.restart().await?,
        Event::Death => course = course.kill().await?,
        Event::ClockBack => course.turn_back_and_on().await?,
        Event::Rights => give_rights_anew(&course).await?,
        Event::Definition => bad = Some(define_anew(&mut course).await?),
        Event::Token => give_a_token_anew(&course, &mut file).await?,
    }
    Ok((Stage { course, file }, bad))
}

async fn give_rights_anew(course: &Course) -> Result<()> {
    revoke(course).await?;
    course.proxy.reset();
    let refused = [r#"code="403""#];
    let daemon = &course.daemon;
    daemon
        .wait_for_more("rest_client_requests_total", &refused, SETTLED)
        .await?;
    course.account.grant().await
}

/// Foos are defined anew, and by another schema, which lets one through that nobody can read.
async fn define_anew(course: &mut Course) -> Result<Bad> {
    let definitions = schemas::delete(course, &Foo::crd()).await?;
    course.work.forget_foos();
    definitions.create(&PostParams::default(), &loose(&Foo::crd())?).await?;
    let bad = Bad::create::<Foo>(course, &json!({"deploymentName": 7})).await?;
    course.work.foos().await?;
    Ok(bad)
}

async fn give_a_token_anew(course: &Course, file: &mut TokenFile) -> Result<()> {
    file.expire(course).await?;
    let before = count_of(course, "200").await?;
    file.renew().await?;
    // A file is read again each minute.
    eventually(SETTLED + LIMIT, "the new token to be taken", || async {
        ensure!(count_of(course, "200").await? > before, "nothing was answered");
        anyhow::Ok(())
    })
    .await
}

/// What is there from the beginning of a round to its end.
fn come(course: &Course, forecast: &Forecast) -> Vec<Met> {
    let proxy = &course.proxy;
    if forecast.event == Event::Pages {
        let some = Times::Chance { percent: 20, seed: 1 };
        proxy.answer(Matcher::later_pages(), Canned::internal_error(), some);
        weather::expire_watches(proxy);
        proxy.fault(Matcher::lists(), Fault::PagesOf(2), Times::UntilHealed);
    }
    let weather = forecast.weather.iter();
    let met = weather.map(|(weather, times)| weather.come(proxy, *times)).collect();
    if forecast.event == Event::Slow {
        proxy.slow(LATE);
    }
    met
}

/// How many requests one kind of weather has met.
fn disturbed(met: &Met) -> u64 {
    met.iter().map(|(_, fault)| fault.answered()).sum()
}

/// Waits until some watches and some writes have met what was in store for them. Nobody has to list or to read.
async fn until_met(proxy: &FaultProxy, forecast: &Forecast, met: &[Met]) -> Result<()> {
    let all = || forecast.weather.iter().map(|(weather, _)| weather).zip(met);
    let until = async |target: Target| {
        for (weather, met) in all().filter(|(weather, _)| weather.target == target) {
            let some = async || (disturbed(met) > 0).then_some(());
            eventually(SETTLED, &format!("{weather:?} to meet some"), some).await?;
        }
        anyhow::Ok(())
    };
    until(Target::Watches).await?;
    // Who is kept from hearing what there is to do writes nothing.
    let others = all().filter(|(weather, _)| weather.target != Target::Writes);
    for (_, fault) in others.flat_map(|(_, met)| met) {
        proxy.heal_one(fault);
    }
    until(Target::Writes).await
}

/// Returns how many requests met a fault.
async fn play(mut stage: Stage, seed: u64) -> Result<(Stage, u64)> {
    let forecast = Forecast::of(seed);
    println!("seed {seed}: {forecast:?}");
    let met = come(&stage.course, &forecast);
    stage.course.work.wave().await?;
    let (stage, bad) = happen(stage, forecast.event).await?;
    let course = &stage.course;
    until_met(&course.proxy, &forecast, &met).await?;
    course.proxy.heal();
    if let Some(bad) = bad {
        bad.until_named(course).await?;
        bad.delete().await?;
    }
    // Without a token nobody hears anything for up to a minute.
    let is_stale = |line: &str| forecast.event == Event::Token && line.contains("stale");
    let is_meant = |line: &str| forecast.event.forbids() && is_forbidden(line) || is_stale(line);
    course.judge_red(is_meant).await?;
    Ok((stage, met.iter().map(disturbed).sum()))
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
    let mut stage = Stage::set().await?;
    for seed in first..first.saturating_add(rounds) {
        let began = Instant::now();
        let played = play(stage, seed).await;
        let (same, again) = (seed - first + 1, "plays it again");
        let met;
        (stage, met) = played.with_context(|| {
            format!(
                "seed {seed}: SEED={seed} ROUNDS=1 {again}, SEED={first} ROUNDS={same} with all that came before it"
            )
        })?;
        println!("seed {seed}: {met} requests met a fault, {:?}", began.elapsed());
    }
    let ended = stage.course.finish().await;
    ended.with_context(|| format!("SEED={first} ROUNDS={rounds} plays it again"))
}
