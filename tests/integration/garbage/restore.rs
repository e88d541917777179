//! A test of an etcd that is restored from a copy, with the same UIDs.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;

use super::collector::Collector;
use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    object_builder::{config_map, secret},
};

/// The collector observes the deletion of the owner before the restore recreates the owner with the
/// same UID.
#[tokio::test]
async fn objects_from_a_restored_etcd_are_not_collected() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-restored").await?;
    let mut expected_objects = ExpectedObjects::default();
    let owner = expected_objects
        .create_one(&dynamic_client, config_map("owner"))
        .await?;
    let children = (0..20).map(|number| secret(&format!("child-{number}")).owned_by(&owner));
    let children = expected_objects.create(&dynamic_client, children).await?;
    let (data, saved) = (plane.folder().join("etcd"), plane.folder().join("saved"));
    plane.etcd().stop().await?;
    copy(&data, &saved)?;
    plane.etcd().start().await?;

    let collector = Collector::start(&plane, &[]).await?;
    dynamic_client.delete(&owner, Policy::Background).await?;
    for child in &children {
        dynamic_client.wait_until_gone(child).await?;
    }
    plane.apiserver().stop().await?;
    plane.etcd().stop().await?;
    fs::remove_dir_all(&data)?;
    fs::rename(&saved, &data)?;
    plane.etcd().start().await?;
    plane.apiserver().start().await?;

    // The deletion is not recorded in `expected_objects`, so all objects of the restored etcd must
    // remain.
    let verified = expected_objects.verify(&dynamic_client).await;
    verified.with_context(|| {
        format!(
            "the cluster does not have the expected state{}",
            collector.daemon.process.log_tail()
        )
    })
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
