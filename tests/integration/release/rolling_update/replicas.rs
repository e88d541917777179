//! Three replicas behind a balancer, which a rolling update replaces by those of another version.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use portreeve_testing::{ControlPlane, Signal, eventually, free_port};
use tokio::time::sleep;

use crate::fixtures::{
    LIMIT,
    admin::{Admin, OPEN},
    balancer::Balancer,
    daemon::{Daemon, LONG_LEASE, PROGRAM},
    repository::printed_folder,
    webhooks::WebhookDaemon,
};

/// How long before a minute the leader is ended, so that another one must start the runs of that
/// minute.
const BEFORE_THE_MINUTE: Duration = Duration::from_millis(200);
const COUNT: usize = 3;
const LEASE_NAMESPACE: &str = "--leader-elect-resource-namespace=default";

/// The version of a replica.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    /// It knows only v1, and serves no webhooks.
    Former,
    /// The executable under test.
    Current,
}

impl Version {
    pub(super) fn program(self) -> Result<&'static Path> {
        static FORMER: LazyLock<Result<PathBuf>> =
            LazyLock::new(|| Ok(printed_folder("hack/formerversion/build")?.join("portreeve")));
        match self {
            Self::Former => FORMER.as_deref().map_err(|error| anyhow!("{error:#}")),
            Self::Current => Ok(Path::new(PROGRAM)),
        }
    }
}

struct Replica {
    name: String,
    daemon: Daemon,
    /// The port of its webhooks.
    webhooks: Option<u16>,
}

/// The replicas.
pub(super) struct Replicas {
    balancer: Balancer,
    running: Vec<Replica>,
    started: usize,
}

impl Replicas {
    /// Starts three replicas, and waits until one leads.
    pub(super) async fn start(plane: &ControlPlane, version: Version) -> Result<Self> {
        let mut replicas = Self {
            balancer: Balancer::start().await?,
            running: Vec::new(),
            started: 0,
        };
        for _ in 0..COUNT {
            replicas.add(plane, version).await?;
        }
        replicas.leader(plane).await?;
        Ok(replicas)
    }

    /// Returns where the apiserver reaches the webhooks.
    pub(super) fn url(&self) -> String {
        format!("https://localhost:{}", self.balancer.port)
    }

    /// Replaces all replicas by those of a version, as a rolling update does: a new one is ready
    /// before an old one ends. The leader ends right before a minute. It is the last one if
    /// `leader_last`, else the first.
    pub(super) async fn update(&mut self, plane: &ControlPlane, version: Version, leader_last: bool) -> Result<()> {
        let leader = self.leader(plane).await?;
        let mut order: Vec<_> = self.running.iter().map(|replica| replica.name.clone()).collect();
        order.sort_by_key(|name| (*name == leader) == leader_last);
        for name in order {
            self.add(plane, version).await?;
            if name == leader {
                just_before_a_minute().await;
            }
            self.end(&name).await?;
        }
        Ok(())
    }

    /// Waits until every replica has logged a line with all of these words.
    pub(super) async fn wait_for_line(&self, words: &[&str]) -> Result<()> {
        for replica in &self.running {
            replica.daemon.wait_for_line(words).await?;
        }
        Ok(())
    }

    async fn add(&mut self, plane: &ControlPlane, version: Version) -> Result<()> {
        let name = format!("replica-{}", self.started);
        self.started += 1;
        let webhooks = match version {
            Version::Former => None,
            Version::Current => Some(free_port()?),
        };
        let serving = match webhooks {
            Some(port) => WebhookDaemon::flags(plane, &name, port)?.to_vec(),
            None => Vec::new(),
        };
        let mut flags = vec![OPEN, "--controllers=crontab", "--leader-elect", LEASE_NAMESPACE];
        flags.extend(LONG_LEASE);
        flags.extend(serving.iter().map(String::as_str));
        if webhooks.is_some() {
            flags.push("--webhook-shutdown-delay=1s");
        }
        let cluster = (plane, plane.kubeconfig());
        let daemon = Daemon::start_program(version.program()?, cluster, &name, &flags, &[("POD_NAME", &name)]).await?;
        daemon.admin.wait_until_ready().await?;
        if let Some(port) = webhooks {
            let admin = Admin { port };
            let ready = || admin.ensure_passing("/readyz");
            eventually(LIMIT, "the webhooks of a replica to be ready", ready).await?;
            self.balancer.add(port);
        }
        self.running.push(Replica { name, daemon, webhooks });
        Ok(())
    }

    async fn end(&mut self, name: &str) -> Result<()> {
        let position = self.running.iter().position(|replica| replica.name == name);
        let replica = self.running.remove(position.context("no such replica")?);
        if let Some(port) = replica.webhooks {
            self.balancer.remove(port);
        }
        replica.daemon.process.signal(Signal::TERM)?;
        let status = replica.daemon.process.wait(LIMIT).await?;
        let log = replica.daemon.log()?;
        ensure!(status.success() && !log.contains("lost the lease"), "{status}: {log}");
        Ok(())
    }

    /// Waits until one of the replicas leads, and returns its name.
    async fn leader(&self, plane: &ControlPlane) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(plane.client()?, "default");
        eventually(LIMIT, "a replica to lead", || async {
            let spec = leases.get("portreeve").await?.spec.context("the Lease has no spec")?;
            let holder = spec.holder_identity.unwrap_or_default();
            let mut names = self.running.iter().map(|replica| &replica.name);
            let leader = names.find(|name| holder.starts_with(&format!("{name}_")));
            Ok::<_, anyhow::Error>(leader.with_context(|| format!("{holder:?} leads"))?.clone())
        })
        .await
    }
}

/// Waits until right before the next minute, in which all schedules of the test are due.
async fn just_before_a_minute() {
    const MINUTE: Duration = Duration::from_mins(1);
    let now = jiff::Timestamp::now().as_duration().unsigned_abs();
    let into_minute = Duration::from_nanos((now.as_nanos() % MINUTE.as_nanos()).try_into().unwrap_or_default());
    sleep(MINUTE.saturating_sub(into_minute + BEFORE_THE_MINUTE)).await;
}
