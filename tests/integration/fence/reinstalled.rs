//! A fence that is deleted and created again. Each test has its own control plane, because an
//! apiserver that has stopped watching Leases never starts again.

use anyhow::Result;
use portreeve_testing::ControlPlane;

use super::{UUID, environment::FenceEnvironment};

#[tokio::test]
async fn a_fence_with_an_anchor_follows_the_lease_after_it_was_deleted() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let environment = FenceEnvironment::on(&plane, "anchored").await?;
    environment.anchor().await?;
    environment.fence().await?;
    let (first, second) = (environment.replica("web-a").await?, environment.replica("web-b").await?);
    environment.set_leader(&format!("web-a_{UUID}"), &first).await?;
    environment.delete_fence().await?;
    environment.set_holder(&format!("web-b_{UUID}")).await?;
    environment.fence().await?;
    environment.set_leader(&format!("web-b_{UUID}"), &second).await?;
    environment.ensure_fenced(&first, "the former leader").await
}
