//! The probes of deploy/webhooks, sent to replicas with the arguments of its Deployment: a replica
//! that could not lead never becomes ready, and later faults of leadership and informers leave it
//! in the Service of the webhooks.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::api::{core::v1::ConfigMap, rbac::v1::PolicyRule};
use portreeve_testing::{ControlPlane, FaultProxy, Namespace, PooledPlane, eventually, free_port};
use serde_json::Value;

use super::{install, manifests::webhooks::with_components};
use crate::fixtures::{
    LIMIT,
    admin::Admin,
    daemon::{Daemon, LONG_LEASE},
    rbac::{ACCOUNT, printed_rules},
};

/// The namespace in the manifests. The one of the test has another name.
const NAMESPACE: &str = "portreeve-system";

/// A control plane with the objects that the replicas need, the container of the Deployment, and
/// the rules of the component.
struct Environment {
    plane: PooledPlane,
    system: Namespace,
    container: Value,
    rules: Vec<PolicyRule>,
}

impl Environment {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let system = plane.namespace(NAMESPACE).await?;
        install(&system).await?;
        let objects = with_components("'{deploy}/webhooks'")?;
        let pod = &objects["Deployment portreeve"]["spec"]["template"]["spec"];
        Ok(Self {
            container: pod["containers"][0].clone(),
            rules: serde_json::from_value(objects["ClusterRole portreeve:webhooks"]["rules"].clone())?,
            system,
            plane,
        })
    }

    /// Returns the arguments of the container, with the port of the webhooks and the namespace of
    /// this test.
    fn arguments(&self, port: u16) -> Result<Vec<String>> {
        let args = self.container["args"].as_array().context("there are no arguments")?;
        let args = args.iter().filter_map(Value::as_str).map(|arg| match arg {
            "--webhook-port=9443" => format!("--webhook-port={port}"),
            _ => arg.replace(NAMESPACE, self.system.name()),
        });
        Ok(args.chain(LONG_LEASE.map(str::to_owned)).collect())
    }

    /// Grants an account the printed rights and those of the component, except those on these
    /// resources.
    async fn account(&self, name: &str, lacking: &[&str]) -> Result<PathBuf> {
        let args = self.arguments(0)?;
        let names = |arg: &&String| {
            let is_needed = |flag: &&str| arg.starts_with(*flag);
            ["--controllers", "--leader-elect-resource", "--tls-"]
                .iter()
                .any(is_needed)
        };
        let flags: Vec<_> = args.iter().filter(names).map(String::as_str).collect();
        let mut rules = printed_rules(&flags)?;
        rules.extend_from_slice(&self.rules);
        rules.retain(|rule| {
            let mut resources = rule.resources.iter().flatten();
            !resources.any(|resource| lacking.contains(&&**resource))
        });
        let namespace = self.system.name();
        self.plane.service_account_kubeconfig(namespace, name, rules).await
    }

    async fn replica(&self, name: &str, kubeconfig: &Path) -> Result<Replica> {
        let port = free_port()?;
        let args = self.arguments(port)?;
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let daemon = Daemon::start_with(&self.plane, kubeconfig, name, &args, &[("POD_NAME", name)]).await?;
        Ok(Replica {
            daemon,
            webhooks: Admin { port },
            container: self.container.clone(),
        })
    }

    /// Checks that a listener serves a certificate of the published CA for a Service.
    async fn ensure_trusted(&self, listener: Admin, service: &str) -> Result<()> {
        let published = self.system.api::<ConfigMap>().get("portreeve-serving-ca").await?;
        let published = published.data.unwrap_or_default();
        let authorities = published.get("ca.crt").context("no CA is published")?;
        let name = format!("{service}.{}.svc", self.system.name());
        listener.ensure_trusted(authorities, name).await
    }
}

/// A replica, and the container with its probes.
struct Replica {
    daemon: Daemon,
    webhooks: Admin,
    container: Value,
}

