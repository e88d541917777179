//! A control plane behind a proxy, and a daemon with only this controller.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use portreeve_api::Resource;
use portreeve_reconcile::SystemClock;
use portreeve_testing::{ControlPlane, FaultProxy, PooledPlane, eventually};
use serde_json::{Value, json};

use super::profile::wait_until_gone;
use crate::fixtures::{LIMIT, dynamic_client::DynamicClient, in_process::InProcess, rbac::restricted_kubeconfig};

pub(super) const NAMESPACES: Resource = Resource::cluster("", "v1", "Namespace", "namespaces");
pub(super) const CONTROLLERS: &str = "--controllers=namespace";
/// The flag that allows requests to the debug pages without authorization.
const OPEN_PAGES: &str = "--authorization-always-allow-paths=/debug/controllers/*";
/// One apiserver needs no grace.
pub(super) const NO_GRACE: &str = "--namespace-deletion-grace=0s";

pub(super) struct NamespaceEnvironment {
    // The fields are dropped in this order.
    pub(super) daemon: InProcess,
    pub(super) tenant: DynamicClient,
    kubeconfig: PathBuf,
    pub(super) proxy: FaultProxy,
    _plane: PooledPlane,
}

impl NamespaceEnvironment {
    /// Starts a daemon with these flags, and creates a namespace to delete.
    pub(super) async fn start(flags: &[&str]) -> Result<Self> {
        Self::start_on(ControlPlane::pooled().await?, flags).await
    }

    pub(super) async fn start_on(plane: PooledPlane, flags: &[&str]) -> Result<Self> {
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
        let kubeconfig = proxy.kubeconfig(&kubeconfig, "portreeve")?;
        let tenant = DynamicClient::new(&plane, "tenant").await?;
        let daemon = run(&kubeconfig, flags).await?;
        Ok(Self {
            daemon,
            tenant,
            kubeconfig,
            proxy,
            _plane: plane,
        })
    }

    /// Stops the daemon and starts another one.
    pub(super) async fn restart(self, flags: &[&str]) -> Result<Self> {
        let Self { daemon, .. } = self;
        daemon.stop().await?;
        let daemon = run(&self.kubeconfig, flags).await?;
        Ok(Self { daemon, ..self })
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
        let namespaces: Api<Namespace> = Api::all(self.client().clone());
        namespaces.delete(self.name(), &DeleteParams::default()).await?;
        Ok(())
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

    /// Stops the daemon, after checking that no request was forbidden.
    pub(super) async fn finish(self) -> Result<()> {
        self.daemon.finish().await
    }
}

async fn run(kubeconfig: &std::path::Path, flags: &[&str]) -> Result<InProcess> {
    let flags = [&[CONTROLLERS, OPEN_PAGES], flags].concat();
    InProcess::start_as(kubeconfig, Arc::new(SystemClock), portreeve_cli::CONTROLLERS, &flags).await
}
