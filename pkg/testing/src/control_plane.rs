//! The control plane: an etcd and a kube-apiserver that start and stop together.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace as NamespaceObject};
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::assets::server_binary;
use crate::authority::Authority;
use crate::credentials::{self, Credentials, ServerFiles};
use crate::definitions;
use crate::etcd::Etcd;
use crate::eventually::{LIMIT, eventually};
use crate::ports::free_port;
use crate::process::{Output, Process};
use crate::scratch::ScratchDir;
use crate::server::{PortTaken, Probe, ServerProcess, ServerSpec};
use crate::template;

/// The number of attempts with other ports, in case another process takes a port before the server
/// binds it.
const PORT_ATTEMPTS: usize = 5;

/// A real etcd and kube-apiserver. Both stop when this handle is dropped, or when its process ends
/// in any way.
///
/// There is no controller manager. Nothing collects garbage, empties deleted namespaces, creates
/// `default` service accounts, or writes the status of Deployments and Jobs. RBAC is on. The
/// admission plugins are the default ones without `ServiceAccount`.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped in this order: etcd outlives the apiserver, and the folder outlives both.
    apiserver: ServerProcess,
    etcd: ServerProcess,
    etcd_api: Etcd,
    access: Credentials,
    authority: Authority,
    kubeconfig: PathBuf,
    audit_log: Option<PathBuf>,
    scratch: Arc<ScratchDir>,
}

/// The options of a control plane.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    audit_policy: Option<String>,
    apiserver_args: Vec<String>,
    definitions: Arc<[Value]>,
    progress: Option<fn(&str)>,
}

impl Builder {
    /// Makes the apiserver write an audit log with this policy (an `audit.k8s.io/v1` Policy in YAML
    /// or JSON).
    ///
    /// The apiserver writes each entry before it responds, so [`ControlPlane::audit_log`] is always
    /// complete.
    #[must_use]
    pub fn audit_policy(mut self, policy: impl Into<String>) -> Self {
        self.audit_policy = Some(policy.into());
        self
    }

    /// Adds a flag for the apiserver, in the form `--name=value`. It replaces the flag that every
    /// control plane has.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// Creates these CustomResourceDefinitions, and waits until their objects are served. A plane
    /// whose definitions a test has changed does not return to the pool, so the next test finds
    /// them unchanged.
    #[must_use]
    pub fn definitions(mut self, definitions: Arc<[Value]>) -> Self {
        self.definitions = definitions;
        self
    }

    /// Calls `progress` with a line of text before each step of the startup.
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
    /// Returns an error if a binary is missing or a server does not become ready. The error
    /// includes the end of the server's log.
    pub async fn start(self) -> Result<ControlPlane> {
        let etcd = server_binary("etcd")?;
        let apiserver = server_binary("kube-apiserver")?;
        for _ in 1..PORT_ATTEMPTS {
            match self.attempt(&etcd, &apiserver).await {
                Err(error) if error.downcast_ref::<PortTaken>().is_some() => {
                    tracing::info!("retrying with other ports because a port of the control plane was taken");
                }
                outcome => return outcome,
            }
        }
        self.attempt(&etcd, &apiserver).await
    }