impl Replica {
    /// Sends a probe without credentials, as the kubelet does.
    async fn probe(&self, probe: &str) -> Result<(StatusCode, String)> {
        let get = &self.container[probe]["httpGet"];
        ensure!(get["scheme"] == "HTTPS", "{get}");
        let listener = match get["port"].as_str() {
            Some("https") => self.daemon.admin,
            Some("webhook") => self.webhooks,
            other => anyhow::bail!("unknown port {other:?}"),
        };
        listener
            .get(get["path"].as_str().context("the probe has no path")?)
            .await
    }

    /// Waits until a probe gets the status, and returns the body.
    async fn wait_for(&self, probe: &str, wanted: StatusCode) -> Result<String> {
        eventually(LIMIT, &format!("{wanted} for the {probe}"), || async {
            let (status, text) = self.probe(probe).await?;
            ensure!(status == wanted, "{status}: {text}");
            anyhow::Ok(text)
        })
        .await
    }

    async fn ensure_passing(&self, probes: &[&str]) -> Result<()> {
        for probe in probes {
            let (status, text) = self.probe(probe).await?;
            ensure!(status == StatusCode::OK, "{probe}: {status}: {text}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn faults_of_leadership_and_informers_leave_a_replica_in_the_service_of_the_webhooks() -> Result<()> {
    let environment = Environment::new().await?;
    let proxy = FaultProxy::start(&environment.plane).await?;
    let kubeconfig = environment.account(ACCOUNT, &[]).await?;
    let leader = environment.replica("leader", &kubeconfig).await?;
    leader.daemon.wait_for_line(&["acquired the lease"]).await?;
    let standby = proxy.kubeconfig(&kubeconfig, "standby")?;
    let standby = environment.replica("standby", &standby).await?;
    for replica in [&leader, &standby] {
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            replica.wait_for(probe, StatusCode::OK).await?;
        }
        // Repeated flags add names.
        for (listener, service) in [
            (replica.daemon.admin, "portreeve"),
            (replica.webhooks, "portreeve-webhook"),
        ] {
            let what = format!("a certificate for {service}");
            eventually(LIMIT, &what, || environment.ensure_trusted(listener, service)).await?;
        }
    }
    // No other path is open than before.
    let (status, _) = standby.daemon.admin.get("/livez/leaderElection").await?;
    ensure!(status == StatusCode::FORBIDDEN, "{status}");

    // An outage fails the other checks, among them that of the startup probe, which the kubelet
    // does not send any more.
    proxy.cut();
    standby
        .daemon
        .admin
        .wait_until_failing("/readyz", "leaderElection", &[])
        .await?;
    standby
        .wait_for("startupProbe", StatusCode::INTERNAL_SERVER_ERROR)
        .await?;
    standby.ensure_passing(&["readinessProbe", "livenessProbe"]).await?;
    proxy.heal();
    standby.wait_for("startupProbe", StatusCode::OK).await?;
    standby.ensure_passing(&["readinessProbe", "livenessProbe"]).await
}

#[tokio::test]
async fn a_replica_without_rights_to_its_lease_never_starts() -> Result<()> {
    let environment = Environment::new().await?;
    let leader = environment
        .replica("leader", &environment.account(ACCOUNT, &[]).await?)
        .await?;
    leader.wait_for("readinessProbe", StatusCode::OK).await?;

    // Until the startup probe succeeds, the kubelet does not send the readiness probe.
    let restricted = environment.account("restricted", &["leases", "foos"]).await?;
    let restricted = environment.replica("restricted", &restricted).await?;
    let foos = "informer/foos.v1alpha1.samplecontroller.k8s.io";
    for check in ["leaderElection", foos] {
        restricted
            .daemon
            .admin
            .wait_until_failing("/readyz", check, &[])
            .await?;
    }
    restricted.wait_for("readinessProbe", StatusCode::OK).await?;
    let (status, text) = restricted.probe("startupProbe").await?;
    ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
    restricted.ensure_passing(&["livenessProbe"]).await?;

    // Forbidden watches do not stop it from starting, and neither do they empty the Service.
    environment.account("restricted", &["foos"]).await?;
    restricted.wait_for("startupProbe", StatusCode::OK).await?;
    restricted.daemon.admin.wait_until_failing("/readyz", foos, &[]).await?;
    restricted
        .ensure_passing(&["startupProbe", "readinessProbe", "livenessProbe"])
        .await
}
