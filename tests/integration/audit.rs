//! Checks the daemon's requests in the apiserver's audit log: their user agents, and that
//! controllers with the same watch share it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::{
    controllers::{self, in_namespace},
    fixtures::{LIMIT, daemon::Daemon, in_process::InProcess, namespace::NamespaceFixture},
};

/// An audit policy that logs the metadata of each request once, when the apiserver
/// responds.
pub(crate) const POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}"#;

/// One request of the daemon.
#[derive(Debug)]
pub(crate) struct AuditedRequest {
    pub(crate) agent: String,
    pub(crate) verb: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
}

/// Returns every request that the daemon has sent so far.
pub(crate) fn daemon_requests(plane: &ControlPlane) -> Result<Vec<AuditedRequest>> {
    let log = fs::read_to_string(plane.audit_log().context("the control plane has no audit log")?)?;
    let mut seen = BTreeSet::new();
    let mut requests = Vec::new();
    for line in log.lines() {
        // The apiserver may still be writing the last line.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let text = |pointer: &str| {
            event
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let agent = text("/userAgent");
        // A watch is logged twice: when the apiserver responds and when the watch ends.
        if agent.starts_with("portreeve/") && seen.insert(text("/auditID")) {
            requests.push(AuditedRequest {
                agent,
                verb: text("/verb"),
                resource: text("/objectRef/resource"),
                namespace: text("/objectRef/namespace"),
            });
        }
    }
    Ok(requests)
}

#[tokio::test]
async fn each_request_names_its_component_in_the_user_agent() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(POLICY).start().await?;
    let daemon = Daemon::start(&plane, "audited-daemon", &["--install-crds", "--controllers=foo"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "audited").await?;
    fixture.ready_foo("web", 1).await?;
    fixture.wait_for_events("web", &["Synced"]).await?;
    let mut agents: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for request in daemon_requests(&plane)? {
        agents
            .entry(request.agent)
            .or_default()
            .insert(format!("{} {}", request.verb, request.resource));
    }
    let version = env!("CARGO_PKG_VERSION");
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let of = |component: &str| {
        let agent = format!("portreeve/{version} ({os}/{arch}) {component}");
        let requests = agents
            .get(&agent)
            .with_context(|| format!("{agent} is not among {agents:#?}"))?;
        anyhow::Ok(requests.iter().map(String::as_str).collect::<Vec<_>>())
    };
    ensure!(
        of("foo-controller")? == ["create deployments", "patch foos"],
        "{agents:#?}"
    );
    ensure!(of("events")? == ["create events"], "{agents:#?}");
    let watched = ["customresourcedefinitions", "deployments", "foos"];
    let expected: Vec<_> = ["list", "watch"]
        .iter()
        .flat_map(|verb| watched.map(|it| format!("{verb} {it}")))
        .collect();
    ensure!(of("shared-informers")? == expected, "{agents:#?}");
    ensure!(
        agents.len() == 4,
        "the fourth agent is the manager, which installs CRDs: {agents:#?}"
    );
    Ok(())
}

#[tokio::test]
async fn controllers_with_the_same_watch_share_one_list_and_one_watch() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(POLICY).start().await?;
    let namespace = plane.namespace("twins").await?;
    for name in ["a", "b", "c"] {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespace.api().create(&PostParams::default(), &map).await?;
    }
    let flag = in_namespace(namespace.name());
    let daemon = InProcess::start(&plane, controllers::TWINS, &[&flag]).await?;
    for queue in [r#"name="FirstTwin""#, r#"name="SecondTwin""#] {
        daemon.wait_for_metric("workqueue_adds_total", &[queue], 3.0).await?;
    }
    let watching = eventually(LIMIT, "the watch to be answered", || async {
        let requests = daemon_requests(&plane)?;
        let mut verbs: Vec<_> = requests
            .iter()
            .filter(|request| request.namespace == namespace.name())
            .collect();
        verbs.sort_by(|a, b| a.verb.cmp(&b.verb));
        let verbs: Vec<_> = verbs
            .iter()
            .map(|request| format!("{} {}", request.verb, request.resource))
            .collect();
        ensure!(verbs.iter().any(|verb| verb.starts_with("watch")), "{verbs:?}");
        Ok(verbs)
    });
    let watching = watching.await?;
    ensure!(watching == ["list configmaps", "watch configmaps"], "{watching:?}");
    daemon.stop().await
}
