//! Where the tests play: a control plane whose apiserver keeps an audit log, a namespace for the Lease, one for Foos, and replicas,
//! each with a user of its own.

mod fence;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, rbac::v1::PolicyRule};
use kube::{Api, CustomResourceExt, api::PostParams};
use portreeve_api::Foo;
use portreeve_testing::{ControlPlane, Namespace, eventually};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    audit::{AuditChecker, GuardedLease, POLICY, Report, pod},
    support::{
        LIMIT,
        admin::OPEN,
        daemon::{Daemon, printed},
        fixtures::NamespaceFixture,
        manifests,
    },
};

/// The replicas of most tests.
pub(crate) const PODS: [&str; 3] = ["replica-a", "replica-b", "replica-c"];
/// Those that take their places in a rolling update.
pub(crate) const SUCCESSORS: [&str; 3] = ["replica-d", "replica-e", "replica-f"];
/// The pod of the candidate that runs client-go's elector.
pub(crate) const GO: &str = "go";
/// The Lease's name: the daemon's default.
pub(crate) const LEASE: &str = "portreeve";

/// How long a lease is good, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) lease: Duration,
    pub(crate) renew_deadline: Duration,
    pub(crate) retry_period: Duration,
}

impl Timing {
    /// Short, so that a test does not wait for long; but a leader on a busy machine must not lose its Lease for want of a processor.
    pub(crate) const SHORT: Self = Self {
        lease: Duration::from_secs(4),
        renew_deadline: Duration::from_secs(3),
        retry_period: Duration::from_millis(500),
    };
    /// Longer than a server takes to start, however busy the machine.
    pub(crate) const LONG: Self = Self {
        lease: Duration::from_secs(90),
        renew_deadline: Duration::from_secs(75),
        retry_period: Duration::from_secs(2),
    };
}

/// How many tests play at the same time. They wait more than they work; but a leader that has no processor for seconds loses its Lease,
/// and the start of a control plane takes all that there are.
const CONCURRENT_ENVIRONMENTS: usize = 2;

/// The environment of one test.
pub(crate) struct HaEnvironment {
    pub(crate) plane: ControlPlane,
    pub(crate) fixture: NamespaceFixture,
    pub(crate) timing: Timing,
    /// Where the Lease and the accounts are.
    pub(crate) system_namespace: Namespace,
    rules: Vec<PolicyRule>,
    fencing: Fencing,
    _turn: SemaphorePermit<'static>,
}

/// What keeps a replica that does not lead from writing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fencing {
    /// The client's fence. Each replica is an account.
    Client,
    /// The apiserver's fence as well. All replicas are one account, in a Pod each, as a Deployment makes them.
    Server,
}

/// The replicas that run, by their pods.
pub(crate) type RunningReplicas = BTreeMap<&'static str, Daemon>;

impl HaEnvironment {
    /// An environment with short leases.
    pub(crate) async fn new(name: &str) -> Result<Self> {
        Self::with_timing(name, Timing::SHORT).await
    }

    pub(crate) async fn with_timing(name: &str, timing: Timing) -> Result<Self> {
        static TURNS: Semaphore = Semaphore::const_new(CONCURRENT_ENVIRONMENTS);
        let turn = TURNS.acquire().await?;
        let plane = ControlPlane::builder().audit_policy(POLICY).start().await?;
        let definitions = Api::all(plane.client()?);
        definitions.create(&PostParams::default(), &Foo::crd()).await?;
        Ok(Self {
            fixture: NamespaceFixture::new(&plane, name).await?,
            system_namespace: plane.namespace("portreeve-system").await?,
            plane,
            timing,
            rules: rules()?,
            fencing: Fencing::Client,
            _turn: turn,
        })
    }

    /// Starts these replicas one after the other. Each is ready; the first holds the Lease, if nobody held it before.
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

    /// Starts a replica, or starts it again, and waits until it is ready: leading or standing by.
    pub(crate) async fn replica(&self, pod: &str) -> Result<Daemon> {
        let kubeconfig = self.kubeconfig(pod).await?;
        self.replica_through(pod, &kubeconfig).await
    }

    /// The same, by another way to the apiserver.
    pub(crate) async fn replica_through(&self, pod: &str, kubeconfig: &Path) -> Result<Daemon> {
        let flags = self.flags();
        let args: Vec<&str> = flags.iter().map(String::as_str).chain([OPEN]).collect();
        let daemon = Daemon::start_with(&self.plane, kubeconfig, pod, &args, &[("POD_NAME", pod)]).await?;
        daemon.admin.wait_until_ready().await?;
        Ok(daemon)
    }

