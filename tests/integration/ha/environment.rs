//! The environment of a test: a control plane whose apiserver writes an audit log, a namespace for
//! the Lease, a namespace for Foos, and replicas, each with its own user.

mod fence;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, rbac::v1::PolicyRule};
use kube::{Api, CustomResourceExt, api::PostParams};
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, eventually};

use crate::{
    audit::{AuditChecker, AuditLog, GuardedLease, policy, report::Report, terms::pod},
    fixtures::{LIMIT, admin::OPEN, daemon::Daemon, namespace::NamespaceFixture, rbac::printed_rules},
};

/// The replicas of most tests.
pub(crate) const PODS: [&str; 3] = ["replica-a", "replica-b", "replica-c"];
/// The replicas that replace them in a rolling update.
pub(crate) const SUCCESSORS: [&str; 3] = ["replica-d", "replica-e", "replica-f"];
/// The pod of the candidate that runs client-go's elector.
pub(crate) const GO: &str = "go";
/// The Lease's name: the daemon's default.
pub(crate) const LEASE: &str = "portreeve";

/// The durations of leader election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) lease: Duration,
    pub(crate) renew_deadline: Duration,
    pub(crate) retry_period: Duration,
}

impl Timing {
    /// For tests that wait until a lease expires: long enough for a leader on a busy machine to
    /// keep its Lease.
    pub(crate) const EXPIRING: Self = Self {
        lease: Duration::from_secs(12),
        renew_deadline: Duration::from_secs(9),
        retry_period: Duration::from_secs(1),
    };
    /// For all other tests: longer than a server takes to start on a busy machine.
    pub(crate) const LONG: Self = Self {
        lease: Duration::from_secs(90),
        renew_deadline: Duration::from_secs(75),
        retry_period: Duration::from_secs(2),
    };
}

/// The environment of one test.
pub(crate) struct HaEnvironment {
    pub(crate) plane: PooledPlane,
    pub(crate) fixture: NamespaceFixture,
    pub(crate) timing: Timing,
    /// The namespace of the Lease and the accounts.
    pub(crate) system_namespace: Namespace,
    rules: Vec<PolicyRule>,
    fencing: Fencing,
}

/// The fence that rejects writes of a replica that does not lead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fencing {
    /// The client's fence only. Each replica has its own account.
    Client,
    /// The client's and the apiserver's fence. All replicas share one account, and each has its own
    /// Pod, as in a Deployment.
    Server,
}

/// The running replicas, by pod.
pub(crate) type RunningReplicas = BTreeMap<&'static str, Daemon>;

impl HaEnvironment {
    /// Starts an environment in which no lease expires.
    pub(crate) async fn new(name: &str) -> Result<Self> {
        Self::with_timing(name, Timing::LONG).await
    }

    pub(crate) async fn with_timing(name: &str, timing: Timing) -> Result<Self> {
        let plane = ControlPlane::builder()
            .audit_policy(policy::WRITES_WITH_RESPONSES)
            .pooled()
            .await?;
        let crds = Api::all(plane.client()?);
        crds.create(&PostParams::default(), &Foo::crd()).await?;
        Ok(Self {
            fixture: NamespaceFixture::new(&plane, name).await?,
            system_namespace: plane.namespace("portreeve-system").await?,
            plane,
            timing,
            rules: printed_rules(&["--controllers=foo"])?,
            fencing: Fencing::Client,
        })
    }

