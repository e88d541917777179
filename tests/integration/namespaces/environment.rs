//! A control plane behind a proxy, and a daemon with only this controller.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
};
use portreeve_api::Resource;
use portreeve_reconcile::SystemClock;
use portreeve_testing::{ControlPlane, FaultProxy, PooledPlane, eventually};
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Mutex,
    task::spawn_blocking,
};

use super::profile::{delete_tenant, wait_until_gone};
use crate::fixtures::{LIMIT, dynamic_client::DynamicClient, in_process::InProcess, rbac::restricted_kubeconfig};

pub(crate) const NAMESPACES: Resource = Resource::cluster("", "v1", "Namespace", "namespaces");
pub(super) const CONTROLLERS: &str = "--controllers=namespace";
/// The flag that allows requests to the debug pages without authorization.
const OPEN_PAGES: &str = "--authorization-always-allow-paths=/debug/controllers/*";
/// One apiserver needs no grace.
pub(super) const NO_GRACE: &str = "--namespace-deletion-grace=0s";
/// The flag that sets how long a deletion without an answer keeps the namespace: this and a
/// twelfth.
pub(super) const REQUEST_TIMEOUT: &str = "--namespace-request-timeout=1s";
/// The least time of that.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// How long the tasks of the shared daemon may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The daemon of the tests that need no other, while one of them runs.
static SHARED: Mutex<Weak<SharedDaemon>> = Mutex::const_new(Weak::new());

/// A namespace to delete, and the daemon that does it.
pub(super) struct NamespaceEnvironment {
    side: Side,
    pub(super) tenant: DynamicClient,
}

enum Side {
    Own(Box<RunningDaemon>),
    Shared(Arc<SharedDaemon>),
}

/// A daemon, and what it runs on.
pub(super) struct RunningDaemon {
    // The fields are dropped in this order.
    pub(super) daemon: InProcess,
    kubeconfig: PathBuf,
    pub(super) proxy: FaultProxy,
    pub(super) plane: PooledPlane,
}

/// A daemon in a runtime of its own, because that of a test ends with it.
struct SharedDaemon(Option<(RunningDaemon, Runtime)>);

impl SharedDaemon {
    fn start() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let running = runtime.block_on(async {
            let plane = ControlPlane::pooled().await?;
            RunningDaemon::start(plane, &[NO_GRACE]).await
        });
        Ok(Self(Some((running?, runtime))))
    }
}

impl Drop for SharedDaemon {
    fn drop(&mut self) {
        if let Some((RunningDaemon { daemon, plane, .. }, runtime)) = self.0.take() {
            // A runtime cannot end within another one. The plane returns to the pool after it.
            thread::spawn(move || {
                drop(daemon);
                runtime.shutdown_timeout(END_LIMIT);
                drop(plane);
            });
        }
    }
}

impl Deref for NamespaceEnvironment {
    type Target = RunningDaemon;

    fn deref(&self) -> &RunningDaemon {
        match &self.side {
            Side::Own(running) => running,
            Side::Shared(shared) => match &shared.0 {
                Some((running, _)) => running,
                None => unreachable!("only dropping takes it"),
            },
        }
    }
}

impl RunningDaemon {
    async fn start(plane: PooledPlane, flags: &[&str]) -> Result<Self> {
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
        let kubeconfig = proxy.kubeconfig(&kubeconfig, "portreeve")?;
        Ok(Self {
            daemon: run(&kubeconfig, flags).await?,
            kubeconfig,
            proxy,
            plane,
        })
    }
}

impl NamespaceEnvironment {
    /// Creates a namespace on the control plane of the shared daemon, which runs without a grace.
    ///
    /// Lists may fail there while definitions of other tests come and go, and the conditions of
    /// every namespace then say so. A test that counts writes starts a daemon of its own.
    pub(super) async fn shared() -> Result<Self> {
        let mut shared = SHARED.lock().await;
        let running = if let Some(running) = shared.upgrade() {
            running
        } else {
            let running = Arc::new(spawn_blocking(SharedDaemon::start).await??);
            *shared = Arc::downgrade(&running);
            running
        };
        drop(shared);
        Self::of(Side::Shared(running)).await
    }

