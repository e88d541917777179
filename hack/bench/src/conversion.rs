//! Lists of CronTabs in the version that is not stored: their times, and the CPU time and memory of
//! the process that serves the conversion webhook.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use portreeve_testing::eventually;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::controller::{Account, Controller, LEASE, START_LIMIT};
use crate::objects::{CONCURRENT_CREATES, api, create_all, crontab_kind, far_schedule, object, post, resource};
use crate::objects::{wait_until_served, write_status};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value};
use crate::tables::Version;
use crate::webhook::{Endpoint, create_definition};

/// The size of kubectl's pages.
const PAGE: usize = 500;
/// The number of dry runs before the memory without CronTabs is measured.
const WARM_UP: usize = 2000;
/// The number of lists of each kind.
const LISTS: usize = 3;
/// Every CronTab with a multiple of this index has several schedules.
const SEVERAL_EVERY: usize = 4;
/// The namespace in which the daemon's Lease is by default.
const LEASE_NAMESPACE: &str = "kube-system";
/// The annotations with which v1 keeps fields that only v2 has.
const KEPT_IN_V1: [&str; 2] = ["stable.example.com/v2", "v2.stable.example.com/"];

/// Measures lists of v2 while v1 is stored, and checks what they return.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    let (stored, listed) = (Version::V1, Version::V2);
    let server = start(run, stored).await?;
    wait_until_served(&api(&run.client, crontab_kind(listed))).await?;
    let Some(server) = server else {
        create(run, listed).await?;
        run.idle(None).await?;
        return times(run, listed).await;
    };
    server.guard(wait_until_converted(run, listed)).await?;
    server.guard(warm_up(run, listed)).await?;
    let alone = server.memory()?;
    server.guard(create(run, Version::V2)).await?;
    server.idle(run).await?;
    let mut values = server.guard(times(run, listed)).await?;
    values.push(Unit::Kibibytes.of("resident memory without CronTabs", alone));
    Ok(values)
}

/// Creates the definition, and starts the process of the subject that converts, if it has one.
async fn start(run: &Run<'_>, stored: Version) -> Result<Option<Controller>> {
    if run.step.subject.is_floor() {
        create_definition(run, stored.other(), None).await?;
        return Ok(None);
    }
    let endpoint = Endpoint::new(run)?;
    endpoint.convert(run, stored).await?;
    // A standby serves webhooks too, and writes nothing that the other subject does not write.
    let lease = object("held-lease", &[("name", &LEASE), ("namespace", &LEASE_NAMESPACE)]);
    let leases = resource(("coordination.k8s.io/v1", "Lease"));
    post(
        &Api::namespaced_with(run.client.clone(), LEASE_NAMESPACE, &leases),
        lease,
    )
    .await?;
    let kubeconfig = run.plane.kubeconfig().to_owned();
    let name = "standby";
    Ok(Some(
        endpoint.start(run, Some(&Account { name, kubeconfig }), &[]).await?,
    ))
}

/// Waits until a CronTab can be created in the version that is not stored.
async fn wait_until_converted(run: &Run<'_>, listed: Version) -> Result<()> {
    let api = api(&run.client, crontab_kind(listed));
    let created = || post(&api, crontab(listed, "probe", 1));
    eventually(START_LIMIT, "the webhook to be called", created).await?;
    api.delete("probe", &DeleteParams::default()).await?;
    Ok(())
}

/// Creates CronTabs in dry runs. They are converted, and neither stored nor cached.
async fn warm_up(run: &Run<'_>, listed: Version) -> Result<()> {
    let api = &api(&run.client, crontab_kind(listed));
    let params = &PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let requests = (0..WARM_UP.min(run.count())).map(|index| async move {
        let object: DynamicObject = serde_json::from_value(crontab(listed, &name(index), index))?;
        let created = api.create(params, &object).await;
        created.context("a dry run failed")?;
        anyhow::Ok(())
    });
    let mut done = stream::iter(requests).buffer_unordered(CONCURRENT_CREATES);
    while done.try_next().await?.is_some() {}
    Ok(())
}

/// Creates the CronTabs with their statuses, in this version.
async fn create(run: &Run<'_>, version: Version) -> Result<()> {
    let api = &api(&run.client, crontab_kind(version));
    create_all(api, (0..run.count()).map(|index| crontab(version, &name(index), index))).await?;
    log("  writing statuses");
    let statuses = (0..run.count()).map(|index| async move {
        let status = crontab(version, &name(index), index)["status"].take();
        write_status(api, &name(index), &json!({ "status": status })).await
    });
    let mut written = stream::iter(statuses).buffer_unordered(CONCURRENT_CREATES);
    while written.try_next().await?.is_some() {}
    Ok(())
}

fn name(index: usize) -> String {
    format!("crontab-{index:05}")
}

