//! Tests of owners in foreground deletion that block the deletion of each other.

use anyhow::Result;
use kube::api::DynamicObject;
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};

use super::{collector::Collector, shared};
use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::{config_map, reference},
};

const REASON: &str = "ForegroundDeletionCycleBroken";

/// Creates ConfigMaps of which each has an owner whose deletion it blocks: the next one, and for
/// the last one the first.
async fn create_cycle(dynamic_client: &DynamicClient, prefix: &str, size: usize) -> Result<Vec<DynamicObject>> {
    let mut members: Vec<DynamicObject> = Vec::new();
    for number in 0..size {
        let name = format!("{prefix}-{number}");
        let member = match members.last() {
            None => config_map(&name),
            Some(dependent) => config_map(&name).blocking(dependent, true),
        };
        members.push(dynamic_client.create(member).await?);
    }
    let (first, last) = (&members[0], &members[size - 1]);
    dynamic_client.patch(first, owned_by(last)).await?;
    Ok(members)
}

/// Returns the patch that makes an object block the deletion of this owner.
fn owned_by(owner: &DynamicObject) -> Value {
    let mut reference = reference(owner);
    reference["blockOwnerDeletion"] = true.into();
    json!({"metadata": {"ownerReferences": [reference]}})
}

/// The collector starts when all of them wait, so it cannot delete a member before.
#[tokio::test]
async fn owners_in_foreground_deletion_that_block_each_other_are_deleted() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-cycles").await?;
    let mut cycles = Vec::new();
    for size in 1..=3 {
        let members = create_cycle(&dynamic_client, &format!("of-{size}"), size).await?;
        for member in &members {
            dynamic_client.delete(member, Policy::Foreground).await?;
        }
        cycles.push(members);
    }
    let _collector = Collector::start(&plane, &[]).await?;
    for members in &cycles {
        for member in members {
            dynamic_client.wait_until_gone(member).await?;
        }
        let members: Vec<_> = members.iter().collect();
        dynamic_client
            .wait_for_event(&members, REASON, &["blockOwnerDeletion"])
            .await?;
    }
    Ok(())
}

/// The owners wait for a dependent with a finalizer. Then a change of their references makes them
/// wait for each other.
#[tokio::test]
async fn references_that_make_waiting_owners_block_each_other_do_not_keep_them() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-late-cycle").await?;
    let mut members = Vec::new();
    for name in ["one", "other"] {
        let member = dynamic_client.create(config_map(name)).await?;
        let dependent = config_map(&format!("dependent-of-{name}")).blocking(&member, true);
        let dependent = dynamic_client.create(dependent.finalizer("x/y")).await?;
        dynamic_client.delete(&member, Policy::Foreground).await?;
        members.push((member, dependent));
    }
    let [(one, first), (other, second)] = &members[..] else {
        unreachable!("there are two members");
    };
    dynamic_client.patch(one, owned_by(other)).await?;
    dynamic_client.patch(other, owned_by(one)).await?;
    for dependent in [first, second] {
        let released = json!({"metadata": {"finalizers": null}});
        dynamic_client.patch(dependent, released).await?;
    }
    dynamic_client.wait_until_gone(one).await?;
    dynamic_client.wait_until_gone(other).await?;
    dynamic_client.wait_for_event(&[one, other], REASON, &[]).await?;
    Ok(())
}
