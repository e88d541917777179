//! `portreeve fence` on the real apiserver: the writes that it admits and rejects.

mod environment;
mod everything;
mod reinstalled;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{coordination::v1::Lease, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use self::environment::{FenceEnvironment, is_fenced};
use crate::fixtures::LIMIT;

const UUID: &str = "8d2b6a0e-4f55-4c4e-9f0e-0c6f3f1a7b52";

#[tokio::test]
async fn only_the_pod_that_holds_the_lease_writes() -> Result<()> {
    let environment = FenceEnvironment::new("fenced").await?;
    environment.fence().await?;
    let (first, second) = (environment.replica("web-a").await?, environment.replica("web-b").await?);
    let unbound = environment.client_of(&environment.account, None).await?;
    let bystander = environment.client_of(&environment.bystander, Some("web-c")).await?;
    let administrator = environment.namespace.client();

    environment.set_leader(&format!("web-a_{UUID}"), &first).await?;
    environment.ensure_fenced(&second, "another pod of the account").await?;
    environment.ensure_fenced(&unbound, "a token without a pod").await?;
    environment.write(&bystander).await.context("another account")?;
    environment.write(administrator).await.context("the administrator")?;

    environment.set_leader(&format!("web-b_{UUID}"), &second).await?;
    environment.ensure_fenced(&first, "the former leader").await?;

    environment.set_holder("").await?;
    let released = || async {
        ensure!(
            is_fenced(&environment.write(&second).await)?,
            "a write of the last leader passed the fence"
        );
        Ok(())
    };
    eventually(LIMIT, "the fence to observe the release", released).await?;
    for who in [&first, &second, &unbound] {
        environment.ensure_fenced(who, "a replica without a leader").await?;
    }
    environment.write(&bystander).await.context("another account")?;
    environment.write(administrator).await.context("the administrator")?;
    Ok(())
}

#[tokio::test]
async fn the_fence_compares_the_whole_name_before_the_last_underscore() -> Result<()> {
    let environment = FenceEnvironment::new("compared").await?;
    environment.fence().await?;
    let (short, long) = (environment.replica("a").await?, environment.replica("a.b").await?);
    for identity in [
        format!("a_b_{UUID}"),
        "a".to_owned(),
        "_".to_owned(),
        format!("aa_{UUID}"),
    ] {
        // Make pod `a` the leader between two identities, so that each starts from a known state.
        environment.set_leader(&format!("a_{UUID}"), &short).await?;
        environment.set_holder(&identity).await?;
        eventually(LIMIT, &format!("the fence to observe {identity}"), || async {
            ensure!(
                is_fenced(&environment.write(&short).await)?,
                "a write of pod a passed while the holder is {identity}"
            );
            Ok(())
        })
        .await?;
        environment.ensure_fenced(&long, &identity).await?;
    }
    environment.set_leader(&format!("a.b_{UUID}"), &long).await?;
    environment.ensure_fenced(&short, "a prefix of the leader's name").await
}

#[tokio::test]
async fn every_kind_of_write_is_fenced_except_leases_and_events() -> Result<()> {
    let environment = FenceEnvironment::new("kinds").await?;
    let (leader, standby) = (environment.replica("web-a").await?, environment.replica("web-b").await?);
    let foo = crate::fixtures::namespace::NamespaceFixture {
        namespace: environment.namespace.clone(),
    };
    foo.ready_foo("web", 1).await?;
    environment.fence().await?;
    environment.set_leader(&format!("web-a_{UUID}"), &leader).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"written": "yes"}}}));
    let status = json!({"status": {"conditions": []}});
    let (plain, remove) = (PatchParams::default(), DeleteParams::default());

    let foos: Api<portreeve_foo::api::Foo> = Api::namespaced(standby.clone(), environment.namespace.name());
    let deployments = environment.deployments(&standby);
    ensure!(is_fenced(&deployments.patch("web", &plain, &label).await)?, "a patch");
    ensure!(is_fenced(&deployments.delete("web", &remove).await)?, "a deletion");
    ensure!(
        is_fenced(&foos.patch_status("web", &plain, &Patch::Merge(&status)).await)?,
        "a status"
    );
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let definition = async |client: &Client| {
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        definitions
            .patch("foos.samplecontroller.k8s.io", &dry_run, &label)
            .await
    };
    ensure!(is_fenced(&definition(&standby).await)?, "a definition");
    definition(&leader).await.context("a definition")?;
    deployments.list(&ListParams::default()).await.context("reading")?;
    let renewal = Patch::Merge(json!({"spec": {"leaseTransitions": 3}}));
    let leases: Api<Lease> = Api::namespaced(standby.clone(), environment.namespace.name());
    leases.patch("lease", &plain, &renewal).await.context("the Lease")?;
    let events: Api<Event> = Api::namespaced(standby, environment.namespace.name());
    let event: Event = serde_json::from_value(event(environment.namespace.name()))?;
    events
        .create(&PostParams::default(), &event)
        .await
        .context("an Event")?;

    let foos: Api<portreeve_foo::api::Foo> = Api::namespaced(leader.clone(), environment.namespace.name());
    let deployments = environment.deployments(&leader);
    foos.patch_status("web", &plain, &Patch::Merge(&status))
        .await
        .context("a status")?;
    deployments.patch("web", &plain, &label).await.context("a patch")?;
    deployments.delete("web", &remove).await.context("a deletion")?;
    Ok(())
}

