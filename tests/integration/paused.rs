//! A leader whose machine was paused without its clock advancing. The tests make the `Date` of
//! responses later instead.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, PooledPlane, Repeat, eventually};
use serde_json::json;

use crate::fixtures::{LIMIT, daemon::Daemon, namespace::NamespaceFixture};

/// Longer than a test, so that no regular renewal happens during it.
const RETRY_PERIOD: Duration = Duration::from_mins(5);
const ELECTION: [&str; 3] = [
    "--leader-elect-lease-duration=20m",
    "--leader-elect-renew-deadline=15m",
    "--leader-elect-retry-period=5m",
];
/// How long the machine seems to have been paused.
const PAUSE: Duration = Duration::from_hours(1);

/// A leader behind a proxy that delivers no changes of the Lease.
struct PausedLeader {
    daemon: Daemon,
    proxy: FaultProxy,
    fixture: NamespaceFixture,
    leases: Api<Lease>,
    _plane: PooledPlane,
}

impl PausedLeader {
    async fn start(name: &str) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let watches = Matcher::watches().resource("leases");
        proxy.fault(watches, Fault::BlackHole, Repeat::UntilHealed);
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), name)?;
        let flags = [&ELECTION[..], &["--controllers=foo", "--install-crds"]].concat();
        let daemon = Daemon::start_as(&plane, &kubeconfig, name, &flags).await?;
        daemon.admin.wait_until_ready().await?;
        daemon.wait_for_line(&["acquired the lease"]).await?;
        let fixture = NamespaceFixture::new(&plane, name).await?;
        // The leader installs the definitions after it has acquired the Lease.
        let (foos, parameters) = (fixture.foos(), ListParams::default());
        eventually(LIMIT, "Foos to be served", || foos.list(&parameters)).await?;
        Ok(Self {
            leases: Api::namespaced(plane.client()?, "kube-system"),
            fixture,
            _plane: plane,
            proxy,
            daemon,
        })
    }

    /// Lets all responses to writes of Deployments seem to come after the pause.
    fn seem_paused(&self) {
        let writes = Matcher::writes().resource("deployments");
        self.proxy.fault(writes, Fault::LaterDate(PAUSE), Repeat::UntilHealed);
    }

    async fn renewed_at(&self) -> Result<Timestamp> {
        let spec = self.leases.get("portreeve").await?.spec.unwrap_or_default();
        Ok(spec.renew_time.map(|time| time.0).unwrap_or_default())
    }
}

#[tokio::test]
async fn a_response_after_the_renew_deadline_suspends_writes_until_a_renewal_succeeds() -> Result<()> {
    let leader = PausedLeader::start("paused").await?;
    let acquired = leader.renewed_at().await?;
    leader.seem_paused();
    leader.fixture.create_foo("one", "one", 1).await?;
    leader
        .daemon
        .wait_for_line(&["suspending writes until the lease is renewed"])
        .await?;
    let renewed = eventually(LIMIT, "a renewal", || async {
        let renewed = leader.renewed_at().await?;
        ensure!(renewed > acquired, "the Lease was last renewed at {renewed}");
        anyhow::Ok(renewed)
    })
    .await?;
    let period = renewed.duration_since(acquired);
    ensure!(
        period < SignedDuration::try_from(RETRY_PERIOD)?,
        "renewed only after {period:?}"
    );
    // Writes pass again, and the same difference does not suspend them a second time.
    for name in ["two", "three"] {
        leader.fixture.create_foo(name, name, 1).await?;
        eventually(LIMIT, "a Deployment", || async {
            ensure!(
                leader.fixture.deployments().get_opt(name).await?.is_some(),
                "{name} does not exist"
            );
            anyhow::Ok(())
        })
        .await?;
    }
    let log = leader.daemon.log()?;
    ensure!(log.matches("suspending writes").count() == 1, "{log}");
    ensure!(leader.renewed_at().await? == renewed, "the Lease was renewed again");
    Ok(())
}

#[tokio::test]
async fn a_leader_that_lost_its_lease_during_a_pause_exits_after_the_first_response() -> Result<()> {
    let leader = PausedLeader::start("replaced").await?;
    let patch = Patch::Merge(json!({"spec": {"holderIdentity": "successor", "leaseTransitions": 1}}));
    leader
        .leases
        .patch("portreeve", &PatchParams::default(), &patch)
        .await?;
    leader.seem_paused();
    leader.fixture.create_foo("one", "one", 1).await?;
    let status = leader.daemon.process.wait(LIMIT).await?;
    ensure!(
        status.code() == Some(2),
        "{status}: {}",
        leader.daemon.process.log_tail()
    );
    let held = leader.leases.get("portreeve").await?.spec.unwrap_or_default();
    ensure!(held.holder_identity.as_deref() == Some("successor"), "{held:?}");
    Ok(())
}
