//! The status subresource in both versions.

use anyhow::{Result, ensure};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use serde_json::json;

use super::{
    environment::{BOTH, with_either_storage},
    lossless::several,
};

#[tokio::test]
async fn a_status_is_the_same_in_both_versions() -> Result<()> {
    with_either_storage("status", async |crontabs| {
        let created = crontabs.create(&CRONTABS_V2, &several("a")).await?;
        let weekend = json!({"name": "weekend", "lastScheduleTime": "2026-01-03T08:00:00Z", "active": 1});
        let status = json!({
            "observedSchedule": "@monthly", "missedRuns": 2, "activeCount": 1, "observedGeneration": 1,
            "lastScheduleTime": "2026-01-01T00:00:00Z", "nextScheduleTime": "2026-02-01T00:00:00Z",
            "schedules": [weekend], "jobNameFormat": "Hashed",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Scheduled", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        crontabs
            .merge(&CRONTABS, "a/status", &json!({"status": status}))
            .await?;
        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        ensure!(read["spec"] == created["spec"], "{read}");
        ensure!(read["metadata"]["generation"] == 1, "{read}");
        let schedules = read["status"]["schedules"].as_array().map(Vec::len);
        ensure!(schedules == Some(2), "{read}");
        // A write of the same status in v2 keeps every field of v1.
        let change = json!({"status": read["status"]});
        crontabs.merge(&CRONTABS_V2, "a/status", &change).await?;
        let read = crontabs.get(&CRONTABS, "a").await?["status"].take();
        ensure!(read == status, "{read} instead of {status}");
        Ok(())
    })
    .await
}

/// A write of the status changes nothing else, in no version.
#[tokio::test]
async fn a_status_write_changes_nothing_else() -> Result<()> {
    with_either_storage("only-status", async |crontabs| {
        crontabs.create(&CRONTABS_V2, &several("a")).await?;
        for (count, version) in BOTH.into_iter().enumerate() {
            let before = crontabs.get(&CRONTABS_V2, "a").await?;
            let change = json!({
                "metadata": {"annotations": null},
                "spec": {"suspend": true, "schedule": "@daily", "schedules": null},
                "status": {"activeCount": count + 1},
            });
            crontabs.merge(version, "a/status", &change).await?;
            let after = crontabs.get(&CRONTABS_V2, "a").await?;
            ensure!(after["spec"] == before["spec"], "{version}: {after}");
            ensure!(
                after["metadata"]["annotations"] == before["metadata"]["annotations"],
                "{after}"
            );
            ensure!(after["status"]["activeCount"] == count + 1, "{after}");
        }
        Ok(())
    })
    .await
}
