//! A leader whose account has filled its share of the apiserver with its own writes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Request;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration, apps::v1::Deployment, coordination::v1::Lease,
    flowcontrol::v1::FlowSchema,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use super::is_full_size;
use crate::fixtures::{
    LIMIT,
    admin::Metrics,
    daemon::{Daemon, EXPIRING_LEASE, printed},
    manifests,
    namespace::unrelated_deployment,
    rbac::{ACCOUNT, FooAccount, LEASE_NAMESPACE},
};

/// The number of writes that wait at the same time. The priority level `workload-low` has at most
/// seven seats, those of other levels included, so a request that comes last waits for more than
/// ten seconds: longer than the renew deadline, and less than the 15 s after which the apiserver
/// rejects it.
const WRITES: usize = 32;

/// The seconds that the webhook takes, in which the write has a seat.
const WEBHOOK_SECONDS: i32 = 3;

/// How long the leader must keep the Lease: more than the lease duration of [`EXPIRING_LEASE`].
fn hold() -> Duration {
    Duration::from_secs(if is_full_size() { 60 } else { 14 })
}

/// Makes every creation of a Deployment in the namespace take [`WEBHOOK_SECONDS`]: the listener,
/// which the caller keeps, never answers.
async fn slow_down_deployments(namespace: &Namespace) -> Result<TcpListener> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("https://127.0.0.1:{}/", listener.local_addr()?.port());
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": namespace.name()},
        "webhooks": [{
            "name": "slow.example.com",
            "clientConfig": {"url": url},
            "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name()}},
            "failurePolicy": "Ignore",
            "timeoutSeconds": WEBHOOK_SECONDS,
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    }))?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(namespace.client().clone());
    configurations.create(&PostParams::default(), &configuration).await?;
    Ok(listener)
}

/// Keeps [`WRITES`] dry-run writes of the account in flight until the result is dropped.
async fn start_load(account: &FooAccount, namespace: &Namespace) -> Result<JoinSet<()>> {
    let kubeconfig = Kubeconfig::read_from(&account.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let deployments: Api<Deployment> = Api::namespaced(Client::try_from(config)?, namespace.name());
    let deployment: Deployment = serde_json::from_value(unrelated_deployment("probe"))?;
    let mut load = JoinSet::new();
    for _ in 0..WRITES {
        let (deployments, deployment) = (deployments.clone(), deployment.clone());
        load.spawn(async move {
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            loop {
                // The load continues whatever the answer is.
                drop(deployments.create(&dry_run, &deployment).await);
            }
        });
    }
    Ok(load)
}

/// Waits until requests of service accounts queue in the apiserver.
async fn wait_until_queued(admin: &Client) -> Result<()> {
    eventually(LIMIT, "requests of the account to wait for seats", || async {
        let metrics = Metrics(admin.request_text(Request::get("/metrics").body(Vec::new())?).await?);
        let labels = [r#"flow_schema="service-accounts""#, r#"priority_level="workload-low""#];
        let waiting = metrics.sum("apiserver_flowcontrol_current_inqueue_requests", &labels);
        ensure!(waiting > 0.0, "no request waits");
        anyhow::Ok(())
    })
    .await
}

/// Waits until the Lease was renewed at least `hold` after `since`, or the daemon has ended.
async fn wait_for_late_renewal(admin: &Client, daemon: &Daemon, since: Timestamp, hold: Duration) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(admin.clone(), "kube-system");
    let due = since + SignedDuration::try_from(hold)?;
    eventually(hold + LIMIT, "a renewal under load", || async {
        if daemon.process.exit_status().is_some() {
            return Ok(());
        }
        let spec = leases.get("portreeve").await?.spec.context("the Lease has no spec")?;
        let renewed = spec.renew_time.context("the Lease has no renewTime")?.0;
        ensure!(renewed >= due, "renewed at {renewed}");
        anyhow::Ok(())
    })
    .await
}

#[tokio::test]
async fn a_leader_keeps_its_lease_under_its_own_load_only_with_the_flow_schema() -> Result<()> {
    let plane = ControlPlane::builder()
        .apiserver_arg("--max-requests-inflight=4")
        .apiserver_arg("--max-mutating-requests-inflight=4")
        .pooled()
        .await?;
    let admin = plane.client()?;
    let account = FooAccount::new(&plane).await?;
    account.grant_all().await?;
    let printed = printed(&["flowschema", "--namespace", account.system.name(), LEASE_NAMESPACE])?;
    for document in manifests::documents(&printed)? {
        manifests::apply(&admin, &document, None, &PatchParams::apply("an-administrator")).await?;
    }
    let daemon = Daemon::start_as(&plane, &account.kubeconfig, "leader", &EXPIRING_LEASE).await?;
    daemon.wait_for_line(&["acquired the lease"]).await?;
    daemon.admin.wait_until_ready().await?;

    let namespace = plane.namespace("loaded").await?;
    let _listener = slow_down_deployments(&namespace).await?;
    let _load = start_load(&account, &namespace).await?;
    wait_until_queued(&admin).await?;
    wait_for_late_renewal(&admin, &daemon, Timestamp::now(), hold()).await?;
    ensure!(
        daemon.process.exit_status().is_none(),
        "the leader lost the Lease{}",
        daemon.process.log_tail()
    );

    // Under the same load, the FlowSchema made the difference.
    let name = format!("portreeve-leader-election.{}.{ACCOUNT}", account.system.name());
    Api::<FlowSchema>::all(admin.clone())
        .delete(&name, &DeleteParams::default())
        .await?;
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(2), "{status}{}", daemon.process.log_tail());
    Ok(())
}
