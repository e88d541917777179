//! Objects that were stored before the definition rejected them.

use anyhow::{Context, Result, ensure};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};

use super::environment::{BOTH, shared};
use crate::fixtures::conversion::{CronTabs, v1, v2};

/// Objects that the definition rejects, with their versions. The unit tests of the conversion have
/// many more.
fn rejected() -> [(&'static str, &'static Resource, Value); 4] {
    let [in_v1, in_v2] = BOTH;
    let annotation = json!({"stable.example.com/v2": "{\"spec\":{\"schedules\":7}}"});
    [
        (
            "number",
            in_v1,
            json!({"spec": {"schedule": 7, "jobTemplate": {"containers": []}}}),
        ),
        (
            "annotated",
            in_v1,
            json!({"metadata": {"annotations": annotation}, "spec": {"schedule": "@daily"}}),
        ),
        (
            "no-default",
            in_v2,
            json!({"spec": {"schedules": [{"name": "other", "schedule": 7}]}}),
        ),
        (
            "words",
            in_v2,
            json!({"spec": {"schedules": "text", "runPolicy": "text", "template": 1}}),
        ),
    ]
}

/// Writes the invalid objects into etcd, each in its version, as an earlier definition may have
/// accepted them.
async fn store_invalid(plane: &ControlPlane, crontabs: &CronTabs) -> Result<()> {
    let valid = crontabs.create(&CRONTABS, &v1("valid", json!({}))).await?;
    crontabs.delete(&CRONTABS, "valid").await?;
    for (name, version, mut stored) in rejected() {
        stored["apiVersion"] = version.api_version().into();
        stored["kind"] = version.kind.as_ref().into();
        for field in ["creationTimestamp", "namespace"] {
            stored["metadata"][field] = valid["metadata"][field].clone();
        }
        stored["metadata"]["name"] = name.into();
        stored["metadata"]["uid"] = format!("{}-{name}", crontabs.namespace).into();
        let path = format!("{}/{}/{}/{name}", version.group, version.plural, crontabs.namespace);
        plane.store_unchecked(&path, &stored).await?;
    }
    Ok(())
}

#[tokio::test]
async fn invalid_objects_are_converted_and_hide_no_others() -> Result<()> {
    for stored in BOTH {
        let plane = &shared(stored).await?.plane;
        let crontabs = CronTabs::of(&plane.namespace("invalid").await?);
        store_invalid(plane, &crontabs).await?;
        crontabs.create(&CRONTABS, &v1("good", json!({}))).await?;
        crontabs.create(&CRONTABS_V2, &v2("good-2", json!({}))).await?;
        for version in BOTH {
            let listed = crontabs.list(version).await.with_context(|| version.to_string())?;
            ensure!(listed.len() == rejected().len() + 2, "{version}: {listed:?}");
        }
        // The apiserver prunes what the schema of the request's version has no place for.
        let number = crontabs.get(&CRONTABS_V2, "number").await?;
        ensure!(number["spec"]["schedules"][0]["schedule"] == 7, "{number}");
        let entry = crontabs.get(&CRONTABS_V2, "no-default").await?;
        let mut entries = entry["spec"]["schedules"].as_array().into_iter().flatten();
        ensure!(
            entries.any(|entry| entry["name"] == "other" && entry["schedule"] == 7),
            "{entry}"
        );

        // Each can be repaired in one version, and deleted in the other.
        let valid = json!({"spec": v2("number", json!({}))["spec"]});
        crontabs.merge(&CRONTABS_V2, "number", &valid).await?;
        let repaired = crontabs.get(&CRONTABS, "number").await?;
        ensure!(repaired["spec"]["schedule"] == "0 0 1 1 *", "{repaired}");
        for (name, version, _) in rejected() {
            let other = if *version == CRONTABS { &CRONTABS_V2 } else { &CRONTABS };
            crontabs.delete(other, name).await.with_context(|| name.to_owned())?;
        }
        let left = crontabs.list(&CRONTABS_V2).await?;
        ensure!(left.len() == 2, "{left:?}");
    }
    Ok(())
}
