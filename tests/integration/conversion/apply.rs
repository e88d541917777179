//! Server-side apply of the same object by managers that use different versions.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2, V2_FIELDS};
use serde_json::{Value, json};

use super::environment::with_either_storage;
use crate::fixtures::{
    conversion::{CronTabs, succeeded},
    object_builder::with_fields,
};

/// Applies a spec. The apiserver must neither refuse it nor find a conflict.
async fn apply(crontabs: &CronTabs, version: &Resource, manager: &str, spec: Value) -> Result<Value> {
    let object = json!({"metadata": {"name": "a"}, "spec": spec});
    let applied = succeeded(crontabs.apply(version, manager, &object).await?);
    applied.with_context(|| format!("{manager} applies {object}"))
}

/// Returns the version and the fields that a manager owns.
fn owned(object: &Value, manager: &str) -> Result<(Value, Value)> {
    let managers = object["metadata"]["managedFields"].as_array().context("no managers")?;
    let mut entries = managers.iter().filter(|entry| entry["manager"] == manager);
    let entry = entries
        .next()
        .with_context(|| format!("{manager} owns nothing: {managers:?}"))?;
    ensure!(entries.next().is_none(), "{manager} has several entries: {managers:?}");
    Ok((entry["apiVersion"].clone(), entry["fieldsV1"].clone()))
}

/// Fails unless a manager owns exactly these fields of the spec, in this version.
fn ensure_owned(object: &Value, manager: &str, version: &Resource, fields: &Value) -> Result<()> {
    let (found_version, found) = owned(object, manager)?;
    ensure!(found_version == version.api_version(), "{manager}: {found_version}");
    ensure!(found == json!({"f:spec": fields}), "{manager} owns {found}");
    Ok(())
}

fn spec_v1(schedule: &str) -> Value {
    json!({"schedule": schedule, "jobTemplate": {"containers": [{"name": "main", "image": "example.com/a:1"}]}})
}

fn fields_v1(more: &[&str]) -> Value {
    let container = json!({".": {}, "f:image": {}, "f:name": {}});
    let mut fields = json!({
        "f:schedule": {},
        "f:jobTemplate": {"f:containers": {"k:{\"name\":\"main\"}": container}},
    });
    for field in more {
        fields[field] = json!({});
    }
    fields
}

fn entry(name: &str, more: Value) -> Value {
    with_fields(json!({"name": name}), more)
}

/// Returns the ownership of an entry with these other fields.
fn fields_v2(name: &str, fields: &[&str]) -> Value {
    let mut owned = json!({".": {}, "f:name": {}});
    for field in fields {
        owned[field] = json!({});
    }
    json!({"f:schedules": {format!("k:{{\"name\":\"{name}\"}}"): owned}})
}

#[tokio::test]
async fn two_managers_apply_their_parts_in_two_versions() -> Result<()> {
    with_either_storage("apply", async |crontabs| {
        let mut spec = spec_v1("@daily");
        spec["timeZone"] = "UTC".into();
        apply(crontabs, &CRONTABS, "alice", spec.clone()).await?;
        let weekend = entry("weekend", json!({"schedule": "0 8 * * 6", "suspend": true}));
        apply(crontabs, &CRONTABS_V2, "bob", json!({"schedules": [weekend]})).await?;
        // A third manager keeps something that only v2 has.
        let noon = entry("noon", json!({"schedule": "0 12 1 1 *"}));
        let applied = apply(crontabs, &CRONTABS_V2, "carol", json!({"schedules": [noon]})).await?;
        let names: Vec<_> = applied["spec"]["schedules"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| &entry["name"])
            .collect();
        ensure!(names == ["default", "weekend", "noon"], "{names:?}");
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&["f:timeZone"]))?;
        let weekend_fields = fields_v2("weekend", &["f:schedule", "f:suspend"]);
        ensure_owned(&applied, "bob", &CRONTABS_V2, &weekend_fields)?;

        // The first changes one field and gives up another.
        let applied = apply(crontabs, &CRONTABS, "alice", spec_v1("@weekly")).await?;
        ensure!(applied["spec"]["schedule"] == "@weekly", "{applied}");
        ensure!(applied["spec"].get("timeZone").is_none(), "alice gave it up: {applied}");
        ensure!(applied["metadata"]["annotations"][V2_FIELDS].is_string(), "{applied}");
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&[]))?;
        ensure_owned(&applied, "bob", &CRONTABS_V2, &weekend_fields)?;
        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        ensure!(read["spec"]["schedules"][1]["suspend"] == true, "{read}");

        // The second does the same.
        let weekend = entry("weekend", json!({"schedule": "0 9 * * 6"}));
        let applied = apply(crontabs, &CRONTABS_V2, "bob", json!({"schedules": [weekend]})).await?;
        let found = &applied["spec"]["schedules"];
        ensure!(found[0]["schedule"] == "@weekly", "{found}");
        ensure!(
            found[1]["schedule"] == "0 9 * * 6" && found[1].get("suspend").is_none(),
            "{found}"
        );
        ensure_owned(&applied, "bob", &CRONTABS_V2, &fields_v2("weekend", &["f:schedule"]))?;
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&[]))?;

        // It gives up its whole entry, and keeps another field.
        let policy = json!({"runPolicy": {"failedJobsHistoryLimit": 5}});
        let applied = apply(crontabs, &CRONTABS_V2, "bob", policy).await?;
        let found = &applied["spec"]["schedules"];
        ensure!(found[0]["schedule"] == "@weekly", "{found}");
        ensure!(found[1]["name"] == "noon" && found.get(2).is_none(), "{found}");
        let limit = json!({"f:runPolicy": {"f:failedJobsHistoryLimit": {}}});
        ensure_owned(&applied, "bob", &CRONTABS_V2, &limit)?;
        let read = crontabs.get(&CRONTABS, "a").await?;
        ensure!(read["spec"]["failedJobsHistoryLimit"] == 5, "{read}");

        // The last thing that only v2 has.
        apply(crontabs, &CRONTABS_V2, "carol", json!({})).await?;
        let read = crontabs.get(&CRONTABS, "a").await?;
        ensure!(read["metadata"].get("annotations").is_none(), "nothing is left: {read}");
        let before = crontabs.get(&CRONTABS, "a").await?;
        let applied = apply(crontabs, &CRONTABS, "alice", spec_v1("@weekly")).await?;
        ensure!(applied == before, "an equal apply changed {before} to {applied}");
        Ok(())
    })
    .await
}

