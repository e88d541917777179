//! Runs before and after a migration, also without the conversion, and on the way back.

use portreeve_testing::ControlPlane;

use super::*;
use crate::fixtures::{conversion::v1, daemon::administer};

/// Migrates all objects to a version.
async fn migrate(plane: &ControlPlane, version: &str) -> Result<()> {
    let to = format!("--to={version}");
    administer(plane, &["migrate", "--switch-delay=0s", &to]).await?;
    Ok(())
}

async fn verify_stored(converting: &Converting, crontabs: &CronTabs, name: &str, version: &Resource) -> Result<()> {
    let stored = crontabs.stored(&converting.plane, name).await?;
    ensure!(stored["apiVersion"] == version.api_version(), "{stored}");
    Ok(())
}

#[tokio::test]
async fn runs_start_before_and_after_a_migration_and_on_the_way_back() -> Result<()> {
    let mut converting = Converting::start(&CRONTABS).await?;
    let namespace = converting.plane.namespace("migrated").await?;
    let crontabs = CronTabs::of(&namespace);
    let schedule = json!({"schedule": every_step(converting.due)});
    crontabs.create(&CRONTABS, &v1("old", schedule)).await?;
    crontabs.create(&CRONTABS_V2, &twice("two", converting.due)).await?;
    for name in ["old", "two"] {
        wait_until_observed(&crontabs, &CRONTABS, name).await?;
        verify_stored(&converting, &crontabs, name, &CRONTABS).await?;
    }
    converting.advance();
    wait_for_jobs(&namespace, "old", 1).await?;
    wait_for_jobs(&namespace, "two", 2).await?;

    migrate(&converting.plane, "v2").await?;
    verify_stored(&converting, &crontabs, "two", &CRONTABS_V2).await?;
    // The controller reads the version that is stored now.
    converting.stop_converting(&crontabs, &CRONTABS, "two").await?;
    crontabs.create(&CRONTABS_V2, &twice("new", converting.due)).await?;
    // By the clock of the controller, it was created before the time that has just passed.
    wait_for_jobs(&namespace, "new", 2).await?;
    converting.advance();
    wait_for_jobs(&namespace, "old", 2).await?;
    for name in ["two", "new"] {
        wait_for_jobs(&namespace, name, 4).await?;
    }

    converting.convert_again().await?;
    // v1 cannot express these two.
    for name in ["two", "new"] {
        crontabs.delete(&CRONTABS_V2, name).await?;
    }
    migrate(&converting.plane, "v1").await?;
    administer(&converting.plane, &["conversion", "disable"]).await?;
    verify_stored(&converting, &crontabs, "old", &CRONTABS).await?;
    converting.advance();
    wait_for_jobs(&namespace, "old", 3).await?;
    converting.daemon.stop().await
}
