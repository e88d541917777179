//! Checks the user agents of the daemon's requests in the audit log.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, eventually};

use crate::{
    audit::{AuditLog, Event, policy},
    fixtures::{LIMIT, daemon::Daemon, namespace::NamespaceFixture},
};

/// Returns every request that the daemon has sent so far.
pub(crate) fn daemon_requests(plane: &ControlPlane) -> Result<Vec<Event>> {
    let mut requests = AuditLog::of(plane)?.events_since(0)?;
    let mut seen = BTreeSet::new();
    // A watch is logged twice: when the apiserver responds and when the watch ends.
    requests.retain(|request| request.is_of_daemon() && seen.insert(request.audit_id.clone()));
    Ok(requests)
}

/// Returns the verbs and resources of the daemon's requests, by user agent.
fn requests_by_agent(plane: &ControlPlane) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut agents: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for request in daemon_requests(plane)? {
        let what = format!("{} {}", request.verb, request.resource());
        agents.entry(request.user_agent.clone()).or_default().insert(what);
    }
    Ok(agents)
}

#[tokio::test]
async fn each_request_names_its_component_in_the_user_agent() -> Result<()> {
    let plane = ControlPlane::builder().audit_policy(policy::REQUESTS).pooled().await?;
    let daemon = Daemon::start(&plane, "audited-daemon", &["--install-crds", "--controllers=foo"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "audited").await?;
    fixture.ready_foo("web", 1).await?;
    fixture.wait_for_events("web", &["Synced"]).await?;
    let agents = eventually(LIMIT, "the lookup of the CAs of client certificates", || async {
        let agents = requests_by_agent(&plane)?;
        ensure!(
            agents.keys().any(|agent| agent.ends_with(" authentication")),
            "{agents:#?}"
        );
        anyhow::Ok(agents)
    })
    .await?;
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
    ensure!(of("authentication")? == ["get configmaps"], "{agents:#?}");
    let watched = ["customresourcedefinitions", "deployments", "foos"];
    let expected: Vec<_> = ["list", "watch"]
        .iter()
        .flat_map(|verb| watched.map(|it| format!("{verb} {it}")))
        .collect();
    ensure!(of("shared-informers")? == expected, "{agents:#?}");
    ensure!(
        agents.len() == 5,
        "the fifth agent is the manager, which installs CRDs: {agents:#?}"
    );
    Ok(())
}
