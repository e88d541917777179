//! The protection of volumes.

use anyhow::Result;
use serde_json::json;

use super::profile::{VOLUME_FINALIZER, set_phase, wait_for_finalizers};
use crate::{
    bare_plane::tenant,
    fixtures::{dynamic_client::Policy, object_builder::persistent_volume},
};

#[tokio::test]
async fn a_deleted_volume_goes_once_it_is_not_bound() -> Result<()> {
    let tenant = tenant("volumes").await?;
    let name = |name: &str| format!("{}-{name}", tenant.name());
    let unused = tenant.create_for_cluster(persistent_volume(&name("unused"))).await?;
    let bound = tenant.create_for_cluster(persistent_volume(&name("bound"))).await?;
    set_phase(&tenant, &bound, "Bound").await?;
    // A volume without the finalizer gets it, also while it is bound.
    tenant.patch(&bound, json!({"metadata": {"finalizers": null}})).await?;
    wait_for_finalizers(&tenant, &bound, &[VOLUME_FINALIZER]).await?;
    tenant.delete(&bound, Policy::Unspecified).await?;
    tenant.delete(&unused, Policy::Unspecified).await?;
    tenant.wait_until_gone(&unused).await?;
    wait_for_finalizers(&tenant, &bound, &[VOLUME_FINALIZER]).await?;
    set_phase(&tenant, &bound, "Released").await?;
    tenant.wait_until_gone(&bound).await
}