    /// Returns whether a control plane with other options can be used instead of one with these.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.audit_policy == other.audit_policy
            && self.apiserver_args == other.apiserver_args
            && self.definitions == other.definitions
    }

    pub(crate) fn has_no_definitions(&self) -> bool {
        self.definitions.is_empty()
    }

    async fn attempt(&self, etcd: &Path, apiserver: &Path) -> Result<ControlPlane> {
        let scratch = Arc::new(ScratchDir::new()?);
        let etcd_url = format!("http://127.0.0.1:{}", free_port()?);
        let port = free_port()?;
        let authority = Authority::new()?;
        let (files, access) = credentials::issue(scratch.path(), format!("https://127.0.0.1:{port}"), &authority)?;
        let mut args = apiserver_args(scratch.path(), &etcd_url, port, &files);
        let audit_log = self.audit_args(scratch.path(), &mut args)?;
        let name = |arg: &String| arg.split('=').next().map(str::to_owned);
        args.retain(|own| !self.apiserver_args.iter().any(|arg| name(arg) == name(own)));
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
        // The probe has to see each failure, so kube's own retries are off.
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
            authority,
            kubeconfig,
            audit_log,
            scratch,
        };
        self.report("Starting etcd (1 of 3).");
        plane.etcd.start().await?;
        if let Some(template) = template::template() {
            plane
                .etcd_api
                .load(&template)
                .await
                .context("failed to write into etcd")?;
        }
        self.report("Starting kube-apiserver (2 of 3).");
        plane.apiserver.start().await?;
        self.report("Waiting for the default namespace (3 of 3).");
        plane.wait_for_default_namespace().await?;
        definitions::create(&plane.client()?, &self.definitions).await?;
        Ok(plane)
    }

    fn audit_args(&self, folder: &Path, args: &mut Vec<String>) -> Result<Option<PathBuf>> {
        let Some(policy) = &self.audit_policy else {
            return Ok(None);
        };
        let file = folder.join("audit-policy.yaml");
        fs::write(&file, policy).with_context(|| format!("failed to write {}", file.display()))?;
        let log = folder.join("audit.log");
        // The apiserver appends to a file that exists, so that it can be emptied.
        fs::write(&log, "").with_context(|| format!("failed to write {}", log.display()))?;
        args.push(format!("--audit-policy-file={}", file.display()));
        args.push(format!("--audit-log-path={}", log.display()));
        args.push("--audit-log-mode=blocking-strict".to_owned());
        // It is not rotated: that would take requests away from the test. The default is 100 MB,
        // to which what was emptied counts.
        args.push("--audit-log-maxsize=100000".to_owned());
        Ok(Some(log))
    }
}

impl ControlPlane {
    /// Starts a control plane that ends with the test. Few tests need it: see
    /// [`ControlPlane::pooled`].
    ///
    /// # Errors
    /// Returns an error if a binary is missing or a server does not become ready. The error
    /// includes the end of the server's log.
    pub async fn start() -> Result<Self> {
        Self::builder().start().await
    }

