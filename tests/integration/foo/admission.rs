//! Foos at the limits of the CRD. `tests/integration/admission` has those that it rejects.

use anyhow::{Result, ensure};

use crate::fixtures::shared_daemon::fixture;

#[tokio::test]
async fn foos_at_the_allowed_limits_are_reconciled() -> Result<()> {
    let fixture = fixture("bounds").await?;
    let long = "a".repeat(63);
    let (_, deployment) = fixture.ready_foo(&long, 10).await?;
    ensure!(crate::fixtures::namespace::replicas(&deployment) == Some(10));
    fixture.ready_foo("a", 1).await?;
    Ok(())
}
