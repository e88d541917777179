//! One Lease that Portreeve and client-go's elector hold in turn.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::LeaseSpec, rbac::v1::PolicyRule};
use portreeve_testing::{Process, Signal, server_binary};

use super::{
    crash::ensure_no_steal,
    environment::{GO, HaEnvironment, LEASE, PODS, Timing},
};
use crate::{
    audit::{AuditLog, report::Report, terms::Term},
    fixtures::LIMIT,
};

/// Timing with a retry period that is much longer than a handover that does not wait for it.
const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(12),
    retry_period: Duration::from_secs(6),
};
/// The maximum time from a release to the acquisition by a standby that watches the Lease. It is
/// shorter than the retry period at which other standbys poll. A handover takes a few milliseconds;
/// the rest allows for busy machines.
const HANDOVER_LIMIT: Duration = Duration::from_secs(5);

/// A process that only runs client-go's elector: `hack/leaderelection`.
struct Peer {
    process: Process,
}

impl Peer {
    /// Starts the candidate, which releases the Lease when it gets SIGTERM.
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

    async fn wait_for_output(&self, what: &str) -> Result<()> {
        self.process.wait_for_log(LIMIT, |line| line.starts_with(what)).await?;
        Ok(())
    }
}

/// Returns the present spec of the Lease.
async fn spec(environment: &HaEnvironment) -> Result<LeaseSpec> {
    let lease = environment.lease().await?.context("there is no Lease")?;
    lease.spec.context("the Lease has no spec")
}

/// Ensures that the Lease's fields have the values that every candidate expects from this holder.
fn ensure_held(spec: &LeaseSpec, pod: &str, transitions: i32, environment: &HaEnvironment) -> Result<()> {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    ensure!(holder.starts_with(&format!("{pod}_")), "{spec:?}");
    ensure!(spec.lease_transitions == Some(transitions), "{spec:?}");
    let lease = i32::try_from(environment.timing.lease.as_secs())?;
    ensure!(spec.lease_duration_seconds == Some(lease), "{spec:?}");
    let (acquired, renewed) = (&spec.acquire_time, &spec.renew_time);
    let times = acquired
        .as_ref()
        .zip(renewed.as_ref())
        .context("the Lease has no times")?;
    ensure!(times.0.0 <= times.1.0, "{spec:?}");
    Ok(())
}

/// Returns the pods of all terms, in order.
fn holders(report: &Report) -> Vec<&str> {
    report.terms.iter().map(Term::pod).collect()
}

#[tokio::test]
async fn client_go_and_portreeve_take_over_one_lease_from_each_other() -> Result<()> {
    let environment = HaEnvironment::with_timing("peers", TIMING).await?;
    let ours = PODS[0];

    let go = Peer::start(&environment).await?;
    go.wait_for_output("started leading").await?;
    ensure_held(&spec(&environment).await?, GO, 0, &environment)?;
    let daemon = environment.replica(ours).await?;
    ensure!(environment.holder().await? == GO, "the standby took the Lease");

    // When client-go releases the Lease, Portreeve acquires it at once.
    go.process.signal(Signal::TERM)?;
    go.wait_for_output("stopped leading").await?;
    environment
        .wait_for_holder("Portreeve to lead", |holder| holder == ours)
        .await?;
    ensure_held(&spec(&environment).await?, ours, 1, &environment)?;
    environment.fixture.ready_foo("web", 1).await?;

    // When Portreeve releases the Lease, client-go acquires it after its retry period.
    let go = Peer::start(&environment).await?;
    go.wait_for_output("new leader replica-a_").await?;
    daemon.process.signal(Signal::TERM)?;
    go.wait_for_output("started leading").await?;
    ensure!(
        daemon.process.wait(LIMIT).await?.code() == Some(0),
        "{}",
        daemon.process.log_tail()
    );
    ensure_held(&spec(&environment).await?, GO, 2, &environment)?;

    // When client-go's candidate is killed, Portreeve waits for the lease to expire.
    let daemon = environment.replica(ours).await?;
    go.process.signal(Signal::KILL)?;
    environment
        .wait_for_holder("Portreeve to lead again", |holder| holder == ours)
        .await?;
    ensure_held(&spec(&environment).await?, ours, 3, &environment)?;
    environment.fixture.ready_foo("shop", 1).await?;

    // When Portreeve is killed, client-go waits for the lease to expire.
    let go = Peer::start(&environment).await?;
    go.wait_for_output("new leader replica-a_").await?;
    daemon.process.signal(Signal::KILL)?;
    go.wait_for_output("started leading").await?;
    ensure_held(&spec(&environment).await?, GO, 4, &environment)?;

    let report = environment.check()?;
    for (former, next) in report.successions().filter(|(former, _)| former.is_released) {
        let after = former.ended.map(|ended| next.acquired.duration_since(ended));
        let after = after.context("the Lease was not released")?.as_millis();
        // Our standby watches the Lease; client-go's standby polls it every retry period.
        ensure!(
            next.pod() == GO || after < HANDOVER_LIMIT.as_millis().try_into()?,
            "{report}"
        );
    }
    ensure!(report.is_clean(), "{report}");
    ensure!(holders(&report) == [GO, ours, GO, ours, GO], "{report}");
    ensure!(report.terms.iter().take(2).all(|term| term.is_released), "{report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    ensure_micro_times(&environment)
}

/// Ensures that Portreeve writes times as client-go does, in UTC with microseconds. The audit log
/// shows them; a read would not, because the apiserver formats them itself.
fn ensure_micro_times(environment: &HaEnvironment) -> Result<()> {
    let sender = environment.sender(PODS[0]);
    let events = AuditLog::of(&environment.plane)?.events_containing(PODS[0], 0)?;
    let mut seen = 0;
    for event in events.iter().filter(|event| event.user.sender() == sender) {
        let spec = &event.request_object["spec"];
        for time in ["acquireTime", "renewTime"]
            .iter()
            .filter_map(|field| spec[field].as_str())
        {
            let digits = time.strip_suffix('Z').and_then(|time| time.rsplit_once('.'));
            ensure!(digits.is_some_and(|(_, digits)| digits.len() == 6), "{time}");
            seen += 1;
        }
    }
    ensure!(seen > 0, "Portreeve wrote no times");
    Ok(())
}
