//! Holds a write of foo-controller's in flight, inside the real apiserver, for as long as a test needs it there.
//!
//! The apiserver asks a webhook about each Deployment that foo-controller writes in one namespace. The webhook is a socket that takes the connection and says
//! nothing, so the request hangs; once the gate opens, the connection ends, the apiserver goes on as its failure policy says, and
//! the write succeeds. Nobody has to guess whether a call is under way: the gate has its connection.

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

/// As which foo-controller writes.
const WRITER: &str = "sample-controller";

pub(crate) struct AdmissionGate {
    listener: TcpListener,
}

/// One write that hangs until this is dropped.
pub(crate) struct HeldWrite {
    _connection: TcpStream,
}

impl AdmissionGate {
    /// Closes the gate for the Deployments of a fixture, and returns once the apiserver asks it.
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
        gate.wait_until_asked(fixture).await?;
        Ok(gate)
    }

    /// Waits for the next write to arrive, and holds it.
    pub(crate) async fn hold(&self) -> Result<HeldWrite> {
        let accepted = timeout(LIMIT, self.listener.accept()).await;
        let (connection, _) = accepted.context("no write came to the gate")??;
        Ok(HeldWrite {
            _connection: connection,
        })
    }

    /// Creates Deployments for show until one of them hangs here.
    async fn wait_until_asked(&self, fixture: &NamespaceFixture) -> Result<()> {
        let probe = serde_json::from_value(unrelated_deployment("probe"))?;
        let for_show = PostParams {
            dry_run: true,
            field_manager: Some(WRITER.to_owned()),
        };
        let deployments = fixture.deployments();
        eventually(LIMIT, "the apiserver to ask the gate", || async {
            tokio::select! {
                accepted = self.listener.accept() => accepted.ok().map(drop),
                _ = deployments.create(&for_show, &probe) => None,
            }
        })
        .await
    }
}
