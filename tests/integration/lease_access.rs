//! Candidates that could not lead fail `/readyz`: without rights on their Lease, and with a hanging
//! thread.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use anyhow::{Result, ensure};
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, rbac::v1::PolicyRule};
use kube::{
    Api, CustomResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use portreeve_foo::api::Foo;
use portreeve_reconcile::{Clock, SystemClock};
use portreeve_testing::{
    CannedResponse, ControlPlane, FaultProxy, Matcher, Namespace, PooledPlane, Repeat, eventually,
};
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    barrier::Barrier,
    daemon::{Daemon, EXPIRING_LEASE},
    in_process::InProcess,
    rbac::{ACCOUNT, printed_rules},
};

const LEASE: &str = "portreeve";
/// The name of the check.
const CHECK: &str = "leaderElection";

/// A control plane with an account that has the printed permissions, except those on Leases.
struct AccessEnvironment {
    plane: PooledPlane,
    system: Namespace,
}

impl AccessEnvironment {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let crds = Api::all(plane.client()?);
        crds.create(&PostParams::default(), &Foo::crd()).await?;
        let system = plane.namespace("portreeve-system").await?;
        Ok(Self { plane, system })
    }

    fn leases(&self) -> Api<Lease> {
        self.system.api()
    }

    /// Grants exactly these verbs on the Lease, and all other permissions.
    async fn grant(&self, lease_verbs: &[&str]) -> Result<PathBuf> {
        let mut rules = printed_rules(&["--controllers=foo"])?;
        rules.retain(|rule| !is_on_leases(rule));
        if !lease_verbs.is_empty() {
            rules.insert(0, lease_rule(lease_verbs));
        }
        self.plane
            .service_account_kubeconfig(self.system.name(), ACCOUNT, rules)
            .await
    }

    fn flags(&self) -> Vec<String> {
        let namespace = format!("--leader-elect-resource-namespace={}", self.system.name());
        let common = EXPIRING_LEASE.into_iter().chain(["--controllers=foo"]);
        common.map(str::to_owned).chain([namespace]).collect()
    }

    async fn start(&self, name: &str, kubeconfig: &Path) -> Result<Daemon> {
        let flags = self.flags();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        Daemon::start_as(&self.plane, kubeconfig, name, &flags).await
    }

    /// Creates the Lease with a holder without a process, for much longer than the test takes.
    async fn create_held_lease(&self) -> Result<()> {
        let lease = json!({
            "metadata": {"name": LEASE},
            "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3_600},
        });
        let lease = serde_json::from_value(lease)?;
        self.leases().create(&PostParams::default(), &lease).await?;
        Ok(())
    }
}

fn is_on_leases(rule: &PolicyRule) -> bool {
    rule.resources.iter().flatten().any(|resource| resource == "leases")
}

