//! When the limits and the defaults of a CronTabPolicy apply.

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{Patch, PatchParams, ValidationDirective},
    core::{ApiResource, DynamicObject},
};
use portreeve_crontab::api::CronTab;
use portreeve_testing::{Namespace, eventually};
use serde_json::{Value, json};

use super::{
    environment::{create, dry_run, environment},
    rows,
    table::{Place, place_of},
};
use crate::fixtures::LIMIT;

async fn namespace(prefix: &str) -> Result<Namespace> {
    environment().await?.namespace(prefix).await
}

fn crontabs(namespace: &Namespace) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<CronTab>(&());
    Api::namespaced_with(namespace.client().clone(), namespace.name(), &resource)
}

/// Creates a CronTabPolicy, and waits until the apiserver rejects a CronTab because of it.
async fn limit(namespace: &Namespace, name: &str, limits: &Value, rejected: &Value) -> Result<()> {
    let policy = rows::policy(name, &json!({"limits": limits}));
    create(namespace.client(), namespace.name(), &policy).await??;
    eventually(LIMIT, "the limit to be enforced", || async {
        let status = dry_run(namespace.client(), namespace.name(), rejected).await?.err();
        let status = status.context("the CronTab is accepted")?;
        let by = format!("CronTabPolicy {}/{name}", namespace.name());
        ensure!(status.message.contains(&by), "{}", status.message);
        anyhow::Ok(())
    })
    .await
}

/// Merges a patch into a CronTab, and returns the message of a rejection by the limits.
async fn merge(namespace: &Namespace, name: &str, patch: Value) -> Result<Option<String>> {
    let parameters = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::default()
    };
    match crontabs(namespace).patch(name, &parameters, &Patch::Merge(patch)).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if place_of(&status) == Some(Place::Policy) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn a_limit_applies_to_changes_of_its_field_and_to_nothing_else() -> Result<()> {
    let namespace = namespace("changes").await?;
    let template = json!({"containers": [{"name": "a", "image": "evil:1"}]});
    let bad = json!({"jobTemplate": template, "timeZone": "Europe/Berlin", "schedule": "@every 90m"});
    let bad = rows::crontab("old", bad);
    create(namespace.client(), namespace.name(), &bad).await??;
    let limits = json!({"images": ["example.com/"], "timeZones": ["UTC"], "allowEvery": false});
    limit(&namespace, "limits", &limits, &bad).await?;

    let status = Patch::Merge(json!({"status": {"activeCount": 1}}));
    crontabs(&namespace)
        .patch_status("old", &PatchParams::default(), &status)
        .await?;
    for admitted in [
        json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/a"]}}),
        json!({"metadata": {"finalizers": null}}),
        json!({"spec": {"suspend": true}}),
        json!({"spec": {"schedule": "@daily"}}),
        json!({"spec": {"timeZone": null}}),
        json!({"spec": {"jobTemplate": {"containers": [{"name": "a", "image": "example.com/a:1"}]}}}),
    ] {
        let rejected = merge(&namespace, "old", admitted.clone()).await?;
        ensure!(rejected.is_none(), "{admitted}: {rejected:?}");
    }
    for (patch, path) in [
        (json!({"spec": {"schedule": "@every 91m"}}), "spec.schedule: "),
        (json!({"spec": {"timeZone": "Europe/Vienna"}}), "spec.timeZone: "),
        (
            json!({"spec": {"jobTemplate": {"containers": [{"name": "a", "image": "evil:2"}]}}}),
            "spec.jobTemplate.containers[0].image: ",
        ),
    ] {
        let message = merge(&namespace, "old", patch).await?.context(path)?;
        ensure!(message.contains(path), "{message}");
    }
    Ok(())
}

/// A field of v2 without its marker belongs to nobody, so the conversion drops it: without that of
/// its time zone, a schedule would run in another one.
#[tokio::test]
async fn markers_of_fields_of_v2_are_not_changed_in_v1() -> Result<()> {
    const FIELDS: &str = "stable.example.com/v2";
    const MARKER: &str = "v2.stable.example.com/0";
    let namespace = namespace("markers").await?;
    let mut object = rows::crontab("stored", json!({"timeZone": "UTC"}));
    object["metadata"]["annotations"] = json!({FIELDS: "{}", MARKER: "spec.schedules[x].timeZone"});
    create(namespace.client(), namespace.name(), &object).await??;
    let zone = rows::crontab("any", json!({"timeZone": "Europe/Berlin"}));
    limit(&namespace, "limits", &json!({"timeZones": ["UTC"]}), &zone).await?;
    for annotations in [
        json!({MARKER: null}),
        json!({MARKER: "spec.schedules[y].timeZone"}),
        json!({"v2.stable.example.com/1": "spec.schedules[x].name"}),
        json!({FIELDS: "{ }"}),
    ] {
        let rejected = merge(&namespace, "stored", json!({"metadata": {"annotations": annotations}})).await?;
        let message = rejected.with_context(|| format!("{annotations} is admitted"))?;
        ensure!(
            message.contains("metadata.annotations[stable.example.com/v2]"),
            "{message}"
        );
    }
    let other = json!({"metadata": {"annotations": {"example.com/a": "b"}}, "spec": {"suspend": true}});
    let rejected = merge(&namespace, "stored", other).await?;
    ensure!(rejected.is_none(), "{rejected:?}");
    Ok(())
}

