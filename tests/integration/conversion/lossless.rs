//! Reads and writes in the version that an object was not written in.

use anyhow::{Result, ensure};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2, V2_FIELDS};
use serde_json::{Value, json};

use super::environment::{BOTH, content, with_either_storage};
use crate::fixtures::conversion::{CronTabs, v1, v2};

/// A CronTab of v1 with every kind of field.
fn full_v1(name: &str) -> Value {
    let mut object = v1(
        name,
        json!({
            "timeZone": "Europe/Zurich", "dstPolicy": "Kubernetes", "suspend": true, "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 10, "successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 7,
            "backoffLimit": 4, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 6,
            "jobTemplate": {
                "containers": [
                    {"name": "main", "image": "example.com/a:1", "env": [{"name": "A", "value": ""}]},
                    {"name": "log", "image": "example.com/b:1", "command": []},
                ],
                "restartPolicy": "OnFailure",
                "nodeSelector": {"a": "b"},
            },
        }),
    );
    object["metadata"]["labels"] = json!({"team": "a"});
    object["metadata"]["annotations"] = json!({"example.com/note": "b"});
    object
}

/// A CronTab of v2 with much that v1 cannot express.
pub(super) fn several(name: &str) -> Value {
    let mut object = v2(
        name,
        json!({
            "schedules": [
                {"name": "weekend", "schedule": "0 8 * * 6", "timeZone": "Asia/Tokyo", "suspend": true},
                {"name": "default", "schedule": "@monthly", "suspend": true},
                {"name": "noon", "schedule": "0 12 1 1 *"},
            ],
            "runPolicy": {"concurrencyPolicy": "Replace"},
            "template": {
                "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/cost": "7"}},
                "spec": {
                    "parallelism": 2,
                    "backoffLimit": 3,
                    "podFailurePolicy": {"rules": [
                        {"action": "FailJob", "onExitCodes": {"containerName": "main", "operator": "In", "values": [1]}},
                    ]},
                    "template": {
                        "metadata": {"labels": {"tier": "b"}},
                        "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]},
                    },
                },
            },
        }),
    );
    object["metadata"]["annotations"] = json!({"example.com/note": "b"});
    object
}

/// Creates an object in a version, and reads it back. Then writes what it reads in both versions,
/// as [`ensure_lossless`] does.
async fn create_lossless(crontabs: &CronTabs, version: &Resource, object: &Value) -> Result<()> {
    let created = crontabs.create(version, object).await?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let read = crontabs.get(version, name).await?;
    ensure!(read == created, "{read} instead of {created}");
    ensure_lossless(crontabs, name).await
}

/// Writes back what it reads in both versions, and fails if that changes anything.
async fn ensure_lossless(crontabs: &CronTabs, name: &str) -> Result<()> {
    let before = [
        crontabs.get(&CRONTABS, name).await?,
        crontabs.get(&CRONTABS_V2, name).await?,
    ];
    for (version, read) in BOTH.into_iter().zip(&before) {
        ensure!(read["apiVersion"] == version.api_version(), "{read}");
        let written = crontabs.replace(version, read).await?;
        ensure!(
            written == *read,
            "a write in {version} of what was read returned {written}, not {read}"
        );
    }
    for (version, before) in BOTH.into_iter().zip(before) {
        let after = crontabs.get(version, name).await?;
        ensure!(after == before, "{version}: {after} instead of {before}");
        let listed = crontabs.list(version).await?;
        ensure!(listed.contains(&before), "{version}: {before} is not in {listed:?}");
    }
    Ok(())
}