    /// Starts a daemon with these flags, and creates a namespace to delete.
    pub(super) async fn start(flags: &[&str]) -> Result<Self> {
        Self::start_on(ControlPlane::pooled().await?, flags).await
    }

    pub(super) async fn start_on(plane: PooledPlane, flags: &[&str]) -> Result<Self> {
        Self::of(Side::Own(RunningDaemon::start(plane, flags).await?.into())).await
    }

    async fn of(side: Side) -> Result<Self> {
        let plane = match &side {
            Side::Own(running) => &running.plane,
            Side::Shared(shared) => &shared.0.as_ref().context("the daemon has ended")?.0.plane,
        };
        let tenant = DynamicClient::new(plane, "tenant").await?;
        Ok(Self { side, tenant })
    }

    /// Stops the daemon and starts another one.
    pub(super) async fn restart(self, flags: &[&str]) -> Result<Self> {
        let Self { side, tenant } = self;
        let Side::Own(running) = side else {
            bail!("the daemon is that of other tests as well");
        };
        let running = *running;
        running.daemon.stop().await?;
        let daemon = run(&running.kubeconfig, flags).await?;
        let side = Side::Own(RunningDaemon { daemon, ..running }.into());
        Ok(Self { side, tenant })
    }

    pub(super) fn client(&self) -> &Client {
        self.tenant.client()
    }

    pub(super) fn name(&self) -> &str {
        self.tenant.name()
    }

    /// Changes the namespace with a JSON merge patch.
    pub(super) async fn merge(&self, patch: Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client().clone());
        namespaces
            .patch(self.name(), &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    pub(super) async fn delete(&self) -> Result<()> {
        delete_tenant(self.client(), self.name()).await
    }

    /// Removes the finalizers of an object, and waits until the namespace is gone.
    pub(super) async fn release(&self, held: &DynamicObject) -> Result<()> {
        let patch = json!({"metadata": {"finalizers": null}});
        self.tenant.patch(held, patch).await?;
        self.wait_until_gone().await
    }

    pub(super) async fn wait_until_gone(&self) -> Result<()> {
        wait_until_gone(self.client(), self.name()).await
    }

    /// Returns the namespace as JSON.
    pub(super) async fn namespace(&self) -> Result<Value> {
        let namespaces: Api<Namespace> = Api::all(self.client().clone());
        Ok(json!(namespaces.get(self.name()).await?))
    }

    /// Returns the message of a condition with a status, in the current state of the namespace.
    pub(super) async fn message(&self, type_: &str, status: &str) -> Result<String> {
        let namespace = self.namespace().await?;
        let conditions = namespace["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let condition = conditions.iter().find(|condition| condition["type"] == type_);
        let condition = condition.with_context(|| format!("there is no condition {type_}"))?;
        ensure!(condition["status"] == status, "{condition}");
        Ok(condition["message"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a condition has this status and these words in its message.
    pub(super) async fn wait_for_condition(&self, type_: &str, status: &str, words: &str) -> Result<()> {
        eventually(LIMIT, &format!("condition {type_} with {words:?}"), || async {
            let message = self.message(type_, status).await?;
            ensure!(message.contains(words), "{type_} is {message:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the page about the namespace has these words.
    pub(super) async fn wait_for_explanation(&self, words: &str) -> Result<()> {
        let path = format!("/debug/controllers/namespace-controller/explain?name={}", self.name());
        eventually(LIMIT, &format!("an explanation with {words:?}"), || async {
            let (status, body) = self.daemon.admin.get(&path).await?;
            ensure!(status == 200 && body.contains(words), "{status}: {body}");
            anyhow::Ok(())
        })
        .await
    }

    /// Checks that no request was forbidden, and stops the daemon if no other test has it.
    pub(super) async fn finish(self) -> Result<()> {
        match self.side {
            Side::Own(running) => running.daemon.finish().await,
            Side::Shared(_) => self.daemon.check().await,
        }
    }
}

async fn run(kubeconfig: &Path, flags: &[&str]) -> Result<InProcess> {
    let flags = [&[CONTROLLERS, OPEN_PAGES], flags].concat();
    InProcess::start_as(kubeconfig, Arc::new(SystemClock), portreeve_cli::CONTROLLERS, &flags).await
}
