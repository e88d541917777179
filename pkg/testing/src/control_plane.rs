//! The control plane: an etcd and a kube-apiserver, started, found and ended together.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::{Api, Client, Config};
use rustix::process::Signal;
use tokio::sync::OnceCell;

use crate::assets::server_binary;
use crate::credentials::{self, Credentials, ServerFiles};
use crate::etcd::Etcd;
use crate::eventually::eventually;
use crate::ports::free_port;
use crate::process::{Output, Process};
use crate::scratch::ScratchDir;
use crate::server::{PortTaken, Probe, ServerProcess, ServerSpec};

/// How many times another pair of ports is tried when somebody takes one between our look and the server's.
const PORT_ATTEMPTS: usize = 5;
/// How long the apiserver may take, once ready, to make the namespaces that every cluster has.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(30);

/// A real etcd and kube-apiserver of one's own. Both end with it, and with the process that holds it, however that ends.
///
/// There is no controller manager: nothing collects garbage, empties a namespace that is deleted, makes `default` service accounts
/// or writes the status of Deployments and Jobs. RBAC is on; admission is the default but for `ServiceAccount`.
#[derive(Debug)]
pub struct ControlPlane {
    // Dropped in this order: etcd outlives the apiserver, the folder both.
    apiserver: ServerProcess,
    etcd: ServerProcess,
    etcd_api: Etcd,
    access: Credentials,
    kubeconfig: PathBuf,
    audit_log: Option<PathBuf>,
    scratch: Arc<ScratchDir>,
}

/// What may be chosen about a control plane before it starts.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    audit_policy: Option<String>,
    apiserver_args: Vec<String>,
    progress: Option<fn(&str)>,
}

impl Builder {
    /// Makes the apiserver write an audit log by this policy (the YAML or JSON of an `audit.k8s.io/v1` Policy). It is written before each
    /// request is answered, so it is complete whenever it is read: [`ControlPlane::audit_log`].
    #[must_use]
    pub fn audit_policy(mut self, policy: impl Into<String>) -> Self {
        self.audit_policy = Some(policy.into());
        self
    }

    /// One more flag for the apiserver, as `--name=value`; of a flag that is given twice the last one wins.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// Calls `progress` with a line of text before each step of the start.
    #[must_use]
    pub fn on_progress(mut self, progress: fn(&str)) -> Self {
        self.progress = Some(progress);
        self
    }

    fn report(&self, step: &str) {
        if let Some(progress) = self.progress {
            progress(step);
        }
    }

    /// Starts the control plane and waits until it is ready.
    ///
    /// # Errors
    /// When a binary is missing or a server does not become ready; the error carries the end of its log.
    pub async fn start(self) -> Result<ControlPlane> {
        let etcd = server_binary("etcd")?;
        let apiserver = server_binary("kube-apiserver")?;
        for _ in 1..PORT_ATTEMPTS {
            match self.attempt(&etcd, &apiserver).await {
                Err(error) if error.downcast_ref::<PortTaken>().is_some() => {
                    tracing::info!("a port of the control plane was taken; trying others");
                }
                outcome => return outcome,
            }
        }
        self.attempt(&etcd, &apiserver).await
    }

    async fn attempt(&self, etcd: &Path, apiserver: &Path) -> Result<ControlPlane> {
        let scratch = Arc::new(ScratchDir::new()?);
        let etcd_url = format!("http://127.0.0.1:{}", free_port()?);
        let port = free_port()?;
        let (files, access) = credentials::issue(scratch.path(), format!("https://127.0.0.1:{port}"))?;
        let mut args = apiserver_args(scratch.path(), &etcd_url, port, &files);
        let audit_log = self.audit_args(scratch.path(), &mut args)?;
        args.extend(self.apiserver_args.iter().cloned());
        let kubeconfig = scratch.path().join("admin.kubeconfig");
        access.write_kubeconfig(&kubeconfig)?;

        let etcd_api = Etcd::new(etcd_url.clone());
        let etcd = ServerSpec {
            name: "etcd",
            program: etcd.to_path_buf(),
            args: etcd_args(scratch.path(), &etcd_url),
            probe: Probe::Etcd(etcd_api.clone()),
            stop: Signal::KILL,
        };
        // A probe sees the server as it is: kube's own retries would only hide it.
        let mut config = access.config()?;
        config.default_retry = false;
        let apiserver = ServerSpec {
            name: "kube-apiserver",
            program: apiserver.to_path_buf(),
            args,
            probe: Probe::Apiserver(Box::new(config)),
            stop: Signal::TERM,
        };
        let plane = ControlPlane {
            apiserver: ServerProcess::new(apiserver, Arc::clone(&scratch)),
            etcd: ServerProcess::new(etcd, Arc::clone(&scratch)),
            etcd_api,
            access,
            kubeconfig,
            audit_log,
            scratch,
        };
        self.report("Starting etcd (1 of 3).");
        plane.etcd.start().await?;
        self.report("Starting kube-apiserver (2 of 3).");
        plane.apiserver.start().await?;
        self.report("Waiting for the default namespace (3 of 3).");
        plane.wait_for_default_namespace().await?;
        Ok(plane)
    }

