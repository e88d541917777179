//! Watches in both versions.

use std::pin::pin;

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt, future::try_join_all};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, WatchEvent, WatchParams},
};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    environment::{BOTH, with_either_storage},
    lossless::several,
};
use crate::fixtures::{
    LIMIT,
    conversion::{CronTabs, small},
};

fn api(crontabs: &CronTabs, version: &Resource) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: version.group.to_string(),
        version: version.version.to_string(),
        api_version: version.api_version(),
        kind: version.kind.to_string(),
        plural: version.plural.to_string(),
    };
    Api::namespaced_with(crontabs.client.clone(), &crontabs.namespace, &resource)
}

/// Returns the type and the object of the next event.
async fn next(events: impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>>) -> Result<(&'static str, Value)> {
    let event = timeout(LIMIT, pin!(events).next()).await.context("no event")?;
    let (kind, object) = match event {
        Some(Ok(WatchEvent::Added(object))) => ("ADDED", object),
        Some(Ok(WatchEvent::Modified(object))) => ("MODIFIED", object),
        Some(Ok(WatchEvent::Deleted(object))) => ("DELETED", object),
        other => bail!("unexpected event: {other:?}"),
    };
    Ok((kind, serde_json::to_value(object)?))
}

/// Each watch reports each write, in its own version, as a read would return it.
#[tokio::test]
async fn watches_report_writes_of_the_other_version() -> Result<()> {
    with_either_storage("watch", async |crontabs| {
        let mut watches = Vec::new();
        for version in BOTH {
            let parameters = WatchParams::default().fields("metadata.name=a");
            let started = crontabs
                .create(version, &small(version, &format!("marker-{}", version.version)))
                .await?;
            let from = started["metadata"]["resourceVersion"].as_str().context("no version")?;
            watches.push((version, api(crontabs, version).watch(&parameters, from).await?.boxed()));
        }
        let mut expected = Vec::new();
        let read = async || try_join_all(BOTH.map(|version| crontabs.get(version, "a"))).await;
        crontabs.create(&CRONTABS_V2, &several("a")).await?;
        expected.push(("ADDED", read().await?));
        crontabs
            .merge(&CRONTABS, "a", &json!({"spec": {"schedule": "@yearly"}}))
            .await?;
        expected.push(("MODIFIED", read().await?));
        let remove = json!([{"op": "remove", "path": "/spec/schedules/0"}]);
        crontabs.json_patch(&CRONTABS_V2, "a", &remove).await?;
        expected.push(("MODIFIED", read().await?));
        crontabs
            .merge(&CRONTABS, "a/status", &json!({"status": {"missedRuns": 1}}))
            .await?;
        expected.push(("MODIFIED", read().await?));
        crontabs.delete(&CRONTABS, "a").await?;
        for (index, (version, watch)) in watches.iter_mut().enumerate() {
            for (kind, objects) in &expected {
                let (found, object) = next(&mut *watch).await?;
                ensure!(
                    found == *kind && object == objects[index],
                    "{version}: {found} {object}, not {}",
                    objects[index]
                );
            }
            let (found, object) = next(&mut *watch).await?;
            ensure!(
                found == "DELETED" && object["apiVersion"] == version.api_version(),
                "{found} {object}"
            );
            let last = &expected[expected.len() - 1].1[index];
            ensure!(
                object["spec"] == last["spec"] && object["status"] == last["status"],
                "{object}"
            );
        }
        Ok(())
    })
    .await
}
