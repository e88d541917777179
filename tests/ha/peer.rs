//! One Lease that Portreeve and client-go's elector hold in turn.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::LeaseSpec, rbac::v1::PolicyRule};
use portreeve_testing::{Process, Signal, server_binary};
use serde_json::Value;

use crate::{
    audit::{Report, Term},
    crash::ensure_no_steal,
    fixtures::{GO, HaEnvironment, LEASE, PODS, Timing, whole_lines},
    support::LIMIT,
};

/// With a retry period that a hand-over without one is told from.
const TIMING: Timing = Timing {
    lease: Duration::from_secs(8),
    renew_deadline: Duration::from_secs(6),
    retry_period: Duration::from_secs(2),
};
/// Less than a standby that looks once in a retry period would need. It takes some milliseconds; the rest is for machines that are
/// busy.
const AT_ONCE: Duration = Duration::from_millis(1_500);

/// A process that runs client-go's elector and does nothing else: `hack/leaderelection`.
struct Peer {
    process: Process,
}

impl Peer {
    /// Starts the candidate, which releases what it holds when it is asked to end.
    async fn start(environment: &HaEnvironment) -> Result<Self> {
        let list = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect::<Vec<_>>();
        let rule = PolicyRule {
            api_groups: Some(list(&["coordination.k8s.io"])),
            resources: Some(list(&["leases"])),
            verbs: list(&["create", "get", "update"]),
            ..PolicyRule::default()
        };
        let kubeconfig = environment.kubeconfig_with(GO, vec![rule]).await?;
        let timing = environment.timing;
        let flag = |name: &str, value: String| format!("--{name}={value}");
        let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
        let args = [
            flag("kubeconfig", kubeconfig.display().to_string()),
            flag("namespace", environment.system_namespace.name().to_owned()),
            flag("name", LEASE.to_owned()),
            flag("identity", format!("{GO}_1")),
            flag("lease-duration", milliseconds(timing.lease)),
            flag("renew-deadline", milliseconds(timing.renew_deadline)),
            flag("retry-period", milliseconds(timing.retry_period)),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let process = environment
            .plane
            .spawn(GO, &server_binary("leaderelection")?, &args, &[])?;
        Ok(Self { process })
    }

    async fn wait_until_it_says(&self, what: &str) -> Result<()> {
        self.process.wait_for_log(LIMIT, |line| line.starts_with(what)).await?;
        Ok(())
    }
}

/// What the Lease says now, all of it.
async fn spec(environment: &HaEnvironment) -> Result<LeaseSpec> {
    let lease = environment.lease().await?.context("there is a Lease")?;
    lease.spec.context("it has a spec")
}

/// Checks that a holder has left the Lease as every candidate expects it.
fn ensure_held(spec: &LeaseSpec, pod: &str, transitions: i32, environment: &HaEnvironment) -> Result<()> {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    ensure!(holder.starts_with(&format!("{pod}_")), "{spec:?}");
    ensure!(spec.lease_transitions == Some(transitions), "{spec:?}");
    let lease = i32::try_from(environment.timing.lease.as_secs())?;
    ensure!(spec.lease_duration_seconds == Some(lease), "{spec:?}");
    let (acquired, renewed) = (&spec.acquire_time, &spec.renew_time);
    let times = acquired.as_ref().zip(renewed.as_ref()).context("it says when")?;
    ensure!(times.0.0 <= times.1.0, "{spec:?}");
    Ok(())
}

/// The pods of all terms, in order.
fn holders(report: &Report) -> Vec<&str> {
    report.terms.iter().map(Term::pod).collect()
}

#[tokio::test]
async fn client_go_and_portreeve_hold_one_lease_in_turn() -> Result<()> {
    let environment = HaEnvironment::with_timing("peers", TIMING).await?;
    let ours = PODS[0];

    let go = Peer::start(&environment).await?;
    go.wait_until_it_says("started leading").await?;
    ensure_held(&spec(&environment).await?, GO, 0, &environment)?;
    let daemon = environment.replica(ours).await?;
    ensure!(environment.holder().await? == GO, "a standby took it");

    // Released by client-go, it is taken at once.
    go.process.signal(Signal::TERM)?;
    go.wait_until_it_says("stopped leading").await?;
    environment
        .wait_for_holder("Portreeve to lead", |holder| holder == ours)
        .await?;
    ensure_held(&spec(&environment).await?, ours, 1, &environment)?;
    environment.fixture.settled_foo("web", 1).await?;

    // Released by Portreeve, it is taken when client-go looks next.
    let go = Peer::start(&environment).await?;
    go.wait_until_it_says("new leader replica-a_").await?;
    daemon.process.signal(Signal::TERM)?;
    go.wait_until_it_says("started leading").await?;
    ensure!(
        daemon.process.wait(LIMIT).await?.code() == Some(0),
        "{}",
        daemon.process.log_tail()
    );
    ensure_held(&spec(&environment).await?, GO, 2, &environment)?;

    // Killed, client-go's candidate releases nothing.
    let daemon = environment.replica(ours).await?;
    go.process.signal(Signal::KILL)?;
    environment
        .wait_for_holder("Portreeve to lead again", |holder| holder == ours)
        .await?;
    ensure_held(&spec(&environment).await?, ours, 3, &environment)?;
    environment.fixture.settled_foo("shop", 1).await?;

    // And the other way round.
    let go = Peer::start(&environment).await?;
    go.wait_until_it_says("new leader replica-a_").await?;
    daemon.process.signal(Signal::KILL)?;
    go.wait_until_it_says("started leading").await?;
    ensure_held(&spec(&environment).await?, GO, 4, &environment)?;

    let report = environment.check()?;
    for (former, next) in report.successions().filter(|(former, _)| former.is_released) {
        let after = former.ended.map(|ended| next.acquired.duration_since(ended));
        let after = after.context("it was released")?.as_millis();
        println!(
            "{} took over {after} ms after the release by {}",
            next.pod(),
            former.pod()
        );
        // A standby of ours hears of it; client-go's looks again after its retry period, which it stretches by up to a fifth and then
        // some.
        ensure!(next.pod() == GO || after < AT_ONCE.as_millis().try_into()?, "{report}");
    }
    ensure!(report.is_clean(), "{report}");
    ensure!(holders(&report) == [GO, ours, GO, ours, GO], "{report}");
    ensure!(report.terms.iter().take(2).all(|term| term.is_released), "{report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    ensure_micro_times(&environment)
}

/// Portreeve writes times as client-go does: in UTC, with microseconds. A read would not show it, for the apiserver writes them anew.
fn ensure_micro_times(environment: &HaEnvironment) -> Result<()> {
    let mark = environment.audit_marker(PODS[0]);
    let log = whole_lines(&environment.plane)?;
    let mut seen = 0;
    for line in log.lines().filter(|line| line.contains(&mark)) {
        let event: Value = serde_json::from_str(line)?;
        let spec = &event["requestObject"]["spec"];
        for time in ["acquireTime", "renewTime"]
            .iter()
            .filter_map(|field| spec[field].as_str())
        {
            let digits = time.strip_suffix('Z').and_then(|time| time.rsplit_once('.'));
            ensure!(digits.is_some_and(|(_, digits)| digits.len() == 6), "{line}");
            seen += 1;
        }
    }
    ensure!(seen > 0, "Portreeve wrote no times");
    Ok(())
}