    /// Returns a builder for a control plane with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the control plane that all tests of a binary share. The first call starts it.
    ///
    /// Tests must not disturb its servers. Give each test its own [`ControlPlane::namespace`], and
    /// [`ControlPlane::pooled`] to tests that disturb the servers.
    ///
    /// # Panics
    /// Panics if it cannot be started, because no test of the binary can run without it.
    #[expect(clippy::panic, reason = "a test can only fail with this error")]
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        let started = SHARED.get_or_try_init(Self::start).await;
        started.unwrap_or_else(|error| panic!("failed to start the shared control plane: {error:#}"))
    }

    /// Returns an administrator's client, bound to the caller's runtime. Each test has its own
    /// runtime, and a client does not outlive it.
    ///
    /// # Errors
    /// Returns an error if kube cannot build the client.
    pub fn client(&self) -> Result<Client> {
        Client::try_from(self.config()?).context("failed to build a client")
    }

    /// Returns the configuration of [`ControlPlane::client`].
    ///
    /// # Errors
    /// Returns an error if the URL cannot be parsed, which would be a bug in this crate.
    pub fn config(&self) -> Result<Config> {
        self.access.config()
    }

    /// Returns the path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the authority of the apiserver's certificate. The apiserver trusts the client
    /// certificates that it issues.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the apiserver's URL.
    pub fn url(&self) -> &str {
        &self.access.url
    }

    /// Returns the folder of this control plane, which is removed with it. Tests may write other
    /// files there.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the path of the audit log, with one JSON event per line, or `None` without
    /// [`Builder::audit_policy`].
    pub fn audit_log(&self) -> Option<&Path> {
        self.audit_log.as_deref()
    }

    /// Returns the handle of etcd, which can be stopped, started and paused.
    pub fn etcd(&self) -> &ServerProcess {
        &self.etcd
    }

    /// Returns the handle of kube-apiserver, which can be stopped, started and paused.
    pub fn apiserver(&self) -> &ServerProcess {
        &self.apiserver
    }

    /// Makes etcd drop all revisions before the current one, and returns the current one.
    ///
    /// The apiserver still responds from its watch cache. For a watch from an older revision to
    /// fail with 410, restart the [`ControlPlane::apiserver`] afterwards.
    ///
    /// # Errors
    /// Returns an error if etcd does not respond.
    pub async fn compact(&self) -> Result<i64> {
        self.etcd_api.compact().await.context("failed to compact etcd")
    }

    /// Writes an object into etcd without the apiserver, which would reject an invalid one. `path`
    /// is the plural of the resource, the namespace and the name.
    ///
    /// # Errors
    /// Returns an error if etcd does not respond.
    pub async fn store_unchecked(&self, path: &str, object: &Value) -> Result<()> {
        let stored = self
            .etcd_api
            .put(format!("/registry/{path}").as_bytes(), object.to_string().as_bytes())
            .await;
        stored
            .map(drop)
            .with_context(|| format!("failed to write {path} into etcd"))
    }

    /// Returns the objects that etcd has, as they are stored. `path` is the plural of the resource,
    /// with its group if that is a custom one, and may go on with a namespace and a name. Only
    /// custom resources are stored as JSON.
    ///
    /// # Errors
    /// Returns an error if etcd does not respond, or an object is not JSON.
    pub async fn stored(&self, path: &str) -> Result<Vec<Value>> {
        let values = self.etcd_api.values(&format!("/registry/{path}")).await;
        let values = values.with_context(|| format!("failed to read {path} from etcd"))?;
        let decode = |value: &Vec<u8>| serde_json::from_slice(value).context("failed to parse a stored object");
        values.iter().map(decode).collect()
    }

    /// Returns what etcd has in a namespace, as `<resource>/<name>`, sorted. The namespace need not
    /// exist.
    ///
    /// # Errors
    /// Returns an error if etcd does not respond.
    pub async fn stored_in(&self, namespace: &str) -> Result<Vec<String>> {
        let keys = self.etcd_api.revisions().await?;
        let namespace = format!("/{namespace}/");
        let object = |key: &Vec<u8>| {
            let (resource, name) = str::from_utf8(key).ok()?.split_once(&namespace)?;
            Some(format!("{}/{name}", resource.rsplit('/').next()?))
        };
        let mut objects: Vec<_> = keys.keys().filter_map(object).collect();
        objects.sort_unstable();
        Ok(objects)
    }

    /// Starts a supervised program with the log `<name>.log` in this control plane's folder.
    /// Another program with the same name appends to the same log.
    ///
    /// # Errors
    /// Returns an error if no process can be created.
    pub fn spawn(&self, name: &str, program: &Path, args: &[&str], envs: &[(&str, &str)]) -> Result<Process> {
        let log = self.folder().join(format!("{name}.log"));
        Process::launch(name, program, args, envs, &Output::Log(&log), self.scratch.hold()?)
    }

    pub(crate) fn access(&self) -> &Credentials {
        &self.access
    }

    pub(crate) fn etcd_api(&self) -> &Etcd {
        &self.etcd_api
    }

    /// Waits for the ConfigMap with the authorities of clients, which is created after the
    /// apiserver reports that it is ready.
    pub(crate) async fn wait_for_authentication_info(&self) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.client()?, "kube-system");
        eventually(LIMIT, "the authorities of clients", || {
            config_maps.get("extension-apiserver-authentication")
        })
        .await?;
        Ok(())
    }

    /// Waits for the default namespace. The apiserver reports that it is ready before it creates
    /// the namespace.
    async fn wait_for_default_namespace(&self) -> Result<()> {
        let namespaces: Api<NamespaceObject> = Api::all(self.client()?);
        eventually(LIMIT, "the namespace \"default\" to exist", || {
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
        // etcd requires an address for peers even without peers, so any port will do.
        "--listen-peer-urls=http://127.0.0.1:0".to_owned(),
        // A member on its own needs few heartbeats, each of which takes processor time. etcd wants
        // at least five of them within an election timeout.
        "--heartbeat-interval=500".to_owned(),
        "--election-timeout=5000".to_owned(),
        // Writes survive a crash of etcd but not of the machine, which is enough for tests.
        "--unsafe-no-fsync=true".to_owned(),
    ]
}

fn apiserver_args(folder: &Path, etcd_url: &str, port: u16, files: &ServerFiles) -> Vec<String> {
    vec![
        format!("--etcd-servers={etcd_url}"),
        "--bind-address=127.0.0.1".to_owned(),
        // Otherwise the apiserver looks for a network address, and a machine without a network has
        // none.
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", folder.display()),
        format!("--tls-cert-file={}", files.certificate.display()),
        format!("--tls-private-key-file={}", files.key.display()),
        format!("--client-ca-file={}", files.authority.display()),
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
        // This plugin requires `default` service accounts, which only a controller would create.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
    ]
}