    /// Starts replicas one after the other and waits until each is ready. The first acquires the
    /// Lease if it is free.
    pub(crate) async fn start_replicas(&self, pods: &[&'static str]) -> Result<RunningReplicas> {
        let mut running = RunningReplicas::new();
        for pod in pods {
            running.insert(pod, self.replica(pod).await?);
            if running.len() == 1 {
                self.wait_for_holder("the Lease to be held", |holder| !holder.is_empty())
                    .await?;
            }
        }
        Ok(running)
    }

    /// Starts or restarts a replica, and waits until it is ready, as the leader or a standby.
    pub(crate) async fn replica(&self, pod: &str) -> Result<Daemon> {
        let kubeconfig = self.kubeconfig(pod).await?;
        self.replica_through(pod, &kubeconfig).await
    }

    /// Starts or restarts a replica that reaches the apiserver through another kubeconfig.
    pub(crate) async fn replica_through(&self, pod: &str, kubeconfig: &Path) -> Result<Daemon> {
        let daemon = self.unready_replica(pod, kubeconfig).await?;
        daemon.admin.wait_until_ready().await?;
        Ok(daemon)
    }

    /// Starts a replica that need not become ready.
    pub(crate) async fn unready_replica(&self, pod: &str, kubeconfig: &Path) -> Result<Daemon> {
        let flags = self.flags();
        let args: Vec<&str> = flags.iter().map(String::as_str).chain([OPEN]).collect();
        Daemon::start_with(&self.plane, kubeconfig, pod, &args, &[("POD_NAME", pod)]).await
    }

    /// Returns the flags of every replica.
    pub(crate) fn flags(&self) -> Vec<String> {
        let Timing {
            lease,
            renew_deadline,
            retry_period,
        } = self.timing;
        vec![
            format!("--leader-elect-resource-namespace={}", self.system_namespace.name()),
            format!("--leader-elect-lease-duration={}s", lease.as_secs()),
            format!("--leader-elect-renew-deadline={}ms", renew_deadline.as_millis()),
            format!("--leader-elect-retry-period={}ms", retry_period.as_millis()),
            "--controllers=foo".to_owned(),
        ]
    }

    /// Returns the kubeconfig of a pod's user, which has exactly the rights of a replica.
    pub(crate) async fn kubeconfig(&self, pod: &str) -> Result<PathBuf> {
        match self.fencing {
            Fencing::Client => self.kubeconfig_with(pod, self.rules.clone()).await,
            Fencing::Server => self.bound_kubeconfig(pod).await,
        }
    }

    /// Returns the kubeconfig of a pod's user with other rights.
    pub(crate) async fn kubeconfig_with(&self, pod: &str, rules: Vec<PolicyRule>) -> Result<PathBuf> {
        self.plane
            .service_account_kubeconfig(self.system_namespace.name(), pod, rules)
            .await
    }

    pub(crate) async fn lease(&self) -> Result<Option<Lease>> {
        let leases: Api<Lease> = self.system_namespace.api();
        leases.get_opt(LEASE).await.context("failed to read the Lease")
    }

    /// Returns the pod that holds the Lease, or an empty string when nobody does.
    pub(crate) async fn holder(&self) -> Result<String> {
        let spec = self.lease().await?.and_then(|lease| lease.spec);
        let identity = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        Ok(pod(&identity).to_owned())
    }

    /// Waits for the next renewal of the Lease.
    pub(crate) async fn wait_for_renewal(&self) -> Result<()> {
        let version = |lease: Option<Lease>| lease.and_then(|lease| lease.metadata.resource_version);
        let before = version(self.lease().await?);
        eventually(LIMIT, "a renewal", || async {
            let now = version(self.lease().await?);
            ensure!(now != before, "the Lease has not changed");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the holder's pod, empty for nobody, satisfies `wanted`, and returns the pod.
    pub(crate) async fn wait_for_holder(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        eventually(LIMIT, what, || async {
            let holder = self.holder().await?;
            ensure!(wanted(&holder), "{holder:?} holds the Lease");
            anyhow::Ok(holder)
        })
        .await
    }

    /// Waits until one of the running replicas leads, and returns its pod.
    pub(crate) async fn leader(&self, running: &RunningReplicas) -> Result<&'static str> {
        let leads = |holder: &str| running.contains_key(holder);
        let holder = self.wait_for_holder("one of the replicas to lead", leads).await?;
        let pod = running.keys().find(|pod| **pod == holder);
        pod.copied().context("the leader is not one of the replicas")
    }

    /// Waits until one of the running replicas leads, and takes it out of them.
    pub(crate) async fn take_leader(&self, running: &mut RunningReplicas) -> Result<(&'static str, Daemon)> {
        let pod = self.leader(running).await?;
        let daemon = running.remove(pod).context("the leader is not one of the replicas")?;
        Ok((pod, daemon))
    }

    pub(crate) fn audit_checker(&self) -> AuditChecker {
        let pods = PODS.iter().chain(&SUCCESSORS).chain([&GO]);
        AuditChecker {
            replicas: pods.map(|pod| (self.sender(pod), (*pod).to_owned())).collect(),
            leases: vec![GuardedLease {
                namespace: self.system_namespace.name().to_owned(),
                name: LEASE.to_owned(),
                components: Vec::new(),
            }],
        }
    }

    /// Checks the audit log up to now.
    pub(crate) fn check(&self) -> Result<Report> {
        self.audit_checker().check(&AuditLog::of(&self.plane)?.lines_since(0)?)
    }

    /// Returns the sender of a pod's requests, as the audit checker identifies it.
    pub(crate) fn sender(&self, pod: &str) -> String {
        let namespace = self.system_namespace.name();
        match self.fencing {
            Fencing::Client => user(namespace, pod),
            Fencing::Server => format!("{}/{pod}", user(namespace, fence::ACCOUNT)),
        }
    }
}

fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}