fn event(namespace: &str) -> Value {
    json!({
        "metadata": {"name": "an-event", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "portreeve", "reportingInstance": "web-b",
        "action": "LeaderElection", "reason": "LeaderElection", "type": "Normal",
        "regarding": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "lease", "namespace": namespace},
    })
}

/// With `parameterNotFoundAction: Deny`, nobody could write a Deployment after the deletion.
#[tokio::test]
async fn all_may_write_after_the_lease_is_deleted() -> Result<()> {
    let environment = FenceEnvironment::new("deleted").await?;
    environment.fence().await?;
    let replica = environment.replica("web-a").await?;
    let bystander = environment.client_of(&environment.bystander, Some("web-c")).await?;
    environment.ensure_fenced(&replica, "a standby").await?;
    environment.leases().delete("lease", &DeleteParams::default()).await?;
    eventually(LIMIT, "writes of the replica to pass", || async {
        // These two accounts may write at every moment in between.
        environment.write(&bystander).await.context("another account")?;
        environment
            .write(environment.namespace.client())
            .await
            .context("the administrator")?;
        anyhow::Ok(environment.write(&replica).await?)
    })
    .await?;
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "lease"}}))?;
    environment.leases().create(&PostParams::default(), &lease).await?;
    eventually(LIMIT, "the fence to be enforced again", || async {
        ensure!(is_fenced(&environment.write(&replica).await)?, "a write passed");
        Ok(())
    })
    .await
}

/// Needs its own control plane: if another fence is deleted, its apiserver stops watching Leases.
#[tokio::test]
async fn a_fence_that_is_switched_off_and_on_follows_the_lease() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let environment = FenceEnvironment::on(&plane, "switched").await?;
    environment.fence().await?;
    let (first, second) = (environment.replica("web-a").await?, environment.replica("web-b").await?);
    environment.set_leader(&format!("web-a_{UUID}"), &first).await?;
    environment.ensure_fenced(&second, "a standby").await?;
    environment
        .apply(&environment.account, &["--controllers=foo", "--action=Audit"])
        .await?;
    eventually(LIMIT, "writes to pass", || environment.write(&second)).await?;
    environment.set_holder("").await?;
    environment.write(&first).await.context("the former leader")?;
    environment.fence().await?;
    environment.set_leader(&format!("web-b_{UUID}"), &second).await?;
    environment.ensure_fenced(&first, "the former leader").await
}
