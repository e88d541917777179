//! Watches in both versions, and lists of many objects.

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
    conversion::{CronTabs, v1, v2},
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
                .create(version, &v1_or_v2(version, &format!("marker-{}", version.version)))
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

fn v1_or_v2(version: &Resource, name: &str) -> Value {
    if *version == CRONTABS {
        v1(name, json!({}))
    } else {
        v2(name, json!({}))
    }
}

/// The number of objects of a list.
const MANY: usize = 200;

#[tokio::test]
async fn a_list_of_many_objects_keeps_their_order_and_number() -> Result<()> {
    with_either_storage("many", async |crontabs| {
        let mut names: Vec<_> = (0..MANY)
            .map(|number| format!("{:03}-{number}", number * 7 % MANY))
            .collect();
        for chunk in names.chunks(20) {
            let created = chunk.iter().enumerate().map(async |(index, name)| {
                let version = BOTH[index % 2];
                crontabs.create(version, &v1_or_v2(version, name)).await
            });
            try_join_all(created).await?;
        }
        names.sort();
        for version in BOTH {
            for query in ["", "?resourceVersion=0", "?limit=500"] {
                let found = crontabs
                    .send(http::Method::GET, (version, query), "application/json", &Value::Null)
                    .await?;
                let items = found.body["items"].as_array().context("no items")?;
                let listed: Vec<_> = items
                    .iter()
                    .filter_map(|item| item["metadata"]["name"].as_str())
                    .collect();
                ensure!(listed == names, "{version}{query}: {listed:?}");
                let api_version = version.api_version();
                ensure!(
                    items.iter().all(|item| item["apiVersion"] == api_version),
                    "{version}{query}"
                );
                let field = if *version == CRONTABS {
                    "/spec/schedule"
                } else {
                    "/spec/schedules/0/schedule"
                };
                ensure!(
                    items
                        .iter()
                        .all(|item| item.pointer(field) == Some(&json!("0 0 1 1 *"))),
                    "{version}{query}"
                );
            }
        }
        Ok(())
    })
    .await
}