#[tokio::test]
async fn objects_of_v1_are_the_same_after_a_write_in_v2() -> Result<()> {
    with_either_storage("v1", async |crontabs| {
        for object in [v1("small", json!({})), full_v1("full")] {
            create_lossless(crontabs, &CRONTABS, &object).await?;
        }
        let metadata = crontabs.get(&CRONTABS_V2, "full").await?["metadata"].take();
        let annotations = &metadata["annotations"];
        ensure!(*annotations == json!({"example.com/note": "b"}), "{metadata}");
        ensure!(metadata["labels"] == json!({"team": "a"}), "{metadata}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn objects_of_v2_are_the_same_after_a_write_in_v1() -> Result<()> {
    with_either_storage("v2", async |crontabs| {
        for object in [v2("small", json!({})), several("several")] {
            create_lossless(crontabs, &CRONTABS_V2, &object).await?;
        }
        let small = crontabs.get(&CRONTABS, "small").await?;
        ensure!(
            small["metadata"].get("annotations").is_none(),
            "v1 can express it: {small}"
        );
        let annotations = crontabs.get(&CRONTABS, "several").await?["metadata"]["annotations"].take();
        ensure!(annotations["example.com/note"] == "b", "{annotations}");
        ensure!(annotations[V2_FIELDS].is_string(), "{annotations}");
        let again = crontabs.get(&CRONTABS_V2, "several").await?;
        ensure!(again["metadata"]["annotations"].get(V2_FIELDS).is_none(), "{again}");
        Ok(())
    })
    .await
}

/// An edit in v1 changes in v2 what v1 shows, and nothing else.
#[tokio::test]
async fn edits_in_v1_keep_what_only_v2_has() -> Result<()> {
    with_either_storage("edits-v1", async |crontabs| {
        let mut expected = content(crontabs.create(&CRONTABS_V2, &several("a")).await?);
        crontabs
            .edit(&CRONTABS, "a", |object| object["spec"]["schedule"] = "@weekly".into())
            .await?;
        expected["spec"]["schedules"][1]["schedule"] = "@weekly".into();
        let change = json!({"spec": {"timeZone": "UTC", "backoffLimit": null}});
        crontabs.merge(&CRONTABS, "a", &change).await?;
        expected["spec"]["schedules"][1]["timeZone"] = "UTC".into();
        let job = &mut expected["spec"]["template"]["spec"];
        job.as_object_mut().map(|fields| fields.remove("backoffLimit"));
        let path = "/spec/jobTemplate/containers/0/image";
        let image = json!([{"op": "replace", "path": path, "value": "example.com/a:2"}]);
        crontabs.json_patch(&CRONTABS, "a", &image).await?;
        job["template"]["spec"]["containers"][0]["image"] = "example.com/a:2".into();
        let read = content(crontabs.get(&CRONTABS_V2, "a").await?);
        ensure!(read == expected, "{read} instead of {expected}");
        ensure_lossless(crontabs, "a").await
    })
    .await
}

#[tokio::test]
async fn edits_in_v2_of_an_object_of_v1_are_visible_in_v1() -> Result<()> {
    with_either_storage("edits-v2", async |crontabs| {
        let mut expected = content(crontabs.create(&CRONTABS, &full_v1("a")).await?);
        crontabs
            .edit(&CRONTABS_V2, "a", |object| {
                object["spec"]["schedules"][0]["schedule"] = "@weekly".into();
                object["metadata"]["labels"]["edited"] = "yes".into();
            })
            .await?;
        expected["spec"]["schedule"] = "@weekly".into();
        expected["metadata"]["labels"]["edited"] = "yes".into();
        let change = json!({"spec": {"runPolicy": {"failedJobsHistoryLimit": 8}}});
        crontabs.merge(&CRONTABS_V2, "a", &change).await?;
        expected["spec"]["failedJobsHistoryLimit"] = 8.into();
        let removal = json!([{"op": "remove", "path": "/spec/schedules/0/timeZone"}]);
        crontabs.json_patch(&CRONTABS_V2, "a", &removal).await?;
        expected["spec"].as_object_mut().map(|spec| spec.remove("timeZone"));
        let read = content(crontabs.get(&CRONTABS, "a").await?);
        ensure!(read == expected, "{read} instead of {expected}");

        let weekend = json!({"name": "weekend", "schedule": "0 8 * * 6"});
        let addition = json!([{"op": "add", "path": "/spec/schedules/-", "value": weekend}]);
        crontabs.json_patch(&CRONTABS_V2, "a", &addition).await?;
        let read = crontabs.get(&CRONTABS, "a").await?;
        ensure!(
            read["spec"] == expected["spec"],
            "v1 cannot express the addition: {read}"
        );
        ensure!(read["metadata"]["annotations"][V2_FIELDS].is_string(), "{read}");
        ensure_lossless(crontabs, "a").await?;

        let removal = json!([{"op": "remove", "path": "/spec/schedules/1"}]);
        crontabs.json_patch(&CRONTABS_V2, "a", &removal).await?;
        let read = content(crontabs.get(&CRONTABS, "a").await?);
        ensure!(
            read == expected,
            "nothing is left of the schedule: {read} instead of {expected}"
        );
        Ok(())
    })
    .await
}

/// One object that cannot be converted would fail every list. etcd stores at most 1.5 MiB.
#[tokio::test]
async fn the_largest_object_is_converted() -> Result<()> {
    const ARGUMENTS: usize = 21_000;
    with_either_storage("large", async |crontabs| {
        let container = json!({"name": "main", "image": "example.com/a:1", "args": vec!["a".repeat(64); ARGUMENTS]});
        let template = json!({"jobTemplate": {"containers": [container]}});
        crontabs.create(&CRONTABS, &v1("large", template)).await?;
        let listed = crontabs.list(&CRONTABS_V2).await?;
        let args = listed[0].pointer("/spec/template/spec/template/spec/containers/0/args");
        ensure!(
            args.and_then(Value::as_array)
                .is_some_and(|args| args.len() == ARGUMENTS)
        );
        crontabs.list(&CRONTABS).await?;
        crontabs.delete(&CRONTABS, "large").await
    })
    .await
}
