//! Real faults fulfil the conditions of alerts. The unit tests of the rules show how long they must
//! last.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use super::{environment::Environment, prometheus::Prometheus, rules, text};
use crate::fixtures::{LIMIT, daemon::Daemon};

/// Few failures exhaust the retry budget, and few deletions trip the breaker.
const TIGHT_LIMITS: [&str; 3] = ["--retry-qps=0.1", "--retry-burst=1", "--gc-max-deletions-per-minute=3"];

/// Returns the expression of an alert, with short windows.
fn condition(alert: &str) -> Result<String> {
    let rules = rules()?;
    let rule = rules
        .iter()
        .find(|rule| rule["alert"] == alert)
        .context(alert.to_owned())?;
    let expression = text(rule, "/expr")?;
    Ok(["[3m]", "[5m]", "[15m]"]
        .iter()
        .fold(expression.to_owned(), |expression, window| {
            expression.replace(window, "[30s]")
        }))
}

/// Waits until the conditions of these alerts hold.
async fn wait_for(prometheus: &Prometheus, alerts: &[&str]) -> Result<()> {
    let conditions: Result<Vec<_>> = alerts.iter().map(|alert| condition(alert)).collect();
    prometheus.wait_for_data(&conditions?).await
}

/// Writes another holder into the Lease, who need not renew it for an hour.
async fn give_lease_away(leases: &Api<Lease>) -> Result<()> {
    let spec = json!({
        "holderIdentity": "a-stranger",
        "leaseDurationSeconds": 3600,
        "renewTime": MicroTime(Timestamp::now()),
    });
    let patch = Patch::Merge(json!({"spec": spec}));
    leases.patch("portreeve", &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test]
async fn conditions_of_alerts_hold_during_real_faults() -> Result<()> {
    let mut environment = Environment::start(&TIGHT_LIMITS).await?;
    let prometheus = Prometheus::start(&environment.plane, &[environment.documented_job()?], &[]).await?;
    prometheus
        .wait_for_value(r#"sum(up{job="portreeve"} == 1)"#, "3")
        .await?;

    environment.reject_deployments(5).await?;
    wait_for(&prometheus, &["PortreeveReconcileErrors", "PortreeveRetriesHeld"]).await?;
    environment.delete_owner_of(5).await?;
    wait_for(&prometheus, &["PortreeveDeletionsStopped"]).await?;
    std::fs::write(&environment.kubeconfig, "broken")?;
    wait_for(&prometheus, &["PortreeveCredentialsNotReloaded"]).await?;

    let last = environment.replicas.pop();
    drop(last);
    wait_for(&prometheus, &["PortreeveReplicaDown"]).await?;
    // The first replica leads.
    drop(environment.replicas.remove(0));
    give_lease_away(&environment.system.api()).await?;
    wait_for(&prometheus, &["PortreeveNoLeader"]).await?;
    environment.replicas.clear();
    wait_for(&prometheus, &["PortreeveDown"]).await
}

/// The section about `PortreeveInformerStale` says so.
#[tokio::test]
async fn the_informer_of_a_resource_without_a_definition_is_not_synced() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let daemon = Daemon::start(&plane, "undefined-daemon", &["--controllers=foo"]).await?;
    let series = |resource: &str, synced: u8| format!("portreeve_informer_synced{{resource=\"{resource}\"}} {synced}");
    let expected = [
        series("deployments.v1.apps", 1),
        series("foos.v1alpha1.samplecontroller.k8s.io", 0),
    ];
    eventually(LIMIT, "the state of both informers", || async {
        let metrics = daemon.admin.metrics().await?.0;
        let missing = expected
            .iter()
            .find(|line| !metrics.lines().any(|found| found == *line));
        ensure!(missing.is_none(), "{missing:?} is not in {metrics}");
        anyhow::Ok(())
    })
    .await
}
