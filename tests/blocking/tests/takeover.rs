//! A leader whose worker runtime is stuck, and the standby that takes over.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{Api, api::PostParams};
use portreeve_testing::{ControlPlane, LIMIT, Namespace, Process, eventually};
use serde_json::json;
use tokio::time::Instant;

const LEASE_DURATION: Duration = Duration::from_secs(6);
const RENEW_DEADLINE: Duration = Duration::from_secs(5);

struct Environment {
    plane: ControlPlane,
    namespace: Namespace,
}

impl Environment {
    fn start(&self, name: &str, flags: &[&str]) -> Result<Process> {
        let program = Path::new(env!("CARGO_BIN_EXE_portreeve-blocking"));
        let kubeconfig = format!("--kubeconfig={}", self.plane.kubeconfig().display());
        let system = format!("--leader-elect-resource-namespace={}", self.namespace.name());
        let scope = format!("--configmap-namespace={}", self.namespace.name());
        let lease_duration = format!("--leader-elect-lease-duration={}s", LEASE_DURATION.as_secs());
        let renew_deadline = format!("--leader-elect-renew-deadline={}s", RENEW_DEADLINE.as_secs());
        let common = [&*kubeconfig, &system, &scope, &lease_duration, &renew_deadline];
        let fixed = ["--leader-elect-retry-period=500ms", "--secure-port=0"];
        let args: Vec<_> = common.into_iter().chain(fixed).chain(flags.iter().copied()).collect();
        self.plane.spawn(name, program, &args, &[("POD_NAME", name)])
    }

    /// Creates a ConfigMap.
    async fn create(&self, name: &str) -> Result<()> {
        let maps: Api<ConfigMap> = self.namespace.api();
        let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        maps.create(&PostParams::default(), &map).await?;
        Ok(())
    }

    /// Waits until the controller has copied a ConfigMap.
    async fn wait_for_copy(&self, name: &str) -> Result<()> {
        let maps: Api<ConfigMap> = self.namespace.api();
        let copy = format!("{name}-copy");
        eventually(LIMIT, &copy, || async {
            let found = maps.get_opt(&copy).await?;
            ensure!(found.is_some(), "{copy} does not exist");
            anyhow::Ok(())
        })
        .await
    }

    /// Returns the holder of the Lease without the UUID, and the number of takeovers.
    async fn holder(&self) -> Result<(String, i32)> {
        let leases: Api<Lease> = self.namespace.api();
        let spec = leases.get("portreeve").await?.spec.context("the Lease has no spec")?;
        let holder = spec.holder_identity.unwrap_or_default();
        let pod = holder.rsplit_once('_').map_or(&*holder, |(pod, _)| pod).to_owned();
        Ok((pod, spec.lease_transitions.unwrap_or_default()))
    }
}

#[tokio::test]
async fn a_leader_whose_runtime_is_stuck_exits_with_code_2_and_a_standby_takes_over() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let namespace = plane.namespace("blocking").await?;
    let environment = Environment { plane, namespace };
    let leader = environment.start("leader", &["--trap=trap"])?;
    let logged = |words: &'static str| move |line: &str| line.contains(words);
    leader.wait_for_log(LIMIT, logged("acquired the lease")).await?;
    let standby = environment.start("standby", &[])?;
    standby.wait_for_log(LIMIT, logged("standing by")).await?;
    environment.create("before").await?;
    environment.wait_for_copy("before").await?;

    environment.create("trap").await?;
    let blocked = Instant::now();
    let status = leader.wait(LIMIT).await?;
    let ended = blocked.elapsed();
    ensure!(status.code() == Some(2), "{status}{}", leader.log_tail());
    ensure!(ended > RENEW_DEADLINE, "the leader gave up after {ended:?}");
    let log = leader.log_tail();
    for line in [
        "worker runtime has run no task, giving up leader election",
        "error: the worker runtime is stuck",
    ] {
        ensure!(log.contains(line), "{line:?} is missing{log}");
    }

    // The Lease expires: it is not released, because the last writes may still arrive.
    environment.wait_for_copy("trap").await?;
    ensure!(!log.contains("released the lease"), "{log}");
    ensure!(environment.holder().await? == ("standby".to_owned(), 1));
    ensure!(standby.exit_status().is_none(), "{}", standby.log_tail());
    Ok(())
}
