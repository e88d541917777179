//! Leases that one or two replicas acquire, renew and release. `ha` runs three replicas under
//! faults.

mod other_namespace;
mod stuck;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use jiff::SignedDuration;
use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use portreeve_testing::{PooledPlane, Signal, eventually};
use serde_json::json;
use tokio::time::Instant;

use crate::fixtures::{
    LIMIT,
    admission_gate::AdmissionGate,
    daemon::{Daemon, EXPIRING_LEASE},
    definitions::plane_with_definitions,
    namespace::NamespaceFixture,
};

const LEASE_DURATION: Duration = Duration::from_secs(12);

/// A control plane for one test.
struct ElectionEnvironment {
    plane: PooledPlane,
    leases: Api<Lease>,
}

impl ElectionEnvironment {
    async fn new() -> Result<Self> {
        let plane = plane_with_definitions().await?;
        let leases = Api::namespaced(plane.client()?, "kube-system");
        Ok(Self { plane, leases })
    }

    async fn replica(&self, name: &str, flags: &[&str]) -> Result<Daemon> {
        let flags: Vec<_> = EXPIRING_LEASE
            .iter()
            .chain(&["--install-crds"])
            .chain(flags)
            .copied()
            .collect();
        Daemon::start(&self.plane, name, &flags).await
    }

    async fn holder(&self, lease: &str) -> Result<String> {
        let found = self.leases.get_opt(lease).await?;
        let holder = found.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder.unwrap_or_default())
    }

    /// Waits until another replica than `before` holds the Lease, and returns the new holder.
    async fn next_holder(&self, lease: &str, before: &str) -> Result<String> {
        eventually(LIMIT, &format!("another holder of {lease} than {before:?}"), || async {
            let holder = self.holder(lease).await?;
            ensure!(!holder.is_empty() && holder != before, "the holder is {holder:?}");
            anyhow::Ok(holder)
        })
        .await
    }

    /// Makes an identity without a process the holder of the Lease.
    async fn set_other_holder(&self, lease: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": "a-thief"}}));
        self.leases.patch(lease, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

#[tokio::test]
async fn the_lease_is_released_only_after_the_drain() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    // A held write ends after 10 s, which must be longer than the lease duration.
    let flags = [
        "--leader-elect-lease-duration=6s",
        "--leader-elect-renew-deadline=5s",
        "--leader-elect-retry-period=500ms",
        "--install-crds",
    ];
    let daemon = Daemon::start(&environment.plane, "draining", &flags).await?;
    let fixture = NamespaceFixture::new(&environment.plane, "draining").await?;
    let holder = environment.next_holder("portreeve", "").await?;
    daemon.admin.wait_until_ready().await?;
    let gate = AdmissionGate::close(&environment.plane, &fixture).await?;
    fixture.create_foo("web", "web", 1).await?;
    let write = gate.hold().await?;
    daemon.process.signal(Signal::TERM)?;
    daemon.wait_for_line(&["stopping"]).await?;
    // The drain takes longer than the lease duration, and the elector renews the Lease until the
    // drain ends.
    let renewed = environment.leases.get("portreeve").await?;
    eventually(LIMIT, "renewals during the drain", || async {
        let now = environment
            .leases
            .get("portreeve")
            .await?
            .spec
            .and_then(|spec| spec.renew_time);
        let then = renewed.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        let (now, then) = (now.context("no renew time")?.0, then.context("no renew time")?.0);
        ensure!(now.duration_since(then) > SignedDuration::from_secs(6), "{now}");
        anyhow::Ok(())
    })
    .await?;
    ensure!(
        environment.holder("portreeve").await? == holder,
        "the daemon released the Lease while a write was in flight"
    );
    ensure!(daemon.process.exit_status().is_none());
    drop(write);
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}: {}", daemon.process.log_tail());
    ensure!(
        fixture.deployments().get_opt("web").await?.is_some(),
        "the Deployment of the held write was not created"
    );
    let released = environment.leases.get("portreeve").await?.spec.context("no spec")?;
    ensure!(released.holder_identity.as_deref() == Some(""), "{released:?}");
    ensure!(released.lease_duration_seconds == Some(1));
    let events: Api<Event> = Api::namespaced(environment.plane.client()?, "kube-system");
    let found = events.list(&ListParams::default()).await?.items;
    let notes: Vec<_> = found.iter().filter_map(|event| event.note.as_deref()).collect();
    for what in ["became leader", "stopped leading"] {
        ensure!(notes.contains(&&*format!("{holder} {what}")), "{notes:?}");
    }
    ensure!(
        found
            .iter()
            .all(|event| event.reason.as_deref() == Some("LeaderElection"))
    );
    Ok(())
}

