//! Two replicas of a controller, of which one leads.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;
use serde_json::json;

use crate::bench::Bench;
use crate::controller::{Controller, Role};
use crate::lease::Lease;
use crate::rows::{Subject, Task};

/// The namespace of the service accounts. The apiserver's default `FlowSchema`s give their
/// requests the priority of controller managers.
const NAMESPACE: &str = "kube-system";
const ELECTION_LIMIT: Duration = Duration::from_secs(30);

/// The two replicas, by their current roles.
pub(crate) struct Replicas<'a> {
    bench: &'a Bench,
    plane: &'a ControlPlane,
    subject: Subject,
    pub(crate) leader: Replica,
    pub(crate) standby: Replica,
}

/// One replica, which is killed when this handle is dropped.
pub(crate) struct Replica {
    account: &'static str,
    kubeconfig: PathBuf,
    pub(crate) controller: Controller,
}

impl Replica {
    async fn start(bench: &Bench, plane: &ControlPlane, subject: Subject, account: &'static str) -> Result<Self> {
        let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let everything = serde_json::from_value(everything).context("failed to build a rule")?;
        let kubeconfig = plane.service_account_kubeconfig(NAMESPACE, account, everything).await?;
        let role = Role::Replica {
            account,
            kubeconfig: &kubeconfig,
        };
        let controller = Controller::start(Task::LeaderElection, subject, bench.daemon.as_ref(), plane, role).await?;
        Ok(Self {
            account,
            kubeconfig,
            controller,
        })
    }

    /// Returns the replica's user name in the audit log.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{NAMESPACE}:{}", self.account)
    }
}

impl<'a> Replicas<'a> {
    /// Starts one replica, waits until it leads, and then starts the other.
    pub(crate) async fn start(bench: &'a Bench, plane: &'a ControlPlane, subject: Subject) -> Result<Self> {
        let leader = Replica::start(bench, plane, subject, "replica-a").await?;
        let client = plane.client()?;
        let mut lease = Lease::watch(&client).await?;
        leader.controller.guard(lease.holder(ELECTION_LIMIT)).await?;
        leader.controller.has_caught_up(&client, "probe").await?;
        let standby = Replica::start(bench, plane, subject, "replica-b").await?;
        Ok(Self {
            bench,
            plane,
            subject,
            leader,
            standby,
        })
    }

    /// Runs `work`, and fails when one of the replicas exits before `work` is done.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (leader, standby) = (&self.leader.controller, &self.standby.controller);
        leader.guard(standby.guard(work)).await
    }

    /// Restarts the old leader as the standby. Call it after a takeover.
    pub(crate) async fn swap(&mut self) -> Result<()> {
        std::mem::swap(&mut self.leader, &mut self.standby);
        let Replica {
            account,
            kubeconfig,
            controller,
        } = &mut self.standby;
        let role = Role::Replica { account, kubeconfig };
        *controller = Controller::start(
            Task::LeaderElection,
            self.subject,
            self.bench.daemon.as_ref(),
            self.plane,
            role,
        )
        .await?;
        Ok(())
    }
}
