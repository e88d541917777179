//! Combinations of faults, each determined by a seed. The first rounds contain every fault; those
//! after them are random.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::{CustomResourceExt, api::PostParams};
use portreeve_foo::api::Foo;
use portreeve_testing::{CannedResponse, Fault, FaultProxy, Matcher, Repeat, eventually};
use serde_json::json;

use super::{
    credentials::{TokenFile, count_of, is_forbidden, revoke},
    scenario::{STRICT, Scenario},
    schemas::{self, UndecodableObject},
};
use crate::{
    faults::{
        requests::{self, FaultCounters, RequestFault, Target, expire_watches},
        servers::ServerFault,
    },
    fixtures::{LIMIT, manifests::loose, rounds::number},
    profile::Reads,
};

/// The number of rounds in `make test`, where each lane plays one. `make test-release` plays those
/// that contain every fault.
const ROUNDS: u64 = 2;
/// The number of rounds after which each disruption and each fault of a request has occurred.
const EVERY_FAULT: u64 = DISRUPTIONS.len() as u64;
/// The number of these rounds with a fault of lists. The others have one of reads.
const ROUNDS_WITH_LISTS: usize = 8;
/// The delay of all data on a slow connection.
const DELAY: Duration = Duration::from_millis(150);
/// The number of connections to a paused apiserver that must hang before it is resumed.
const HANGING_CONNECTIONS: u64 = 5;

/// The disruption of a round, in addition to the faults of single requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disruption {
    Cut,
    Slow,
    Servers(ServerFault),
    ApiserverPaused,
    Restart,
    ClockBack,
    Pages,
    Permissions,
    Crd,
    DaemonKilled,
    Token,
}

impl Disruption {
    /// Returns whether the apiserver rejects all requests for a while, because of the credentials
    /// or because it has just started.
    fn forbids(self) -> bool {
        match self {
            Self::Servers(fault) => fault.forbids(),
            Self::Permissions | Self::Token => true,
            _ => false,
        }
    }

    /// Returns whether the disruption replaces the daemon.
    fn replaces(self) -> bool {
        matches!(self, Self::Restart | Self::DaemonKilled)
    }
}

/// The disruptions in the order of seeds.
const DISRUPTIONS: [Disruption; 14] = [
    Disruption::Cut,
    Disruption::Slow,
    Disruption::Servers(ServerFault::ApiserverKilled),
    Disruption::ApiserverPaused,
    Disruption::Servers(ServerFault::EtcdKilled),
    Disruption::Servers(ServerFault::BothKilled),
    Disruption::Servers(ServerFault::Compaction),
    Disruption::Restart,
    Disruption::ClockBack,
    Disruption::Pages,
    Disruption::Permissions,
    Disruption::Crd,
    Disruption::DaemonKilled,
    Disruption::Token,
];

/// The faults and the disruption that a seed determines.
#[derive(Debug)]
struct RoundPlan {
    faults: Vec<(RequestFault, Repeat)>,
    disruption: Disruption,
}

impl RoundPlan {
    /// Plans a fault of writes, one of watches, and one of lists or reads. The first rounds take
    /// every fault in turn.
    fn of(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let number = usize::try_from(seed).unwrap_or_default();
        let round = number % DISRUPTIONS.len();
        let disruption = DISRUPTIONS[round];
        let (third, index) = match round.checked_sub(ROUNDS_WITH_LISTS) {
            None => (Target::Lists, round),
            Some(index) => (Target::Reads(Reads::InEachWave), index),
        };
        let targets = [(Target::Writes, round), (Target::Watches, round), (third, index)];
        let faults = targets.into_iter().map(|(target, index)| {
            let all: Vec<_> = faults_of(target).collect();
            let index = if seed <= EVERY_FAULT { index } else { rng.usize(..) };
            let request_fault = all[index % all.len()].clone();
            let times = if request_fault.blocks() {
                // More than one blocked request could block all workers until the fault is healed.
                Repeat::Next(1)
            } else if disruption.replaces() && matches!(target, Target::Reads(_) | Target::Lists) {
                // More than three failures could keep the new daemon from becoming ready until the
                // fault is healed.
                Repeat::Next(3)
            } else {
                Repeat::Chance {
                    percent: rng.u8(40..80),
                    seed: rng.u64(..),
                }
            };
            (request_fault, times)
        });
        let faults = faults.collect();
        Self { faults, disruption }
    }
}

