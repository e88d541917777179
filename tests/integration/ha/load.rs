//! A load of Foos that change continuously.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{ResourceExt, api::ListParams};
use portreeve_api::conditions::{self, ConditionStatus};
use portreeve_testing::eventually;
use serde_json::json;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::fixtures::{
    LIMIT,
    namespace::{NamespaceFixture, replicas},
};

/// The largest number of replicas that a Foo asks for.
const MOST: i32 = 9;

/// A task that changes Foos one after the other until it is stopped.
pub(crate) struct Load {
    ending: watch::Sender<bool>,
    running: JoinSet<Result<LoadSummary>>,
}

/// The numbers of changes of a load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadSummary {
    /// Changes that the apiserver accepted.
    pub(crate) changes: usize,
    /// Changes that failed.
    pub(crate) failures: usize,
}

impl Load {
    /// Creates the Foos and starts to change them, `per_second` times a second.
    pub(crate) async fn start(fixture: &NamespaceFixture, foos: usize, per_second: u32) -> Result<Self> {
        for number in 0..foos {
            let name = format!("web-{number}");
            fixture.create_foo(&name, &name, 1).await?;
        }
        let (ending, ended) = watch::channel(false);
        let mut running = JoinSet::new();
        running.spawn(change(fixture.clone(), foos, per_second, ended));
        Ok(Self { ending, running })
    }

    /// Stops the changes and waits until the controllers have reconciled all of them.
    pub(crate) async fn finish(mut self, fixture: &NamespaceFixture) -> Result<LoadSummary> {
        self.ending.send_replace(true);
        let end = self.running.join_next().await.context("the load ended by itself")?;
        let done = end.context("the load's task panicked")??;
        wait_until_converged(fixture).await?;
        Ok(done)
    }
}

async fn change(
    fixture: NamespaceFixture,
    foos: usize,
    per_second: u32,
    mut ended: watch::Receiver<bool>,
) -> Result<LoadSummary> {
    let mut done = LoadSummary::default();
    let mut ticks = interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_usize.. {
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => break,
            _ = ticks.tick() => {}
        }
        let (foo, round) = (number % foos, number / foos);
        let name = format!("web-{foo}");
        // Some rounds rename the Deployment, so that the controller creates and deletes
        // Deployments.
        let deployment = |round: usize| {
            let suffix = if (round + foo) % 10 < 5 { "" } else { "-moved" };
            format!("{name}{suffix}")
        };
        // Acts as a Deployment controller. It fails if that Deployment does not exist yet.
        _ = fixture.set_available(&deployment(round.saturating_sub(1)), MOST).await;
        let spec = json!({"replicas": 1 + (round + 1) % 9, "deploymentName": deployment(round)});
        match fixture.merge_foo(&name, json!({ "spec": spec })).await {
            Ok(_) => done.changes += 1,
            Err(_) => done.failures += 1,
        }
    }
    Ok(done)
}

/// Acts as a Deployment controller, and waits until every Foo is ready and has the Deployment of
/// its spec, and no other Deployments exist.
pub(crate) async fn wait_until_converged(fixture: &NamespaceFixture) -> Result<()> {
    eventually(LIMIT, "every Foo to have its Deployment", || async {
        let foos = fixture.foos().list(&ListParams::default()).await?.items;
        let deployments = fixture.deployments().list(&ListParams::default()).await?.items;
        for foo in &foos {
            let name = foo.name_any();
            let status = foo.status.as_ref().context("a Foo has no status")?;
            let ready = conditions::find_status_condition(&status.conditions, "Ready").map(|ready| ready.status);
            let is_current = Some(status.observed_generation) == foo.metadata.generation;
            ensure!(
                is_current && ready == Some(ConditionStatus::True),
                "Foo {name}: {}",
                json!(status)
            );
            let wanted = &foo.spec.deployment_name;
            let mut matching = deployments.iter().filter(|deployment| deployment.name_any() == *wanted);
            let deployment = matching.next().with_context(|| format!("no Deployment {wanted}"))?;
            let found = replicas(deployment);
            ensure!(found == Some(foo.spec.replicas), "Deployment {wanted} has {found:?}");
            let status = deployment.status.clone().unwrap_or_default();
            if (status.available_replicas, status.observed_generation) != (Some(MOST), deployment.metadata.generation) {
                fixture.set_available(wanted, MOST).await?;
            }
        }
        ensure!(deployments.len() == foos.len(), "{} Deployments", deployments.len());
        anyhow::Ok(())
    })
    .await
}