/// Returns the managers and fields of the conflicts of an apply.
async fn conflicts(
    crontabs: &CronTabs,
    version: &Resource,
    manager: &str,
    spec: Value,
) -> Result<Vec<(String, String)>> {
    let object = json!({"metadata": {"name": "a"}, "spec": spec});
    let response = crontabs.apply(version, manager, &object).await?;
    ensure!(response.status == StatusCode::CONFLICT, "{response:?}");
    let causes = response.body["details"]["causes"].as_array().context("no causes")?;
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
    Ok(causes
        .iter()
        .map(|cause| (text(cause, "message"), text(cause, "field")))
        .collect())
}

#[tokio::test]
async fn a_field_that_two_managers_set_is_a_conflict_in_either_version() -> Result<()> {
    with_either_storage("conflict", async |crontabs| {
        apply(crontabs, &CRONTABS, "alice", spec_v1("@daily")).await?;
        let other = json!({"schedules": [entry("default", json!({"schedule": "@yearly"}))]});
        let found = conflicts(crontabs, &CRONTABS_V2, "bob", other).await?;
        let [(message, field)] = &found[..] else {
            anyhow::bail!("{found:?}");
        };
        ensure!(message == "conflict with \"alice\"", "{found:?}");
        ensure!(field == ".spec.schedule", "{found:?}");

        // Equal values are shared.
        let same = json!({"schedules": [entry("default", json!({"schedule": "@daily"}))]});
        let applied = apply(crontabs, &CRONTABS_V2, "bob", same).await?;
        ensure_owned(&applied, "bob", &CRONTABS_V2, &fields_v2("default", &["f:schedule"]))?;
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&[]))?;
        let found = conflicts(crontabs, &CRONTABS, "alice", spec_v1("@yearly")).await?;
        ensure!(found.len() == 1 && found[0].0.contains("\"bob\""), "{found:?}");
        ensure!(
            found[0].1.contains("schedules") && found[0].1.ends_with(".schedule"),
            "{found:?}"
        );

        // What one gives up stays, because the other still sets it.
        let weekend = json!({"schedules": [entry("weekend", json!({"schedule": "0 8 * * 6"}))]});
        let applied = apply(crontabs, &CRONTABS_V2, "bob", weekend).await?;
        ensure!(applied["spec"]["schedules"][0]["schedule"] == "@daily", "{applied}");
        let applied = apply(crontabs, &CRONTABS, "alice", spec_v1("@yearly")).await?;
        ensure!(applied["spec"]["schedule"] == "@yearly", "{applied}");
        Ok(())
    })
    .await
}

