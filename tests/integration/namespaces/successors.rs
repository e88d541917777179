//! A namespace that is created again under the same name loses nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{ListParams, PostParams},
};
use portreeve_testing::{Fault, Matcher, Repeat, eventually};
use serde_json::json;

use super::environment::{LATE, NO_GRACE, NamespaceEnvironment, REQUEST_TIMEOUT};
use crate::fixtures::{
    LIMIT,
    object_builder::{config_map, secret},
    rounds::rounds,
};

/// More objects than are deleted one by one.
const MANY: usize = 12;

async fn create_many(environment: &NamespaceEnvironment) -> Result<()> {
    for number in 0..MANY {
        environment
            .tenant
            .create(config_map(&format!("object-{number}")))
            .await?;
    }
    Ok(())
}

/// Returns a matcher for deletions of the ConfigMaps as a collection.
fn deletions(environment: &NamespaceEnvironment) -> Matcher {
    let path = format!("/api/v1/namespaces/{}/configmaps", environment.name());
    Matcher::any().method("DELETE").path_prefix(path)
}

#[tokio::test]
async fn a_deletion_without_an_answer_keeps_the_namespace() -> Result<()> {
    // Long enough for the page to say so on a slow machine.
    const LATE: Duration = Duration::from_secs(10);
    let environment = NamespaceEnvironment::start(&[NO_GRACE, "--namespace-request-timeout=10s"]).await?;
    create_many(&environment).await?;
    let lost = environment
        .proxy
        .fault(deletions(&environment), Fault::DropResponse, Repeat::Next(1));
    environment.delete().await?;
    lost.wait_for_applied(1, LIMIT).await?;
    let began = Instant::now();
    environment
        .wait_for_explanation("a deletion of its content got no answer")
        .await?;
    environment.wait_until_gone().await?;
    let kept = began.elapsed();
    ensure!(
        kept >= LATE,
        "the namespace was finalized {kept:?} after a deletion without an answer"
    );
    environment.finish().await
}

/// The conditions tell a new leader that the former one may have sent deletions.
#[tokio::test]
async fn a_new_leader_keeps_what_a_former_one_may_be_deleting() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    create_many(&environment).await?;
    let held = environment
        .tenant
        .create(secret("held").finalizer("example.com/hold"))
        .await?;
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceFinalizersRemaining", "True", "example.com/hold")
        .await?;
    let began = Instant::now();
    let environment = environment.restart(&[NO_GRACE, REQUEST_TIMEOUT]).await?;
    environment.release(&held).await?;
    ensure!(
        began.elapsed() >= LATE,
        "the namespace was finalized after {:?}",
        began.elapsed()
    );
    environment.finish().await
}

/// Requests and answers are delayed while the namespace is deleted and created again, so that a
/// stray deletion would meet its successor.
#[tokio::test]
async fn successors_of_the_same_name_lose_nothing() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, REQUEST_TIMEOUT]).await?;
    let namespaces: Api<Namespace> = Api::all(environment.client().clone());
    let maps: Api<ConfigMap> = Api::namespaced(environment.client().clone(), environment.name());
    let faults = [
        Fault::DelayRequest(Duration::from_millis(300)),
        Fault::DelayResponse(Duration::from_millis(300)),
        Fault::DropResponse,
        Fault::Cut,
    ];
    for round in 0..rounds(faults.len())? {
        create_many(&environment).await?;
        let fault = faults[round % faults.len()].clone();
        let applied = environment.proxy.fault(deletions(&environment), fault, Repeat::Next(2));
        environment.delete().await?;
        applied.wait_for_applied(1, LIMIT).await?;
        environment.wait_until_gone().await?;
        environment.proxy.heal();
        let again: Namespace = serde_json::from_value(json!({"metadata": {"name": environment.name()}}))?;
        eventually(LIMIT, "the namespace to be created again", || async {
            namespaces
                .create(&PostParams::default(), &again)
                .await
                .context("not yet")
        })
        .await?;
        let kept: ConfigMap = serde_json::from_value(json!({"metadata": {"name": format!("kept-{round}")}}))?;
        maps.create(&PostParams::default(), &kept).await?;
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let count = maps.list_metadata(&ListParams::default()).await?.items.len();
            ensure!(count == 1, "round {round}: {count} ConfigMaps");
        }
    }
    environment.finish().await
}