#[tokio::test]
async fn a_drain_that_times_out_releases_nothing_and_ends_with_code_3() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    let daemon = environment
        .replica("stuck", &["--controller-shutdown-timeout=1s"])
        .await?;
    let fixture = NamespaceFixture::new(&environment.plane, "stuck").await?;
    let holder = environment.next_holder("portreeve", "").await?;
    daemon.admin.wait_until_ready().await?;
    let gate = AdmissionGate::close(&environment.plane, &fixture).await?;
    fixture.create_foo("web", "web", 1).await?;
    let _write = gate.hold().await?;
    daemon.process.signal(Signal::TERM)?;
    let signalled = Instant::now();
    let status = daemon.process.wait(LIMIT).await?;
    let took = signalled.elapsed();
    ensure!(status.code() == Some(3), "{status}: {}", daemon.process.log_tail());
    ensure!(took >= Duration::from_secs(1), "the daemon gave up after {took:?}");
    let log = daemon.log()?;
    ensure!(
        log.contains("controller shutdown timeout reached") && log.contains("foo-controller"),
        "{log}"
    );
    // The apiserver may still execute the write, so no other replica may write before the lease
    // expires.
    ensure!(environment.holder("portreeve").await? == holder);
    Ok(())
}

#[tokio::test]
async fn a_standby_is_ready_with_synced_caches_and_writes_nothing() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    let leader = environment.replica("leading", &[]).await?;
    leader.wait_for_line(&["starting controller", "foo-controller"]).await?;
    let fixture = NamespaceFixture::new(&environment.plane, "warm").await?;
    fixture.ready_foo("before", 1).await?;
    let standby = environment.replica("standby", &[]).await?;
    let ready_standby = |_, text: &str| text.contains("leaderElection ok: standby") && text.contains("check passed");
    standby
        .admin
        .wait_until_readyz("a standby that is ready", ready_standby)
        .await?;
    let (status, text) = standby.admin.get("/healthz?verbose").await?;
    ensure!(status == StatusCode::OK && text.contains("leaderElection ok"), "{text}");
    fixture.ready_foo("after", 1).await?;
    // A standby reports no queue depth: keys that wait for days on a standby must not trigger
    // alerts.
    let waiting = standby.admin.metrics().await?.sum("workqueue_depth", &[]);
    ensure!(waiting == 0.0, "workqueue_depth of the standby is {waiting}");
    for (daemon, leads) in [(&leader, 1.0), (&standby, 0.0)] {
        let metrics = daemon.admin.metrics().await?;
        let status = metrics.sum("leader_election_master_status", &[r#"name="portreeve""#]);
        ensure!((status - leads).abs() < f64::EPSILON, "{status}");
        let running = metrics.sum("running_managed_controllers", &[r#"name="foo-controller""#]);
        ensure!((running - leads).abs() < f64::EPSILON, "{running}");
        let ages = metrics.values("portreeve_leader_election_last_renewal_age_seconds", "name");
        ensure!(ages.contains("portreeve") == (leads > 0.0), "{}", metrics.0);
        let age = metrics.sum("portreeve_leader_election_last_renewal_age_seconds", &[]);
        ensure!(age < LEASE_DURATION.as_secs_f64(), "{age}");
        let operations = metrics.values("portreeve_leader_election_failures_total", "operation");
        ensure!(operations.iter().eq(["acquire", "renew"]), "{operations:?}");
        let failures = metrics.sum("portreeve_leader_election_failures_total", &[]);
        ensure!(failures == 0.0, "{failures}: {}", daemon.process.log_tail());
    }
    let metrics = standby.admin.metrics().await?;
    let reconciled = metrics.sum("controller_runtime_reconcile_total", &[]);
    ensure!(reconciled == 0.0, "{reconciled}");
    // A standby also sends POSTs: access reviews. `ha` checks every write in the audit log.
    for code in [r#"method="PATCH""#, r#"method="DELETE""#] {
        ensure!(
            metrics.sum("rest_client_requests_total", &[code]) == 0.0,
            "{}",
            metrics.0
        );
    }
    leader.process.signal(Signal::TERM)?;
    eventually(LIMIT, "the new leader to reconcile both Foos", || async {
        let metrics = standby.admin.metrics().await?;
        let done = metrics.sum(
            "controller_runtime_reconcile_total",
            &[r#"controller="foo-controller""#],
        );
        ensure!(done >= 2.0, "{done}");
        anyhow::Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn groups_spread_over_replicas_and_losing_one_ends_the_process() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    let groups = &["--leader-elect-groups=crontab=a,foo=b"];
    let (one, two) = tokio::try_join!(environment.replica("one", groups), environment.replica("two", groups))?;
    let a = environment.next_holder("portreeve-a", "").await?;
    let b = environment.next_holder("portreeve-b", "").await?;
    ensure!(a != b, "one replica leads both groups");
    let leads_a_metric = one
        .admin
        .metrics()
        .await?
        .sum("leader_election_master_status", &[r#"name="portreeve-a""#]);
    let (leads_a, leads_b) = if leads_a_metric > 0.0 { (one, two) } else { (two, one) };
    ensure!(
        environment.leases.get_opt("portreeve").await?.is_none(),
        "every controller is in a named group, so the default Lease must not exist"
    );

    // The replica that stops releases its Lease. The other replica acquires it after a delay,
    // because it already holds a Lease.
    leads_b.process.signal(Signal::TERM)?;
    ensure!(leads_b.process.wait(LIMIT).await?.code() == Some(0));
    let successor = environment.next_holder("portreeve-b", &b).await?;
    ensure!(successor == a, "{successor} is not {a}");
    let fixture = NamespaceFixture::new(&environment.plane, "groups").await?;
    fixture.ready_foo("web", 1).await?;

    environment.set_other_holder("portreeve-a").await?;
    let status = leads_a.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(2), "{status}: {}", leads_a.process.log_tail());
    let log = leads_a.log()?;
    ensure!(
        log.contains("leaderelection lost: kube-system/portreeve-a: a-thief holds the Lease"),
        "{log}"
    );
    ensure!(
        environment.holder("portreeve-b").await?.is_empty(),
        "the daemon did not release the other group"
    );
    ensure!(
        environment.holder("portreeve-a").await? == "a-thief",
        "the daemon released a Lease that another replica holds"
    );
    Ok(())
}

#[tokio::test]
async fn a_daemon_without_leader_election_creates_no_lease() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    for flags in [&["--leader-elect=false"][..], &["--leader-elect=true", "--dry-run"]] {
        let all: Vec<_> = ["--controllers=foo"].iter().chain(flags).copied().collect();
        let daemon = Daemon::start(&environment.plane, "alone", &all).await?;
        daemon.wait_for_line(&["starting controller", "foo-controller"]).await?;
        ensure!(
            environment
                .leases
                .list(&ListParams::default())
                .await?
                .items
                .iter()
                .all(|lease| { lease.metadata.name.as_deref() != Some("portreeve") })
        );
        daemon.process.signal(Signal::TERM)?;
        ensure!(daemon.process.wait(LIMIT).await?.code() == Some(0));
    }
    Ok(())
}
