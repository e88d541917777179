//! Faults together, as a seed has it.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use kube::{CustomResourceExt, api::PostParams};
use portreeve_api::Foo;
use portreeve_testing::{CannedResponse, Fault, FaultProxy, Matcher, Repeat, eventually};
use serde_json::json;

use super::{
    credentials::{TokenFile, count_of, is_forbidden, revoke},
    faults::{self, FaultCounters, RequestFault, Target},
    scenario::{STRICT, Scenario},
    schemas::{self, UndecodableObject},
};
use crate::{
    support::{LIMIT, SETTLED},
    undecodable::loose,
};

/// As many rounds as `make test` plays: each event comes once.
const ROUNDS: u64 = DISRUPTIONS.len() as u64;
/// How late everything is on a slow line.
const LATE: Duration = Duration::from_millis(150);
/// How many connections hang at a paused apiserver before it goes on.
const HANGING: u64 = 5;

/// What happens besides, in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disruption {
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

impl Disruption {
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
const DISRUPTIONS: [Disruption; 14] = [
    Disruption::Cut,
    Disruption::Slow,
    Disruption::ApiserverKilled,
    Disruption::ApiserverPaused,
    Disruption::EtcdKilled,
    Disruption::BothKilled,
    Disruption::Compaction,
    Disruption::Restart,
    Disruption::ClockBack,
    Disruption::Pages,
    Disruption::Rights,
    Disruption::Definition,
    Disruption::Death,
    Disruption::Token,
];

/// What a seed has in store: some faults, what else happens, and the odds.
#[derive(Debug)]
struct RoundPlan {
    faults: Vec<(RequestFault, Repeat)>,
    event: Disruption,
}

impl RoundPlan {
    /// Writes and watches are always met by something, lists and reads half of the time.
    fn of(seed: u64) -> Self {
        let mut dice = fastrand::Rng::with_seed(seed);
        let event = DISRUPTIONS[usize::try_from(seed).unwrap_or_default() % DISRUPTIONS.len()];
        let mut targets = vec![Target::Writes, Target::Watches];
        targets.extend([Target::Reads, Target::Lists].into_iter().filter(|_| dice.bool()));
        let faults = targets.into_iter().filter_map(|target| {
            let mut all = faults::all();
            all.retain(|request_fault| request_fault.target == target);
            let one = dice.choice(all)?;
            let times = if one.holds() {
                // Or else nobody is left to do anything until it is over.
                Repeat::Next(1)
            } else if event.replaces() && matches!(target, Target::Reads | Target::Lists) {
                // Or else the new one may not be ready until it is over.
                Repeat::Next(3)
            } else {
                Repeat::Chance {
                    percent: dice.u8(40..80),
                    seed: dice.u64(..),
                }
            };
            Some((one, times))
        });
        let faults = faults.collect();
        Self { faults, event }
    }
}

/// What is played with.
struct RandomEnvironment {
    scenario: Scenario,
    file: TokenFile,
}

impl RandomEnvironment {
    async fn set() -> Result<Self> {
        let (scenario, file) = TokenFile::start(STRICT).await?;
        Ok(Self { scenario, file })
    }
}

/// Lets something happen. What is stopped runs again when this returns. What nobody can read is there until it is healed.
async fn inject(
    environment: RandomEnvironment,
    event: Disruption,
) -> Result<(RandomEnvironment, Option<UndecodableObject>)> {
    let RandomEnvironment { mut scenario, mut file } = environment;
    let mut bad = None;
    match event {
        // They are there from the beginning.
        Disruption::Slow | Disruption::Pages => {}
        Disruption::Cut => scenario.proxy.reset(),
        Disruption::ApiserverKilled => {
            scenario.plane.apiserver().kill().await?;
            scenario.plane.apiserver().start().await?;
        }
        Disruption::ApiserverPaused => {
            let before = scenario.proxy.accepted();
            scenario.plane.apiserver().pause()?;
            scenario.proxy.reset();
            // Those that are opened anew hang.
            eventually(SETTLED, "connections to hang", async || {
                let anew = scenario.proxy.accepted() - before;
                ensure!(anew >= HANGING, "{anew} connections");
                anyhow::Ok(())
            })
            .await?;
            scenario.plane.apiserver().resume()?;
        }
        Disruption::EtcdKilled => {
            scenario.plane.etcd().kill().await?;
            scenario.plane.etcd().start().await?;
        }
        Disruption::BothKilled => {
            scenario.plane.etcd().kill().await?;
            scenario.plane.apiserver().kill().await?;
            scenario.plane.etcd().start().await?;
            scenario.plane.apiserver().start().await?;
        }
        Disruption::Compaction => {
            scenario.plane.compact().await?;
            scenario.plane.apiserver().kill().await?;
            scenario.plane.apiserver().start().await?;
        }
        Disruption::Restart => scenario = scenario.restart().await?,
        Disruption::Death => scenario = scenario.kill().await?,
        Disruption::ClockBack => scenario.turn_back_and_on().await?,
        Disruption::Rights => give_rights_anew(&scenario).await?,
        Disruption::Definition => bad = Some(define_anew(&mut scenario).await?),
        Disruption::Token => give_a_token_anew(&scenario, &mut file).await?,
    }
    Ok((RandomEnvironment { scenario, file }, bad))
}

async fn give_rights_anew(scenario: &Scenario) -> Result<()> {
    revoke(scenario).await?;
    scenario.proxy.reset();
    let refused = [r#"code="403""#];
    let daemon = &scenario.daemon;
    daemon
        .wait_for_more("rest_client_requests_total", &refused, SETTLED)
        .await?;
    scenario.account.grant().await
}

/// Foos are defined anew, and by another schema, which lets one through that nobody can read.
async fn define_anew(scenario: &mut Scenario) -> Result<UndecodableObject> {
    let definitions = schemas::delete(scenario, &Foo::crd()).await?;
    scenario.work.forget_foos();
    definitions.create(&PostParams::default(), &loose(&Foo::crd())?).await?;
    let bad = UndecodableObject::create::<Foo>(scenario, &json!({"deploymentName": 7})).await?;
    scenario.work.foos().await?;
    Ok(bad)
}

async fn give_a_token_anew(scenario: &Scenario, file: &mut TokenFile) -> Result<()> {
    file.expire(scenario).await?;
    let before = count_of(scenario, "200").await?;
    file.renew().await?;
    // A file is read again each minute.
    eventually(SETTLED + LIMIT, "the new token to be taken", || async {
        ensure!(count_of(scenario, "200").await? > before, "nothing was answered");
        anyhow::Ok(())
    })
    .await
}

/// What is there from the beginning of a round to its end.
fn inject_faults(scenario: &Scenario, round_plan: &RoundPlan) -> Vec<FaultCounters> {
    let proxy = &scenario.proxy;
    if round_plan.event == Disruption::Pages {
        let some = Repeat::Chance { percent: 20, seed: 1 };
        proxy.respond(Matcher::later_pages(), CannedResponse::internal_error(), some);
        faults::expire_watches(proxy);
        proxy.fault(Matcher::lists(), Fault::LimitPageSize(2), Repeat::UntilHealed);
    }
    let faults = round_plan.faults.iter();
    let met = faults
        .map(|(request_fault, times)| request_fault.inject(proxy, *times))
        .collect();
    if round_plan.event == Disruption::Slow {
        proxy.slow(LATE);
    }
    met
}

/// How many requests one fault has met.
fn disturbed(met: &FaultCounters) -> u64 {
    met.iter().map(|(_, fault)| fault.applied()).sum()
}

/// Waits until some watches and some writes have met what was in store for them. Nobody has to list or to read.
async fn until_met(proxy: &FaultProxy, round_plan: &RoundPlan, met: &[FaultCounters]) -> Result<()> {
    let all = || {
        round_plan
            .faults
            .iter()
            .map(|(request_fault, _)| request_fault)
            .zip(met)
    };
    let until = async |target: Target| {
        for (request_fault, met) in all().filter(|(request_fault, _)| request_fault.target == target) {
            let some = async || (disturbed(met) > 0).then_some(());
            eventually(SETTLED, &format!("{request_fault:?} to meet some"), some).await?;
        }
        anyhow::Ok(())
    };
    until(Target::Watches).await?;
    // Who is kept from hearing what there is to do writes nothing.
    let others = all().filter(|(request_fault, _)| request_fault.target != Target::Writes);
    for (_, fault) in others.flat_map(|(_, met)| met) {
        proxy.heal_one(fault);
    }
    until(Target::Writes).await
}

/// Returns how many requests met a fault.
async fn play(mut environment: RandomEnvironment, seed: u64) -> Result<(RandomEnvironment, u64)> {
    let round_plan = RoundPlan::of(seed);
    println!("seed {seed}: {round_plan:?}");
    let met = inject_faults(&environment.scenario, &round_plan);
    environment.scenario.work.wave().await?;
    let (environment, bad) = inject(environment, round_plan.event).await?;
    let scenario = &environment.scenario;
    until_met(&scenario.proxy, &round_plan, &met).await?;
    scenario.proxy.heal();
    if let Some(bad) = bad {
        bad.wait_until_reported(scenario).await?;
        bad.delete().await?;
    }
    // Without a token nobody hears anything for up to a minute.
    let is_stale = |line: &str| round_plan.event == Disruption::Token && line.contains("stale");
    let is_meant = |line: &str| round_plan.event.forbids() && is_forbidden(line) || is_stale(line);
    scenario.verify_with_failing_checks(is_meant).await?;
    Ok((environment, met.iter().map(disturbed).sum()))
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
    let mut environment = RandomEnvironment::set().await?;
    for seed in first..first.saturating_add(rounds) {
        let began = Instant::now();
        let played = play(environment, seed).await;
        let (same, again) = (seed - first + 1, "plays it again");
        let met;
        (environment, met) = played.with_context(|| {
            format!(
                "seed {seed}: SEED={seed} ROUNDS=1 {again}, SEED={first} ROUNDS={same} with all that came before it"
            )
        })?;
        println!("seed {seed}: {met} requests met a fault, {:?}", began.elapsed());
    }
    let ended = environment.scenario.finish().await;
    ended.with_context(|| format!("SEED={first} ROUNDS={rounds} plays it again"))
}
