//! The subject of these tests: a process that collects garbage, and what it shows of itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use kube::api::DynamicObject;
use portreeve_testing::{ControlPlane, eventually};

use super::graph::Graph;
use crate::{
    shared::apply_and_wait,
    support::{
        LIMIT, SETTLED,
        daemon::{Daemon, printed},
    },
};

pub(super) const CONTROLLER: &str = "--controllers=garbage-collector-controller";
pub(super) const PAGES: &str = "/debug/controllers/garbage-collector-controller";
/// What opens the pages for a test.
const OPEN: &str = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/readyz/*,/metrics,\
    /debug/controllers/garbage-collector-controller/*";

pub(super) struct Collector {
    pub(super) daemon: Daemon,
}

impl Collector {
    /// Starts a collector as the administrator, and waits until it is at work.
    pub(super) async fn start(plane: &ControlPlane, args: &[&str]) -> Result<Self> {
        Self::start_as(plane, plane.kubeconfig(), "collector", args).await
    }

    /// The same, with somebody's rights.
    pub(super) async fn start_as(plane: &ControlPlane, kubeconfig: &Path, name: &str, args: &[&str]) -> Result<Self> {
        Self::start_with(plane, kubeconfig, name, args, &[]).await
    }

    /// The same, with more in its environment than it inherits.
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

    /// Fails when the apiserver has refused anything to it.
    pub(super) async fn ensure_nothing_forbidden(&self) -> Result<()> {
        let metrics = self.daemon.admin.metrics().await?;
        let refused = metrics.sum("rest_client_requests_total", &[r#"code="403""#]);
        ensure!(
            refused == 0.0,
            "{refused} requests were refused{}",
            self.daemon.process.log_tail()
        );
        let served = metrics.sum("rest_client_requests_total", &[r#"code="200""#]);
        ensure!(served > 0.0, "the metric has another name");
        Ok(())
    }

    /// Whether every resource is watched.
    pub(super) async fn is_synced(&self) -> Result<bool> {
        let (_, text) = self.daemon.admin.get("/readyz?verbose").await?;
        ensure!(text.contains("[+]gc/resources ok"), "{text}");
        Ok(text.contains("[+]gc/resources ok\n"))
    }

    /// Waits until every resource is watched.
    pub(super) async fn wait_until_synced(&self) -> Result<()> {
        eventually(LIMIT, "every resource to be synced", || async {
            ensure!(self.is_synced().await?, "some are not");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until a resource is known that cannot be watched.
    pub(super) async fn wait_until_not_synced(&self) -> Result<()> {
        eventually(LIMIT, "a resource that is not synced", || async {
            ensure!(!self.is_synced().await?, "all are");
            anyhow::Ok(())
        })
        .await
    }

    /// One of its pages, and whatever status it has.
    pub(super) async fn page(&self, path: &str) -> Result<(StatusCode, String)> {
        self.daemon.admin.get(&format!("{PAGES}/{path}")).await
    }

    /// All that an object is connected with.
    pub(super) async fn graph_of(&self, uid: &str) -> Result<Graph> {
        let (status, text) = self.page(&format!("graph?uid={uid}")).await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        Graph::parse(&text)
    }

    /// Whether there is a node for that UID. One without an owner and a dependent is not told from none.
    pub(super) async fn knows(&self, object: &DynamicObject) -> Result<bool> {
        let uid = object.metadata.uid.as_deref().context("it has no UID")?;
        let graph = self.graph_of(uid).await?;
        Ok(graph.vertices.get(uid).is_some_and(|vertex| !vertex.is("missing")))
    }

    /// Waits until all of these were observed. Each must have an owner or a dependent.
    pub(super) async fn wait_until_observes(&self, objects: &[&DynamicObject]) -> Result<()> {
        for object in objects {
            let uid = object.metadata.uid.as_deref().context("it has no UID")?;
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

    /// Waits until there is no node for this.
    pub(super) async fn wait_until_forgets(&self, object: &DynamicObject) -> Result<()> {
        eventually(SETTLED, "an object to leave the graph", || async {
            ensure!(!self.knows(object).await?, "{object:?}");
            anyhow::Ok(())
        })
        .await
    }
}

/// The kubeconfig of an account that may do exactly what `portreeve rbac` prints for the collector.
pub(super) async fn bound_kubeconfig(plane: &ControlPlane) -> Result<PathBuf> {
    let system = plane.namespace("portreeve-system").await?;
    let rbac = printed(&["rbac", CONTROLLER, "--namespace", system.name()])?;
    apply_and_wait(system.client(), system.name(), &rbac).await?;
    plane
        .service_account_kubeconfig(system.name(), "portreeve", Vec::new())
        .await
}
