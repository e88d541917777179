//! The process under test: a collector, with its debug pages and its metrics.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use kube::api::DynamicObject;
use portreeve_testing::{ControlPlane, eventually};

use super::graph::Graph;
use crate::fixtures::{LIMIT, daemon::Daemon, dynamic_client::DynamicClient, expected_objects::ExpectedObjects};

pub(super) const CONTROLLER: &str = "--controllers=garbage-collector-controller";
const PAGES: &str = "/debug/controllers/garbage-collector-controller";
/// The flag that allows requests to the debug pages without authorization.
const OPEN: &str = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/readyz/*,/metrics,\
    /debug/controllers/garbage-collector-controller/*";

pub(super) struct Collector {
    pub(super) daemon: Daemon,
}

impl Collector {
    /// Starts a collector with administrator rights, and waits until it is ready.
    pub(super) async fn start(plane: &ControlPlane, args: &[&str]) -> Result<Self> {
        Self::start_as(plane, plane.kubeconfig(), "collector", args).await
    }

    /// Starts a collector as [`Collector::start`] does, with the permissions of a kubeconfig.
    pub(super) async fn start_as(plane: &ControlPlane, kubeconfig: &Path, name: &str, args: &[&str]) -> Result<Self> {
        Self::start_with(plane, kubeconfig, name, args, &[]).await
    }

    /// Starts a collector as [`Collector::start_as`] does, with additional environment variables.
    pub(super) async fn start_with(
        plane: &ControlPlane,
        kubeconfig: &Path,
        name: &str,
        args: &[&str],
        envs: &[(&str, &str)],
    ) -> Result<Self> {
        let args: Vec<&str> = [OPEN, CONTROLLER].iter().chain(args).copied().collect();
        let daemon = Daemon::start_with(plane, kubeconfig, name, &args, envs).await?;
        daemon.admin.wait_until_ready().await?;
        Ok(Self { daemon })
    }

    /// Returns an error when the apiserver has rejected any request of the collector with 403.
    pub(super) async fn ensure_nothing_forbidden(&self) -> Result<()> {
        let metrics = self.daemon.admin.metrics().await?;
        let rejected = metrics.sum("rest_client_requests_total", &[r#"code="403""#]);
        ensure!(
            rejected == 0.0,
            "{rejected} requests were refused{}",
            self.daemon.process.log_tail()
        );
        let succeeded = metrics.sum("rest_client_requests_total", &[r#"code="200""#]);
        ensure!(
            succeeded > 0.0,
            "rest_client_requests_total counts no success, so it cannot show refusals either"
        );
        Ok(())
    }

    /// Waits until the cluster has the expected state.
    pub(super) async fn verify(
        &self,
        expected_objects: &ExpectedObjects,
        dynamic_client: &DynamicClient,
    ) -> Result<()> {
        let verified = expected_objects.verify(dynamic_client).await;
        let log = || self.daemon.process.log_tail();
        verified.with_context(|| format!("the cluster does not have the expected state{}", log()))
    }

    /// Returns whether the collector watches every resource.
    pub(super) async fn is_synced(&self) -> Result<bool> {
        let (_, text) = self.daemon.admin.get("/readyz?verbose").await?;
        ensure!(text.contains("[+]gc/resources ok"), "{text}");
        Ok(text.contains("[+]gc/resources ok\n"))
    }

    /// Waits until the collector watches every resource.
    pub(super) async fn wait_until_synced(&self) -> Result<()> {
        eventually(LIMIT, "every resource to be synced", || async {
            ensure!(self.is_synced().await?, "some resources are not synced");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the collector reports a resource that it cannot watch.
    pub(super) async fn wait_until_not_synced(&self) -> Result<()> {
        eventually(LIMIT, "a resource that is not synced", || async {
            ensure!(!self.is_synced().await?, "every resource is synced");
            anyhow::Ok(())
        })
        .await
    }

    /// Returns the status and the body of a debug page.
    pub(super) async fn page(&self, path: &str) -> Result<(StatusCode, String)> {
        self.daemon.admin.get(&format!("{PAGES}/{path}")).await
    }

    /// Returns the part of the graph that is connected with an object.
    pub(super) async fn graph_of(&self, uid: &str) -> Result<Graph> {
        let (status, text) = self.page(&format!("graph?uid={uid}")).await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        Graph::parse(&text)
    }

    /// Returns whether the graph has a node for the object. A node without owners and dependents
    /// counts as absent.
    pub(super) async fn has_node(&self, object: &DynamicObject) -> Result<bool> {
        let uid = object.metadata.uid.as_deref().context("the object has no UID")?;
        let graph = self.graph_of(uid).await?;
        Ok(graph.vertices.get(uid).is_some_and(|vertex| !vertex.is("missing")))
    }

    /// Waits until the collector has observed all these objects. Each must have an owner or a
    /// dependent.
    pub(super) async fn wait_until_observes(&self, objects: &[&DynamicObject]) -> Result<()> {
        for object in objects {
            let uid = object.metadata.uid.as_deref().context("the object has no UID")?;
            eventually(LIMIT, &format!("{uid} to be observed"), || async {
                let graph = self.graph_of(uid).await?;
                let vertex = graph.vertices.get(uid);
                let is_observed = vertex.is_some_and(|vertex| !vertex.is("missing") && !vertex.is("virtual"));
                ensure!(is_observed, "{graph:?}");
                anyhow::Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Waits until the graph has no node for the object.
    pub(super) async fn wait_until_not_in_graph(&self, object: &DynamicObject) -> Result<()> {
        eventually(LIMIT, "an object to leave the graph", || async {
            ensure!(!self.has_node(object).await?, "{object:?}");
            anyhow::Ok(())
        })
        .await
    }
}