#[tokio::test]
async fn every_policy_of_the_namespace_applies() -> Result<()> {
    let namespace = namespace("several").await?;
    let zone = |zone: &str| rows::crontab("any", json!({"timeZone": zone}));
    let zones = |zones: [&str; 2]| json!({"timeZones": zones});
    limit(
        &namespace,
        "first",
        &zones(["UTC", "Europe/Zurich"]),
        &zone("Europe/Berlin"),
    )
    .await?;
    limit(
        &namespace,
        "second",
        &zones(["UTC", "Europe/Berlin"]),
        &zone("Europe/Zurich"),
    )
    .await?;
    for (name, is_admitted) in [("UTC", true), ("Europe/Zurich", false), ("Europe/Berlin", false)] {
        let written = dry_run(namespace.client(), namespace.name(), &zone(name)).await?;
        ensure!(written.is_ok() == is_admitted, "{name}: {written:?}");
    }
    Ok(())
}

/// The expressions have a cost limit. The failure policy decides what happens to an object that
/// exceeds it.
#[tokio::test]
async fn a_large_object_does_not_evade_the_limits() -> Result<()> {
    let namespace = namespace("large").await?;
    let images: Vec<_> = (0..64).map(|index| format!("{}{index}/", "a".repeat(200))).collect();
    limit(
        &namespace,
        "limits",
        &json!({"images": images}),
        &rows::crontab("any", json!({})),
    )
    .await?;
    let image = format!("{}63/a:1", "a".repeat(200));
    let container = |index: usize| json!({"name": format!("c{index}"), "image": image});
    let mut containers: Vec<_> = (0..2_000).map(container).collect();
    containers.push(json!({"name": "last", "image": "evil:1"}));
    let large = rows::crontab("large", json!({"jobTemplate": {"containers": containers}}));
    let written = dry_run(namespace.client(), namespace.name(), &large).await?;
    let status = written.err().context("the CronTab was accepted")?;
    ensure!(status.message.contains("cost"), "{}", status.message);
    Ok(())
}

#[tokio::test]
async fn defaults_are_set_on_new_crontabs_for_fields_that_they_leave_out() -> Result<()> {
    let namespace = namespace("defaults").await?;
    let defaults = json!({
        "timeZone": "Europe/Zurich",
        "startingDeadlineSeconds": 60,
        "backoffLimit": 2,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 86_400,
    });
    let own = json!({
        "timeZone": "UTC",
        "startingDeadlineSeconds": 0,
        "backoffLimit": 0,
        "activeDeadlineSeconds": 1,
        "ttlSecondsAfterFinished": 0,
    });
    create(namespace.client(), namespace.name(), &rows::crontab("old", json!({}))).await??;
    let policy = rows::policy("defaults", &json!({"defaults": defaults}));
    create(namespace.client(), namespace.name(), &policy).await??;

    let fields = defaults.as_object().context("no fields")?;
    let found = |object: &Value| -> Value {
        let pick = |name: &String| (name.clone(), object["spec"][name].clone());
        fields.keys().map(pick).collect::<serde_json::Map<_, _>>().into()
    };
    eventually(LIMIT, "the defaults to be set", || async {
        let created = dry_run(namespace.client(), namespace.name(), &rows::crontab("any", json!({}))).await??;
        ensure!(found(&created) == defaults, "{created:#}");
        anyhow::Ok(())
    })
    .await?;
    let created = create(namespace.client(), namespace.name(), &rows::crontab("own", own.clone())).await??;
    ensure!(found(&created) == own, "{created:#}");
    // Each field has its own default.
    for name in fields.keys() {
        let object = rows::crontab("any", json!({name: own[name]}));
        let created = dry_run(namespace.client(), namespace.name(), &object).await??;
        let mut expected = defaults.clone();
        expected[name] = own[name].clone();
        ensure!(found(&created) == expected, "{created:#}");
    }
    // Nothing is set afterwards: neither on old objects, nor on a field that a user removes.
    for (name, patch) in [
        ("old", json!({"spec": {"suspend": true}})),
        ("own", json!({"spec": {"timeZone": null}})),
    ] {
        ensure!(merge(&namespace, name, patch).await?.is_none());
        let stored = crontabs(&namespace).get(name).await?;
        ensure!(stored.data["spec"].get("timeZone").is_none(), "{:#}", stored.data);
    }
    // A CronTab without a spec gets none, because it could lack a schedule.
    let bare = json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "bare"}});
    let created = create(namespace.client(), namespace.name(), &bare).await??;
    ensure!(created.get("spec").is_none(), "{created:#}");
    Ok(())
}