/// Returns a CronTab in a version, with its status.
fn crontab(version: Version, name: &str, index: usize) -> Json {
    let several = if index.is_multiple_of(SEVERAL_EVERY) {
        "-several"
    } else {
        ""
    };
    let id = format!("crontab-{}{several}", version.name());
    let team = index % 50;
    object(
        &id,
        &[("name", &name), ("schedule", &far_schedule(index)), ("team", &team)],
    )
}

/// Returns the times of lists in pages.
async fn times(run: &Run<'_>, listed: Version) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    for turn in 0..LISTS {
        let (time, pages) = list(run, listed).await?;
        values.push(Unit::Seconds.of("list in pages", time.as_secs_f64()));
        if turn == 0 {
            check(&pages, listed, run.count())?;
        }
    }
    Ok(values)
}

/// Lists all CronTabs, and returns the responses and the time until the last one.
async fn list(run: &Run<'_>, version: Version) -> Result<(Duration, Vec<String>)> {
    #[derive(Deserialize)]
    struct Page {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default, rename = "continue")]
        token: String,
    }
    let url = api(&run.client, crontab_kind(version)).resource_url().to_owned();
    let (mut pages, mut token, started) = (Vec::new(), String::new(), Instant::now());
    loop {
        let request = Request::get(format!("{url}?limit={PAGE}&continue={token}")).body(Vec::new())?;
        let listed = run.client.request_text(request).await;
        let text = listed.context("failed to list CronTabs")?;
        token = serde_json::from_str::<Page>(&text)?.metadata.token;
        pages.push(text);
        if token.is_empty() {
            return Ok((started.elapsed(), pages));
        }
    }
}

/// Fails unless the pages contain all CronTabs as they were created.
fn check(pages: &[String], version: Version, count: usize) -> Result<()> {
    #[derive(Deserialize)]
    struct Page {
        items: Vec<Json>,
    }
    let mut index = 0;
    for page in pages {
        for item in serde_json::from_str::<Page>(page)?.items {
            let (expected, actual) = (comparable(crontab(version, &name(index), index)), comparable(item));
            ensure!(actual == expected, "the list contains {actual} instead of {expected}");
            index += 1;
        }
    }
    ensure!(index == count, "the list contains {index} CronTabs");
    Ok(())
}

/// Returns an object without the metadata that the apiserver sets, the annotations that keep fields
/// of v2, and empty values. Types in Go write empty objects for absent ones.
fn comparable(mut object: Json) -> Json {
    let mut metadata = object["metadata"].take();
    if let Some(annotations) = metadata["annotations"].as_object_mut() {
        annotations.retain(|key, _| !KEPT_IN_V1.iter().any(|kept| key.starts_with(kept)));
    }
    let fields = ["name", "namespace", "labels", "annotations"];
    let fields = fields.map(|field| (field.to_owned(), metadata[field].take()));
    object["metadata"] = Map::from_iter(fields).into();
    remove_empty(&mut object);
    object
}

fn remove_empty(value: &mut Json) {
    if let Json::Array(values) = value {
        values.iter_mut().for_each(remove_empty);
    }
    if let Json::Object(fields) = value {
        fields.retain(|_, value| {
            remove_empty(value);
            !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bookkeeping_of_the_apiserver_and_of_webhooks_is_not_compared() {
        let expected = crontab(Version::V1, "one", 0);
        let mut listed = expected.clone();
        listed["metadata"]["uid"] = "u".into();
        listed["metadata"]["annotations"]["stable.example.com/v2"] = "{}".into();
        listed["metadata"]["annotations"]["v2.stable.example.com/0a"] = "schedules".into();
        listed["spec"]["jobTemplate"]["containers"][1]["env"] = json!({});
        assert_eq!(comparable(listed.clone()), comparable(expected.clone()));
        listed["spec"]["jobTemplate"]["containers"][1]["image"] = "other".into();
        assert_ne!(comparable(listed), comparable(expected));
    }

    #[test]
    fn each_form_has_several_schedules_or_one() {
        for (version, index, path, count) in [
            (Version::V2, 0, "/spec/schedules", 3),
            (Version::V2, 1, "/spec/schedules", 1),
            (Version::V2, 4, "/status/schedules", 3),
            (Version::V1, 4, "/status/schedules", 2),
        ] {
            let object = crontab(version, "one", index);
            let schedules = object.pointer(path).and_then(Json::as_array);
            assert_eq!(schedules.map(Vec::len), Some(count), "{object}");
        }
        let plain = crontab(Version::V1, "one", 1);
        assert_eq!(plain["status"].get("schedules"), None);
        assert_eq!(plain["status"]["missedRuns"], 1);
        assert_eq!(plain["spec"]["concurrencyPolicy"], "Forbid");
    }
}