/// A manager that moves to v2 owns the same fields there, and can give them up.
#[tokio::test]
async fn a_manager_can_move_to_the_other_version_and_back() -> Result<()> {
    with_either_storage("move", async |crontabs| {
        let mut spec = spec_v1("@daily");
        spec["timeZone"] = "UTC".into();
        spec["backoffLimit"] = 2.into();
        apply(crontabs, &CRONTABS, "alice", spec).await?;
        let pod = json!({"containers": [{"name": "main", "image": "example.com/a:1"}]});
        let spec = json!({
            "schedules": [entry("default", json!({"schedule": "@weekly"})), entry("noon", json!({"schedule": "0 12 1 1 *"}))],
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"spec": pod}}},
        });
        let applied = apply(crontabs, &CRONTABS_V2, "alice", spec).await?;
        let default = &applied["spec"]["schedules"][0];
        ensure!(default["schedule"] == "@weekly" && default.get("timeZone").is_none(), "{applied}");
        ensure!(applied["spec"]["template"]["spec"].get("backoffLimit").is_none(), "{applied}");
        let (version, _) = owned(&applied, "alice")?;
        ensure!(version == CRONTABS_V2.api_version(), "{version}");

        let applied = apply(crontabs, &CRONTABS, "alice", spec_v1("@monthly")).await?;
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&[]))?;
        ensure!(applied["spec"]["schedule"] == "@monthly", "{applied}");
        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        let schedules = read["spec"]["schedules"].as_array().context("no schedules")?;
        ensure!(schedules.len() == 1, "alice gave the other schedule up: {schedules:?}");
        ensure!(read["spec"]["template"].get("metadata").is_none(), "{read}");
        Ok(())
    })
    .await
}

/// Fields that others own survive an apply in v1 that gives up what they depend on, and never make
/// a later apply fail.
#[tokio::test]
async fn dependent_fields_belong_to_their_manager() -> Result<()> {
    with_either_storage("dependent-apply", async |crontabs| {
        let mut spec = spec_v1("@daily");
        spec["suspend"] = true.into();
        apply(crontabs, &CRONTABS, "alice", spec.clone()).await?;
        let bob = json!({
            "schedules": [entry("default", json!({"suspend": true}))],
            "template": {"spec": {"parallelism": 3}},
        });
        let applied = apply(crontabs, &CRONTABS_V2, "bob", bob.clone()).await?;
        ensure!(applied["spec"]["schedules"][0]["suspend"] == true, "{applied}");
        let applied = apply(crontabs, &CRONTABS, "alice", spec).await?;
        ensure_owned(&applied, "alice", &CRONTABS, &fields_v1(&["f:suspend"]))?;
        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        ensure!(
            read["spec"]["schedules"][0]["suspend"] == true,
            "nothing was edited: {read}"
        );

        // The schedule resumes with the CronTab.
        let mut resumed = spec_v1("@daily");
        resumed["suspend"] = false.into();
        apply(crontabs, &CRONTABS, "alice", resumed).await?;
        let read = crontabs.get(&CRONTABS_V2, "a").await?;
        ensure!(read["spec"]["schedules"][0].get("suspend").is_none(), "{read}");
        ensure!(read["spec"]["template"]["spec"]["parallelism"] == 3, "{read}");
        let applied = apply(crontabs, &CRONTABS_V2, "bob", bob).await?;
        ensure!(applied["spec"]["schedules"][0]["suspend"] == true, "{applied}");
        ensure!(applied["spec"]["suspend"] == false, "{applied}");
        Ok(())
    })
    .await
}

/// An edit in v1 does not make its manager own the annotation, so that nobody has a conflict there.
#[tokio::test]
async fn nobody_owns_the_annotation() -> Result<()> {
    with_either_storage("annotation", async |crontabs| {
        crontabs.create(&CRONTABS_V2, &super::lossless::several("a")).await?;
        crontabs
            .edit(&CRONTABS, "a", |object| {
                object["spec"]["schedule"] = "@weekly".into();
                object["metadata"]["labels"] = json!({"edited": "yes"});
            })
            .await?;
        let evening = json!({"schedules": [entry("evening", json!({"schedule": "0 20 1 1 *"}))]});
        apply(crontabs, &CRONTABS_V2, "bob", evening).await?;
        crontabs
            .merge(&CRONTABS, "a", &json!({"spec": {"timeZone": "UTC"}}))
            .await?;
        let read = crontabs.get(&CRONTABS, "a").await?;
        let managers = read["metadata"]["managedFields"].to_string();
        ensure!(!managers.contains(&format!("f:{V2_FIELDS}")), "{managers}");
        ensure!(
            read["metadata"]["annotations"][V2_FIELDS]
                .to_string()
                .contains("evening"),
            "{read}"
        );
        Ok(())
    })
    .await
}
