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
        let times = json!({"lastScheduleTime": "2026-01-01T00:00:00Z", "nextScheduleTime": "2026-02-01T00:00:00Z"});
        let weekend = json!({"name": "weekend", "lastScheduleTime": "2026-01-03T08:00:00Z", "active": 1});
        let mut status = json!({
            "observedSchedule": "@monthly", "missedRuns": 2, "activeCount": 1, "observedGeneration": 1,
            "schedules": [weekend], "jobNameFormat": "Hashed",
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Scheduled", "message": "", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        status["lastScheduleTime"] = times["lastScheduleTime"].clone();
        status["nextScheduleTime"] = times["nextScheduleTime"].clone();
        let patched = crontabs
            .merge(&CRONTABS, "a/status", &json!({"status": status}))
            .await?;
        ensure!(patched["status"] == status, "{patched}");

        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        ensure!(read["spec"] == created["spec"], "{read}");
        ensure!(read["metadata"]["generation"] == 1, "{read}");
        let found = &read["status"];
        for field in ["activeCount", "observedGeneration", "conditions", "jobNameFormat"] {
            ensure!(found[field] == status[field], "{field}: {found}");
        }
        let default = json!({
            "name": "default", "observedSchedule": "@monthly", "missedRuns": 2,
            "lastScheduleTime": times["lastScheduleTime"], "nextScheduleTime": times["nextScheduleTime"],
        });
        ensure!(found["schedules"] == json!([default, weekend]), "{found}");
        ensure!(found.get("lastScheduleTime").is_none(), "{found}");

        // The list is replaced as a whole, and the other version reads what is left.
        let default = json!({"name": "default", "lastScheduleTime": "2026-03-01T00:00:00Z"});
        let noon = json!({"name": "noon", "missedRuns": 1});
        let change = json!({"status": {"schedules": [default, noon]}});
        crontabs.merge(&CRONTABS_V2, "a/status", &change).await?;
        let read = crontabs.get(&CRONTABS, "a").await?["status"].take();
        ensure!(read["lastScheduleTime"] == "2026-03-01T00:00:00Z", "{read}");
        ensure!(read["schedules"] == json!([noon]), "{read}");
        for field in ["nextScheduleTime", "observedSchedule"] {
            ensure!(read.get(field).is_none(), "{field}: {read}");
        }
        ensure!(read["conditions"] == status["conditions"], "{read}");
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