    fn audit_args(&self, folder: &Path, args: &mut Vec<String>) -> Result<Option<PathBuf>> {
        let Some(policy) = &self.audit_policy else {
            return Ok(None);
        };
        let file = folder.join("audit-policy.yaml");
        fs::write(&file, policy).with_context(|| format!("failed to write {}", file.display()))?;
        let log = folder.join("audit.log");
        args.push(format!("--audit-policy-file={}", file.display()));
        args.push(format!("--audit-log-path={}", log.display()));
        args.push("--audit-log-mode=blocking-strict".to_owned());
        Ok(Some(log))
    }
}

impl ControlPlane {
    /// Starts a control plane of the caller's own, for tests that stop, pause or compact it.
    ///
    /// # Errors
    /// When a binary is missing or a server does not become ready; the error carries the end of its log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// For a control plane that is not the usual one.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The control plane that all tests of a binary share, started by the first that asks. Not for tests that disturb its servers:
    /// give each test a [`ControlPlane::namespace`] of its own, and the disturbing ones a plane of their own.
    ///
    /// # Panics
    /// When it cannot be started: no test of the binary can go on without it.
    #[expect(
        clippy::panic,
        reason = "a test has nothing to do with this error but to fail with it"
    )]
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        let started = SHARED.get_or_try_init(Self::start).await;
        started.unwrap_or_else(|error| panic!("failed to start the shared control plane: {error:#}"))
    }

    /// An administrator's client, bound to the caller's runtime: each test has a runtime of its own, and a client does not outlive it.
    ///
    /// # Errors
    /// When kube cannot build it.
    pub fn client(&self) -> Result<Client> {
        Client::try_from(self.config()?).context("failed to build a client")
    }

    /// The configuration of [`ControlPlane::client`].
    ///
    /// # Errors
    /// When the URL cannot be parsed, which would be a bug here.
    pub fn config(&self) -> Result<Config> {
        self.access.config()
    }

    /// The administrator's kubeconfig on disk.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The apiserver's URL.
    pub fn url(&self) -> &str {
        &self.access.url
    }

    /// The folder of this control plane, which is removed with it: a place for whatever else a test writes.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// The audit log, when there is an [`Builder::audit_policy`]: one JSON event a line.
    pub fn audit_log(&self) -> Option<&Path> {
        self.audit_log.as_deref()
    }

    /// etcd, to be stopped, started, paused.
    pub fn etcd(&self) -> &ServerProcess {
        &self.etcd
    }

    /// kube-apiserver, to be stopped, started, paused.
    pub fn apiserver(&self) -> &ServerProcess {
        &self.apiserver
    }

    /// Makes etcd forget everything but the current state, and returns the revision that it keeps.
    ///
    /// The apiserver goes on answering from its watch cache. A watch from an older revision meets 410 once that is gone too: restart the
    /// [`ControlPlane::apiserver`] after it.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn compact(&self) -> Result<i64> {
        self.etcd_api.compact().await.context("failed to compact etcd")
    }

    /// Starts a program under supervision whose log, `<name>.log`, is in this control plane's folder and is removed with it.
    /// Started again under the same name it appends to the same log.
    ///
    /// # Errors
    /// When no process can be created.
    pub fn spawn(&self, name: &str, program: &Path, args: &[&str], envs: &[(&str, &str)]) -> Result<Process> {
        let log = self.folder().join(format!("{name}.log"));
        Process::launch(name, program, args, envs, &Output::Log(&log), self.scratch.hold()?)
    }

    pub(crate) fn access(&self) -> &Credentials {
        &self.access
    }

    /// The apiserver says that it is ready a moment before it has made the namespaces that everybody counts on.
    async fn wait_for_default_namespace(&self) -> Result<()> {
        let namespaces: Api<NamespaceObject> = Api::all(self.client()?);
        eventually(NAMESPACE_LIMIT, "the namespace \"default\"", || {
            namespaces.get("default")
        })
        .await?;
        Ok(())
    }
}

fn etcd_args(folder: &Path, url: &str) -> Vec<String> {
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        // Port 0: it has no peers, and insists on an address for them.
        "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        // What was written survives the death of etcd, not of the machine: nothing here is meant to.
        "--unsafe-no-fsync=true".to_owned(),
    ]
}

fn apiserver_args(folder: &Path, etcd_url: &str, port: u16, files: &ServerFiles) -> Vec<String> {
    vec![
        format!("--etcd-servers={etcd_url}"),
        "--bind-address=127.0.0.1".to_owned(),
        // Otherwise it looks for an address of the machine's, and a machine without a network has none.
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", folder.display()),
        format!("--tls-cert-file={}", files.certificate.display()),
        format!("--tls-private-key-file={}", files.key.display()),
        format!("--token-auth-file={}", files.tokens.display()),
        format!("--service-account-issuer=https://127.0.0.1:{port}/"),
        format!(
            "--service-account-key-file={}",
            files.service_account_public_key.display()
        ),
        format!(
            "--service-account-signing-key-file={}",
            files.service_account_key.display()
        ),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        // It waits for `default` service accounts, which a controller would have to make.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
    ]
}