/// Returns the faults of these requests.
fn faults_of(target: Target) -> impl Iterator<Item = RequestFault> {
    requests::all().into_iter().filter(move |fault| fault.target == target)
}

#[test]
fn the_first_rounds_contain_every_fault() -> Result<()> {
    let planned: Vec<_> = (1..=EVERY_FAULT).flat_map(|seed| RoundPlan::of(seed).faults).collect();
    for fault in requests::all() {
        let is_planned = planned.iter().any(|(planned, _)| *planned == fault);
        ensure!(is_planned, "no round has {fault:?}");
    }
    Ok(())
}

/// The scenario of a test, with the token of its daemon.
struct RandomEnvironment {
    scenario: Scenario,
    file: TokenFile,
}

impl RandomEnvironment {
    async fn new() -> Result<Self> {
        let (scenario, file) = TokenFile::start(STRICT).await?;
        Ok(Self { scenario, file })
    }
}

/// Injects a disruption. Servers that it stops run again when this returns. An undecodable object
/// exists until the caller deletes it.
async fn inject(
    environment: RandomEnvironment,
    disruption: Disruption,
) -> Result<(RandomEnvironment, Option<UndecodableObject>)> {
    let RandomEnvironment { mut scenario, mut file } = environment;
    let mut bad = None;
    match disruption {
        // `inject_faults` has injected these already.
        Disruption::Slow | Disruption::Pages => {}
        Disruption::Cut => scenario.proxy.reset(),
        Disruption::Servers(fault) => fault.inject(&scenario.plane).await?,
        Disruption::ApiserverPaused => {
            let before = scenario.proxy.accepted();
            scenario.plane.apiserver().pause()?;
            scenario.proxy.reset();
            // New connections hang.
            eventually(LIMIT, "hanging connections", async || {
                let opened = scenario.proxy.accepted() - before;
                ensure!(opened >= HANGING_CONNECTIONS, "only {opened} connections were opened");
                anyhow::Ok(())
            })
            .await?;
            scenario.plane.apiserver().resume()?;
        }
        Disruption::Restart => scenario = scenario.restart().await?,
        Disruption::DaemonKilled => scenario = scenario.kill().await?,
        Disruption::ClockBack => scenario.set_clock_back_and_forth().await?,
        Disruption::Permissions => revoke_and_grant_permissions(&scenario).await?,
        Disruption::Crd => bad = Some(recreate_crd(&mut scenario).await?),
        Disruption::Token => replace_token(&scenario, &mut file).await?,
    }
    Ok((RandomEnvironment { scenario, file }, bad))
}

