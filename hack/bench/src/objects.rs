//! The objects of `objects.yaml` and their creation.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{Timestamp, tz::TimeZone};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, CustomResourceExt};
use portreeve_crontab::api::CronTab;
use portreeve_foo::api::Foo;
use portreeve_testing::eventually;
use serde_json::Value;

use crate::run::log;
use crate::tables::{Version, parsed};

/// The number of concurrent requests that create objects.
pub(crate) const CONCURRENT_CREATES: usize = 16;
/// The number of created objects after which a progress line is written.
const PROGRESS_EVERY: usize = 2000;
const CRD_LIMIT: Duration = Duration::from_secs(30);

/// An `apiVersion` and a kind.
pub(crate) type Kind<'a> = (&'a str, &'a str);
pub(crate) const CONFIG_MAP: Kind<'_> = ("v1", "ConfigMap");
pub(crate) const CRON_JOB: Kind<'_> = ("batch/v1", "CronJob");
pub(crate) const CRON_TAB: Kind<'_> = ("stable.example.com/v1", "CronTab");
pub(crate) const CRON_TAB_V2: Kind<'_> = ("stable.example.com/v2", "CronTab");
pub(crate) const DEPLOYMENT: Kind<'_> = ("apps/v1", "Deployment");
pub(crate) const FOO: Kind<'_> = ("samplecontroller.k8s.io/v1alpha1", "Foo");
pub(crate) const JOB: Kind<'_> = ("batch/v1", "Job");
pub(crate) const POD: Kind<'_> = ("v1", "Pod");
pub(crate) const REPLICA_SET: Kind<'_> = ("apps/v1", "ReplicaSet");
const DEFINITION: Kind<'_> = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");
const WEBHOOK: Kind<'_> = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");

/// Returns the API of a kind in the namespace of all objects.
pub(crate) fn api(client: &Client, kind: Kind<'_>) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &resource(kind))
}

/// Returns the API of the definitions of custom resources.
pub(crate) fn definitions(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(DEFINITION))
}

/// Returns the API of the configurations of validating webhooks.
pub(crate) fn webhook_configurations(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(WEBHOOK))
}

/// Returns the kind of CronTabs in a version.
pub(crate) fn crontab_kind(version: Version) -> Kind<'static> {
    match version {
        Version::V1 => CRON_TAB,
        Version::V2 => CRON_TAB_V2,
    }
}

pub(crate) fn resource((api_version, kind): Kind<'_>) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

static OBJECTS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| parsed(include_str!("objects.yaml")));

/// Returns an object of `objects.yaml` with its placeholders replaced.
pub(crate) fn object(id: &str, replacements: &[(&str, &dyn Display)]) -> Value {
    let mut object = OBJECTS.get(id).cloned().unwrap_or_default();
    replace(&mut object, replacements);
    object
}

fn replace(value: &mut Value, replacements: &[(&str, &dyn Display)]) {
    match value {
        Value::String(text) if text.contains('{') => {
            for (name, replacement) in replacements {
                *text = text.replace(&format!("{{{name}}}"), &replacement.to_string());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, replacements)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, replacements)),
        _ => {}
    }
}

/// An object that the apiserver has stored.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Created {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
}

/// Creates one object.
pub(crate) async fn post(api: &Api<DynamicObject>, object: Value) -> Result<Created> {
    let object: DynamicObject = serde_json::from_value(object).context("failed to build an object")?;
    let created = api.create(&PostParams::default(), &object).await;
    let name = object.metadata.name.unwrap_or_default();
    let metadata = created.with_context(|| format!("failed to create {name}"))?.metadata;
    let ids = metadata.uid.zip(metadata.resource_version);
    let (uid, version) = ids.context("an object has no UID or version")?;
    Ok(Created { name, uid, version })
}

/// Creates objects, several at a time.
pub(crate) async fn create_all(
    api: &Api<DynamicObject>,
    objects: impl ExactSizeIterator<Item = Value>,
) -> Result<Vec<Created>> {
    let count = objects.len();
    let started = Instant::now();
    let mut responses = stream::iter(objects.map(|object| post(api, object))).buffer_unordered(CONCURRENT_CREATES);
    let mut created = Vec::with_capacity(count);
    while let Some(object) = responses.try_next().await? {
        created.push(object);
        if created.len().is_multiple_of(PROGRESS_EVERY) {
            let (made, seconds) = (created.len(), started.elapsed().as_secs());
            let text = format!("  {made} of {count} objects created in {seconds} s");
            log(text);
        }
    }
    Ok(created)
}

/// Writes the status of an object.
pub(crate) async fn write_status(api: &Api<DynamicObject>, name: &str, status: &Value) -> Result<()> {
    let (params, patch) = (PatchParams::default(), Patch::Merge(status));
    let written = api.patch_status(name, &params, &patch).await;
    written.with_context(|| format!("failed to write the status of {name}"))?;
    Ok(())
}

/// Creates schedules that are due in half a year.
pub(crate) async fn create_far_schedules(client: &Client, kind: Kind<'_>, count: usize) -> Result<()> {
    let schedules = (0..count).map(|index| schedule(kind, &format!("schedule-{index:05}"), &far_schedule(index)));
    create_all(&api(client, kind), schedules).await?;
    Ok(())
}

/// Returns an object with a schedule.
pub(crate) fn schedule(kind: Kind<'_>, name: &str, schedule: &str) -> Value {
    let id = match kind {
        CRON_TAB => "crontab",
        _ => "cronjob",
    };
    object(id, &[("name", &name), ("schedule", &schedule)])
}

/// Returns a yearly schedule that is due in half a year. Successive indexes differ in minute and
/// hour.
pub(crate) fn far_schedule(index: usize) -> String {
    let month = (Timestamp::now().to_zoned(TimeZone::UTC).month() + 5) % 12 + 1;
    format!("{} {} 1 {month} *", index % 60, index / 60 % 24)
}

/// Creates the definitions of Foos and CronTabs, and waits until the apiserver serves Foos.
pub(crate) async fn create_sample_definitions(client: &Client) -> Result<()> {
    for definition in [Foo::crd(), CronTab::crd()] {
        post(&definitions(client), serde_json::to_value(definition)?).await?;
    }
    wait_until_served(&api(client, FOO)).await
}

/// Waits until the apiserver serves a kind.
pub(crate) async fn wait_until_served(api: &Api<DynamicObject>) -> Result<()> {
    let one = ListParams::default().limit(1);
    let what = format!("{} to be served", api.resource_url());
    eventually(CRD_LIMIT, &what, || api.list_metadata(&one)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_and_jobs_are_those_of_their_cronjob() {
        let job = object("job", &[("job", &"one-run"), ("name", &"one"), ("uid", &"u-1")]);
        assert_eq!(job["metadata"]["name"], "one-run");
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "u-1");
        let template = schedule(CRON_JOB, "one", "@daily");
        assert_eq!(template["spec"]["schedule"], "@daily");
        assert_eq!(job["spec"], template["spec"]["jobTemplate"]["spec"]);
        let status = object("foo-status", &[]);
        assert_eq!(status["status"]["conditions"][1]["reason"], "Synced");
    }
}
