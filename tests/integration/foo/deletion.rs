//! Tests of Foos that are being deleted.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, PropagationPolicy},
};
use serde_json::json;

use crate::fixtures::{namespace::replicas, shared_daemon::fixture};

/// Foreground deletion keeps the Foo, with a deletionTimestamp, until its dependents are gone.
#[tokio::test]
async fn a_terminating_foo_is_neither_applied_nor_recreated() -> Result<()> {
    let fixture = fixture("terminating").await?;
    let (_, deployment) = fixture.ready_foo("web", 2).await?;
    let foreground = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    fixture.foos().delete("web", &foreground).await?;
    let foo = fixture.foos().get("web").await?;
    ensure!(foo.metadata.deletion_timestamp.is_some(), "{foo:?}");
    ensure!(foo.finalizers() == ["foregroundDeletion"], "{foo:?}");
    // The controller repairs the Deployment until its watch has delivered the deletion of the Foo,
    // so the test waits for that.
    wait_for_a_later_foo(&fixture, "after-the-beginning").await?;

    let drifted = fixture
        .merge_deployment("web", json!({"spec": {"replicas": 9}}))
        .await?;
    wait_for_a_later_foo(&fixture, "after-the-drift").await?;
    let now = fixture.deployments().get("web").await?;
    ensure!(now.uid() == deployment.uid() && replicas(&now) == Some(9), "{now:?}");
    ensure!(now.resource_version() == drifted.resource_version(), "{now:?}");

    fixture.delete_deployment("web").await?;
    wait_for_a_later_foo(&fixture, "after-the-deletion").await?;
    ensure!(
        fixture.deployments().get_opt("web").await?.is_none(),
        "the controller recreated the Deployment"
    );
    Ok(())
}

/// Creates a Foo and waits until it is ready. The queue is first in, first out, and a Foo needs
/// several steps, so the controller has then processed everything that was due before.
async fn wait_for_a_later_foo(fixture: &crate::fixtures::namespace::NamespaceFixture, name: &str) -> Result<()> {
    fixture.ready_foo(name, 1).await?;
    Ok(())
}
