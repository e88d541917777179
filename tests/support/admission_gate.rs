//! Holds a write of foo-controller in flight, inside the real apiserver, for as long as a test
//! needs it.
//!
//! The apiserver calls a webhook for each Deployment that foo-controller writes in one namespace.
//! The webhook is a socket that accepts the connection and never responds, so the request hangs.
//! When the test drops the connection, the failure policy `Ignore` lets the write succeed. The test
//! holds the connection, so it knows that a write is in flight.

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{Api, api::PostParams};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{
    LIMIT,
    fixtures::{NamespaceFixture, unrelated_deployment},
};

/// The field manager of foo-controller.
const WRITER: &str = "sample-controller";

/// A webhook that blocks foo-controller's writes of Deployments in one namespace.
pub(crate) struct AdmissionGate {
    listener: TcpListener,
}

/// A write that hangs until this handle is dropped.
pub(crate) struct HeldWrite {
    _connection: TcpStream,
}

impl AdmissionGate {
    /// Closes the gate for the Deployments of a fixture, and waits until the apiserver calls the
    /// webhook.
    pub(crate) async fn close(plane: &ControlPlane, fixture: &NamespaceFixture) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://127.0.0.1:{}/", listener.local_addr()?.port());
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": fixture.name()},
            "webhooks": [{
                "name": "gate.example.com",
                "clientConfig": {"url": url},
                "rules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
                    "operations": ["CREATE", "UPDATE"]}],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.name()}},
                "matchConditions": [{"name": "writer", "expression": format!(
                    "has(request.options.fieldManager) && request.options.fieldManager == '{WRITER}'")}],
                "failurePolicy": "Ignore",
                "timeoutSeconds": 30,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        }))?;
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(plane.client()?);
        configurations.create(&PostParams::default(), &configuration).await?;
        let gate = Self { listener };
        gate.wait_until_called(fixture).await?;
        Ok(gate)
    }

    /// Waits for the next write, and holds it.
    pub(crate) async fn hold(&self) -> Result<HeldWrite> {
        let accepted = timeout(LIMIT, self.listener.accept()).await;
        let (connection, _) = accepted.context("no write arrived at the gate")??;
        Ok(HeldWrite {
            _connection: connection,
        })
    }

    /// Creates Deployments in dry runs until one of them arrives at the gate.
    async fn wait_until_called(&self, fixture: &NamespaceFixture) -> Result<()> {
        let probe = serde_json::from_value(unrelated_deployment("probe"))?;
        let dry_run = PostParams {
            dry_run: true,
            field_manager: Some(WRITER.to_owned()),
        };
        let deployments = fixture.deployments();
        eventually(LIMIT, "the apiserver to call the gate", || async {
            tokio::select! {
                accepted = self.listener.accept() => accepted.ok().map(drop),
                _ = deployments.create(&dry_run, &probe) => None,
            }
        })
        .await
    }
}
