//! A migration of many objects.
//!
//! The full size is 10,000 objects.

use anyhow::{Result, ensure};
use portreeve_testing::Signal;
use tokio::time::Instant;

use super::is_full_size;
use crate::{
    fixtures::LIMIT,
    migration::environment::{Environment, shared},
};

fn objects() -> u32 {
    if is_full_size() { 10_000 } else { 200 }
}

#[tokio::test]
async fn many_objects_are_migrated_once() -> Result<()> {
    let environment: &Environment = shared().await?;
    let gadgets = environment.gadgets("many").await?;
    gadgets.create_many(objects()).await?;
    gadgets.enable().await?;
    let flags = ["migrate", "--switch-delay=0s", "--page-size=50"];

    let killed = gadgets.spawn(environment.plane.kubeconfig(), &flags)?;
    killed.wait_for_log(LIMIT, |line| line.starts_with("storing ")).await?;
    portreeve_testing::eventually(LIMIT, "some objects to be written", || async {
        let (_, new) = gadgets.stored_in().await?;
        ensure!(new > 0);
        anyhow::Ok(())
    })
    .await?;
    killed.signal(Signal::KILL).ok();
    killed.wait(LIMIT).await?;
    let (old, new) = gadgets.stored_in().await?;
    let began = Instant::now();
    let printed = gadgets.succeed(&flags).await?;
    let took = began.elapsed();
    println!("{new} objects were stored in v2 before the kill; the other {old} took {took:?}");
    ensure!(gadgets.stored_in().await? == (0, objects() as usize), "{printed}");
    ensure!(
        gadgets.versions().await? == "served v1 v2, storage v2, [\"v2\"]",
        "{printed}"
    );
    Ok(())
}