async fn revoke_and_grant_permissions(scenario: &Scenario) -> Result<()> {
    revoke(scenario).await?;
    scenario.proxy.reset();
    let forbidden = [r#"code="403""#];
    let daemon = &scenario.daemon;
    daemon
        .wait_for_more("rest_client_requests_total", &forbidden, LIMIT)
        .await?;
    scenario.account.grant().await
}

/// Recreates the CRD of Foo with a schema that accepts anything, and creates an undecodable
/// Foo.
async fn recreate_crd(scenario: &mut Scenario) -> Result<UndecodableObject> {
    let crds = schemas::delete(scenario, &Foo::crd()).await?;
    crds.create(&PostParams::default(), &loose(&Foo::crd())?).await?;
    let bad = UndecodableObject::create::<Foo>(scenario, &json!({"deploymentName": 7})).await?;
    scenario.work.wave_of(portreeve_foo::DESCRIPTOR.name).await?;
    Ok(bad)
}

async fn replace_token(scenario: &Scenario, file: &mut TokenFile) -> Result<()> {
    file.expire(scenario).await?;
    let before = count_of(scenario, "200").await?;
    file.renew().await?;
    // The client reads the token file once a minute.
    eventually(LIMIT, "the new token to be used", || async {
        ensure!(count_of(scenario, "200").await? > before, "no request succeeded since");
        anyhow::Ok(())
    })
    .await
}

/// Injects the faults that are active during a whole round.
fn inject_faults(scenario: &Scenario, round_plan: &RoundPlan) -> Vec<FaultCounters> {
    let proxy = &scenario.proxy;
    if round_plan.disruption == Disruption::Pages {
        let some = Repeat::Chance { percent: 20, seed: 1 };
        proxy.respond(Matcher::later_pages(), CannedResponse::internal_error(), some);
        expire_watches(proxy);
        proxy.fault(Matcher::lists(), Fault::LimitPageSize(2), Repeat::UntilHealed);
    }
    let faults = round_plan.faults.iter();
    let counters = faults
        .map(|(request_fault, times)| request_fault.inject(proxy, *times))
        .collect();
    if round_plan.disruption == Disruption::Slow {
        proxy.slow(DELAY);
    }
    counters
}

/// Returns the number of requests that a fault affected.
fn affected_requests(counters: &FaultCounters) -> u64 {
    counters.iter().map(|(_, fault)| fault.applied()).sum()
}

/// Waits until the faults of watches and writes have affected a request. A round need not list or
/// read anything.
async fn wait_until_applied(proxy: &FaultProxy, round_plan: &RoundPlan, counters: &[FaultCounters]) -> Result<()> {
    let all = || {
        round_plan
            .faults
            .iter()
            .map(|(request_fault, _)| request_fault)
            .zip(counters)
    };
    let until = async |target: Target| {
        for (request_fault, counters) in all().filter(|(request_fault, _)| request_fault.target == target) {
            let some = async || (affected_requests(counters) > 0).then_some(());
            eventually(LIMIT, &format!("{request_fault:?} to affect a request"), some).await?;
        }
        anyhow::Ok(())
    };
    until(Target::Watches).await?;
    // A controller whose watches are disturbed may write nothing, so heal all other faults first.
    let others = all().filter(|(request_fault, _)| request_fault.target != Target::Writes);
    for (_, fault) in others.flat_map(|(_, counters)| counters) {
        proxy.heal_one(fault);
    }
    until(Target::Writes).await
}

/// Runs a round. Returns the number of requests that a fault affected.
async fn run_round(mut environment: RandomEnvironment, seed: u64) -> Result<(RandomEnvironment, u64)> {
    let round_plan = RoundPlan::of(seed);
    println!("seed {seed}: {round_plan:?}");
    let counters = inject_faults(&environment.scenario, &round_plan);
    environment.scenario.work.wave().await?;
    let (environment, bad) = inject(environment, round_plan.disruption).await?;
    let scenario = &environment.scenario;
    wait_until_applied(&scenario.proxy, &round_plan, &counters).await?;
    scenario.proxy.heal();
    if let Some(bad) = bad {
        bad.wait_until_reported(scenario).await?;
        bad.delete().await?;
    }
    // Without a valid token, watches may be stale for up to a minute.
    let is_stale = |line: &str| round_plan.disruption == Disruption::Token && line.contains("stale");
    let is_expected = |line: &str| round_plan.disruption.forbids() && is_forbidden(line) || is_stale(line);
    scenario.verify_with_failing_checks(is_expected).await?;
    Ok((environment, counters.iter().map(affected_requests).sum()))
}

#[tokio::test]
async fn the_cluster_recovers_from_combinations_of_all_faults_0() -> Result<()> {
    run_rounds(0).await
}

#[tokio::test]
async fn the_cluster_recovers_from_combinations_of_all_faults_1() -> Result<()> {
    run_rounds(1).await
}

/// Runs every second round, so that two tests share the time. Each test has its own cluster.
async fn run_rounds(lane: u64) -> Result<()> {
    let (first, rounds) = (number("SEED", 1)?, number("ROUNDS", ROUNDS)?);
    let mut seeds = (first..first.saturating_add(rounds))
        .filter(|seed| seed % 2 == lane)
        .peekable();
    if seeds.peek().is_none() {
        return Ok(());
    }
    let mut environment = RandomEnvironment::new().await?;
    for seed in seeds {
        let began = Instant::now();
        let result = Box::pin(run_round(environment, seed)).await;
        let (same, again) = (seed - first + 1, "reproduces the round");
        let affected;
        (environment, affected) = result.with_context(|| {
            format!(
                "seed {seed}: SEED={seed} ROUNDS=1 {again}, SEED={first} ROUNDS={same} also plays the rounds before it"
            )
        })?;
        println!("seed {seed}: {affected} requests met a fault, {:?}", began.elapsed());
    }
    let ended = environment.scenario.finish().await;
    ended.with_context(|| format!("SEED={first} ROUNDS={rounds} reproduces the failure"))
}