/// Returns a rule for the Lease, by name like those that the daemon prints.
fn lease_rule(verbs: &[&str]) -> PolicyRule {
    let list = |text: &str| Some(vec![text.to_owned()]);
    PolicyRule {
        api_groups: list("coordination.k8s.io"),
        resources: list("leases"),
        resource_names: list(LEASE),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

/// Waits until no check of `/readyz` fails but that of the election.
async fn wait_until_only_the_election_fails(daemon: &Daemon) -> Result<String> {
    eventually(LIMIT, "only the election to fail", || async {
        let failing = daemon.admin.failing("/readyz").await?;
        let is_expected = failing.len() == 1 && failing[0].starts_with(&format!("[-]{CHECK} failed: "));
        ensure!(is_expected, "{failing:?}");
        anyhow::Ok(failing[0].clone())
    })
    .await
}

#[tokio::test]
async fn a_candidate_without_rights_on_its_lease_is_not_ready() -> Result<()> {
    let environment = AccessEnvironment::new().await?;
    environment.create_held_lease().await?;
    let kubeconfig = environment.grant(&[]).await?;
    let daemon = environment.start("without-rights", &kubeconfig).await?;
    let line = wait_until_only_the_election_fails(&daemon).await?;
    let expected = format!("cannot lead with Lease {}/{LEASE}: ", environment.system.name());
    ensure!(line.contains(&expected) && line.contains("forbidden"), "{line}");
    eventually(LIMIT, "several attempts", || async {
        let metrics = daemon.admin.metrics().await?;
        let forbidden = metrics.sum("rest_client_requests_total", &[r#"code="403""#, r#"method="GET""#]);
        ensure!(forbidden >= 6.0, "{forbidden} requests were rejected");
        let failures = |operation| metrics.sum("portreeve_leader_election_failures_total", &[operation]);
        let (acquire, renew) = (failures(r#"operation="acquire""#), failures(r#"operation="renew""#));
        ensure!(acquire > 1.0 && renew == 0.0, "{acquire} and {renew} failures");
        anyhow::Ok(())
    })
    .await?;
    wait_until_only_the_election_fails(&daemon).await?;
    daemon.admin.ensure_passing("/livez").await?;
    for line in ["failed to acquire the lease", "forbidden to patch the lease"] {
        let count = daemon.log()?.matches(line).count();
        ensure!(count == 1, "{line:?} was logged {count} times: {}", daemon.log()?);
    }

    environment.grant(&["get", "patch", "watch"]).await?;
    daemon.admin.wait_until_ready().await?;
    for line in ["reached the lease again", "allowed to patch the lease again"] {
        daemon.wait_for_line(&[line]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_standby_that_may_only_read_its_lease_is_not_ready() -> Result<()> {
    let environment = AccessEnvironment::new().await?;
    environment.create_held_lease().await?;
    let kubeconfig = environment.grant(&["get", "watch"]).await?;
    let daemon = environment.start("read-only", &kubeconfig).await?;
    wait_until_only_the_election_fails(&daemon).await?;
    daemon
        .admin
        .wait_until_failing("/readyz", CHECK, &["forbidden to patch the Lease"])
        .await?;

    environment.grant(&["patch", "get", "watch"]).await?;
    daemon.admin.wait_until_ready().await?;
    environment.grant(&["get", "watch"]).await?;
    daemon
        .admin
        .wait_until_failing("/readyz", CHECK, &["forbidden to patch"])
        .await?;
    daemon.admin.ensure_passing("/livez").await
}

#[tokio::test]
async fn lost_access_reviews_leave_a_standby_ready() -> Result<()> {
    let environment = AccessEnvironment::new().await?;
    environment.create_held_lease().await?;
    let direct = environment.grant(&["get", "patch", "watch"]).await?;
    let proxy = FaultProxy::start(&environment.plane).await?;
    let daemon = environment
        .start("unlucky", &proxy.kubeconfig(&direct, "unlucky")?)
        .await?;
    daemon.admin.wait_until_ready().await?;
    let questions = Matcher::any().resource("selfsubjectaccessreviews");
    let lost = proxy.respond(questions.clone(), CannedResponse::unavailable(), Repeat::Next(3));
    lost.wait_for_applied(3, LIMIT).await?;
    daemon.admin.ensure_passing("/readyz").await?;

    // The next question is answered, and the daemon does not ask again at once.
    let answered = proxy.count(questions);
    answered.wait_for_matched(1, LIMIT).await?;
    daemon.admin.ensure_passing("/readyz").await
}

/// The system clock, which hangs when the thread of the elections reads it. That thread only reads
/// it to write the Lease.
struct HangingClock(Arc<Barrier>);

impl Clock for HangingClock {
    fn now(&self) -> Timestamp {
        if thread::current().name() == Some("leader-election") {
            self.0.pass();
        }
        SystemClock.now()
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        SystemClock.steps()
    }
}

#[tokio::test]
async fn a_candidate_whose_thread_hangs_is_not_ready() -> Result<()> {
    let environment = AccessEnvironment::new().await?;
    environment.create_held_lease().await?;
    let barrier = Arc::new(Barrier::closed());
    let clock = Arc::new(HangingClock(Arc::clone(&barrier)));
    let flags = environment.flags();
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let kubeconfig = environment.plane.kubeconfig();
    let daemon = InProcess::start_as(kubeconfig, clock, portreeve_cli::CONTROLLERS, &flags).await?;
    daemon.admin.ensure_passing("/readyz").await?;

    let release = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
    environment
        .leases()
        .patch(LEASE, &PatchParams::default(), &release)
        .await?;
    let words = ["the leader election thread has run no task for"];
    daemon.admin.wait_until_failing("/readyz", CHECK, &words).await?;

    barrier.open();
    daemon.admin.wait_until_passing("/readyz").await?;
    daemon.stop().await
}
