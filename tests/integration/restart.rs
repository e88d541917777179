//! The daemon is killed in the middle of its work.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::{ResourceExt, api::ListParams};
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::{Fault, FaultProxy, Matcher, Repeat, Signal};

use crate::fixtures::{LIMIT, daemon::Daemon, definitions::plane_with_definitions, namespace::NamespaceFixture};

const FOOS: usize = 100;
/// The delay of each status write, so that the daemon is killed before it has written them all.
const LATE: Duration = Duration::from_millis(100);
/// The number of status writes after which the daemon is killed.
const FIRST: u64 = 5;

#[tokio::test]
async fn a_killed_daemon_resumes_its_work_after_a_restart() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let statuses = proxy.fault(
        Matcher::writes().resource("foos/status"),
        Fault::DelayRequest(LATE),
        Repeat::UntilHealed,
    );
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "mortal-daemon")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal-daemon", &["--install-crds"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "killed").await?;
    let names: Vec<String> = (0..FOOS).map(|number| format!("web-{number}")).collect();
    let creations = try_join_all(names.iter().map(|name| fixture.create_foo(name, name, 2)));
    let killed = async {
        statuses.wait_for_applied(FIRST, LIMIT).await?;
        daemon.process.signal(Signal::KILL)?;
        daemon.process.wait(LIMIT).await
    };
    let (created, killed) = futures::future::join(creations, killed).await;
    created?;
    killed?;
    let deployments = fixture.deployments();
    let made = deployments.list(&ListParams::default()).await?.items;
    let all = fixture.foos().list(&ListParams::default()).await?.items;
    let ready = all.iter().filter(|foo| foo.status.is_some()).count();
    println!(
        "killed with {} of {FOOS} Deployments and {ready} statuses written",
        made.len()
    );
    ensure!(ready < FOOS, "the kill interrupted nothing");

    let daemon = Daemon::start(&plane, "mortal-daemon", &["--install-crds"]).await?;
    for name in &names {
        fixture.wait_for_condition(name, "Ready", ConditionStatus::True).await?;
    }
    let now = deployments.list(&ListParams::default()).await?.items;
    ensure!(now.len() == FOOS, "{} Deployments", now.len());
    for deployment in &now {
        let name = deployment.name_any();
        ensure!(
            deployment.metadata.generation == Some(1),
            "{name} was written again: {deployment:#?}"
        );
        ensure!(deployment.owner_references().len() == 1, "{name}");
        let before = made.iter().find(|before| before.name_any() == name);
        ensure!(
            before.is_none_or(|before| before.uid() == deployment.uid()),
            "{name} was replaced"
        );
    }
    for name in &names {
        let events = fixture.events_on(name).await?;
        ensure!(events.len() <= 1, "{events:#?}");
        ensure!(events.iter().all(|event| event.series.is_none()), "{events:#?}");
    }
    let log = daemon.process.log().context("the daemon has no log")?;
    let panics = std::fs::read_to_string(log)?.matches("panicked").count();
    ensure!(panics == 0, "{panics} panics");
    Ok(())
}