    /// What every replica is told.
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

    /// The kubeconfig of a pod's user, who has exactly the rights of a replica.
    pub(crate) async fn kubeconfig(&self, pod: &str) -> Result<PathBuf> {
        match self.fencing {
            Fencing::Client => self.kubeconfig_with(pod, self.rules.clone()).await,
            Fencing::Server => self.bound_kubeconfig(pod).await,
        }
    }

    /// The same, with other rights.
    pub(crate) async fn kubeconfig_with(&self, pod: &str, rules: Vec<PolicyRule>) -> Result<PathBuf> {
        self.plane
            .service_account_kubeconfig(self.system_namespace.name(), pod, rules)
            .await
    }

    pub(crate) async fn lease(&self) -> Result<Option<Lease>> {
        let leases: Api<Lease> = self.system_namespace.api();
        leases.get_opt(LEASE).await.context("failed to read the Lease")
    }

    /// The pod that holds the Lease; empty for nobody.
    pub(crate) async fn holder(&self) -> Result<String> {
        let spec = self.lease().await?.and_then(|lease| lease.spec);
        let identity = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        Ok(pod(&identity).to_owned())
    }

    /// Waits for one more renewal.
    pub(crate) async fn wait_for_renewal(&self) -> Result<()> {
        let version = |lease: Option<Lease>| lease.and_then(|lease| lease.metadata.resource_version);
        let before = version(self.lease().await?);
        eventually(LIMIT, "a renewal", || async {
            let now = version(self.lease().await?);
            ensure!(now != before, "the Lease is as it was");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the Lease is held by a pod that is as wanted (empty for nobody), and returns the pod.
    pub(crate) async fn wait_for_holder(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        eventually(LIMIT, what, || async {
            let holder = self.holder().await?;
            ensure!(wanted(&holder), "{holder:?} holds it");
            anyhow::Ok(holder)
        })
        .await
    }

    /// The one of the replicas that leads, once there is one.
    pub(crate) async fn leader(&self, running: &RunningReplicas) -> Result<&'static str> {
        let leads = |holder: &str| running.contains_key(holder);
        let holder = self.wait_for_holder("one of the replicas to lead", leads).await?;
        let pod = running.keys().find(|pod| **pod == holder);
        pod.copied().context("it is one of the replicas")
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

    /// Judges everything that happened so far.
    pub(crate) fn check(&self) -> Result<Report> {
        self.check_with(&self.audit_checker())
    }

    /// The same, by another table of who is who.
    pub(crate) fn check_with(&self, audit_checker: &AuditChecker) -> Result<Report> {
        audit_checker.check(&whole_lines(&self.plane)?)
    }

    /// What the audit log calls a pod's requests, by the judge's rules.
    fn sender(&self, pod: &str) -> String {
        let home = self.system_namespace.name();
        match self.fencing {
            Fencing::Client => user(home, pod),
            Fencing::Server => format!("{}/{pod}", user(home, fence::ACCOUNT)),
        }
    }

    /// What every line of the audit log holds that is about a pod's requests, and no other.
    pub(crate) fn audit_marker(&self, pod: &str) -> String {
        match self.fencing {
            Fencing::Client => format!("\"username\":\"{}\"", user(self.system_namespace.name(), pod)),
            Fencing::Server => format!("\"authentication.kubernetes.io/pod-name\":[\"{pod}\"]"),
        }
    }
}

fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// What `portreeve rbac` grants to all replicas, as one list.
fn rules() -> Result<Vec<PolicyRule>> {
    let mut rules = Vec::new();
    for document in manifests::documents(&printed(&["rbac", "--controllers=foo"])?)? {
        let of_role = document.get("rules").cloned().unwrap_or_default();
        let of_role: Option<Vec<PolicyRule>> = serde_json::from_value(of_role)?;
        rules.extend(of_role.into_iter().flatten());
    }
    ensure!(!rules.is_empty(), "no rules were printed");
    Ok(rules)
}

/// The audit log, but for a line that is still being written.
pub(crate) fn whole_lines(plane: &ControlPlane) -> Result<String> {
    let path = plane.audit_log().context("it has an audit log")?;
    let mut log = fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    log.truncate(log.rfind('\n').map_or(0, |end| end + 1));
    Ok(log)
}
