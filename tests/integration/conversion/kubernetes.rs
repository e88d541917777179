//! The cases of apiextensions-apiserver's conversion tests that concern a webhook which converts
//! correctly, by name, with our webhook: the groups `noop-converter` and `nontrivial-converter`.
//! `wrong` has the other groups.

use anyhow::{Result, ensure};
use http::{Method, StatusCode};
use kube::CustomResourceExt;
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2, CronTab};
use portreeve_testing::{ControlPlane, PooledPlane, eventually};
use serde_json::{Value, json};

use super::{
    environment::{BOTH, Environment, content},
    lossless::several,
};
use crate::fixtures::{
    LIMIT,
    conversion::{CronTabs, Definition, by_daemon, serve_both, small, versions},
};

#[tokio::test]
async fn test_webhook_converter_with_watch_cache() -> Result<()> {
    convert(ControlPlane::pooled().await?).await
}

/// The cases that read: without a cache, the apiserver converts when it reads from etcd. Writes are
/// the same.
#[tokio::test]
async fn test_webhook_converter_without_watch_cache() -> Result<()> {
    let plane = ControlPlane::builder().apiserver_arg("--watch-cache=false");
    let environment = Environment::start(plane.pooled().await?, &CRONTABS, &["--dry-run"]).await?;
    validate_mixed_storage_versions(&environment).await?;
    for stored in BOTH {
        validate_non_trivial(&environment, stored).await?;
    }
    Ok(())
}

/// Runs the cases that read non-trivial objects, and returns the client of their namespace.
async fn validate_non_trivial(environment: &Environment, stored: &Resource) -> Result<CronTabs> {
    store(environment, stored).await?;
    let namespace = environment.plane.namespace(&stored.version).await?;
    let crontabs = CronTabs::of(&namespace);
    validate_non_trivial_converted(environment, &crontabs, stored).await?;
    validate_non_trivial_converted_list(&crontabs).await?;
    Ok(crontabs)
}

/// Runs all cases, each with objects of its own.
async fn convert(plane: PooledPlane) -> Result<()> {
    let environment = Environment::start(plane, &CRONTABS, &["--dry-run"]).await?;
    validate_storage_version(&environment).await?;
    validate_served(&environment).await?;
    validate_mixed_storage_versions(&environment).await?;
    for stored in BOTH {
        let crontabs = validate_non_trivial(&environment, stored).await?;
        validate_storage_pruning(&environment, &crontabs, stored).await?;
        validate_defaulting(&crontabs).await?;
    }
    Ok(())
}

/// Changes the storage version, and waits until it is in use.
async fn store(environment: &Environment, stored: &Resource) -> Result<()> {
    let Environment { daemon, plane } = environment;
    serve_both(plane, &by_daemon(plane, daemon.webhooks.port), stored).await
}

async fn validate_storage_version(environment: &Environment) -> Result<()> {
    let crontabs = CronTabs::of(&environment.plane.namespace("storage-version").await?);
    for version in BOTH {
        store(environment, &CRONTABS).await?;
        let created = crontabs.create(version, &small(version, &version.version)).await?;
        store(environment, &CRONTABS_V2).await?;
        let read = crontabs.get(version, &version.version).await?;
        ensure!(read == created, "{read} instead of {created}");
        let stored = crontabs.stored(&environment.plane, &version.version).await?;
        ensure!(
            stored["apiVersion"] == CRONTABS.api_version(),
            "nobody has rewritten it: {stored}"
        );
    }
    Ok(())
}

async fn validate_served(environment: &Environment) -> Result<()> {
    let crontabs = CronTabs::of(&environment.plane.namespace("served").await?);
    let definition = Definition::of(&crontabs.client, CronTab::crd_name());
    for version in BOTH {
        let created = crontabs.create(version, &small(version, &version.version)).await?;
        for is_served in [false, true] {
            definition
                .edit(|definition| {
                    let is_changed = |candidate: &&mut Value| candidate["name"] == *version.version;
                    for changed in versions(definition).filter(is_changed) {
                        changed["served"] = is_served.into();
                    }
                })
                .await?;
            let expected = if is_served {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            eventually(LIMIT, &format!("served = {is_served}"), || async {
                let target = (version, &*version.version);
                let found = crontabs
                    .send(Method::GET, target, "application/json", &Value::Null)
                    .await?;
                ensure!(found.status == expected, "{found:?}");
                ensure!(!is_served || found.body == created, "{found:?}");
                anyhow::Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// The same object is the same in each version, whatever version it is stored in.
async fn validate_mixed_storage_versions(environment: &Environment) -> Result<()> {
    let crontabs = CronTabs::of(&environment.plane.namespace("mixed").await?);
    for stored in BOTH {
        store(environment, stored).await?;
        crontabs
            .create(&CRONTABS_V2, &several(&format!("stored-in-{}", stored.version)))
            .await?;
    }
    for version in BOTH {
        let listed = crontabs.list(version).await?;
        ensure!(listed.len() == 2, "{listed:?}");
        let part = |object: &Value| {
            (
                object["apiVersion"].clone(),
                object["spec"].clone(),
                object["metadata"]["annotations"].clone(),
            )
        };
        ensure!(part(&listed[0]) == part(&listed[1]), "{listed:?}");
        for object in &listed {
            let read = crontabs
                .get(version, object["metadata"]["name"].as_str().unwrap_or_default())
                .await?;
            ensure!(read == *object, "{read} instead of {object}");
        }
    }
    for stored in BOTH {
        let found = crontabs
            .stored(&environment.plane, &format!("stored-in-{}", stored.version))
            .await?;
        ensure!(found["apiVersion"] == stored.api_version(), "{found}");
    }
    let definition = Definition::of(&crontabs.client, CronTab::crd_name()).get().await?;
    ensure!(
        definition["status"]["storedVersions"] == json!(["v1", "v2"]),
        "{}",
        definition["status"]
    );
    Ok(())
}

async fn validate_non_trivial_converted(
    environment: &Environment,
    crontabs: &CronTabs,
    stored: &Resource,
) -> Result<()> {
    for created in BOTH {
        let name = format!("converted-{}", created.version);
        let mut object = small(created, &name);
        object["spec"]["unknown"] = "garbage".into();
        crontabs.create(created, &object).await?;
        let status = if *created == CRONTABS {
            json!({"missedRuns": 1})
        } else {
            json!({"schedules": [{"name": "default", "missedRuns": 1}]})
        };
        for target in [String::new(), name.clone(), format!("{name}/status")] {
            if !target.is_empty() {
                let change = json!({"metadata": {"annotations": {"patched": target}}, "status": status});
                crontabs.merge(created, &target, &change).await?;
            }
            let found = crontabs.stored(&environment.plane, &name).await?;
            ensure!(found["apiVersion"] == stored.api_version(), "{found}");
            ensure!(found["spec"].get("unknown").is_none(), "{found}");
            let schedule = if *stored == CRONTABS {
                "/spec/schedule"
            } else {
                "/spec/schedules/0/schedule"
            };
            ensure!(found.pointer(schedule) == Some(&json!("0 0 1 1 *")), "{found}");
        }
        let read = crontabs.get(&CRONTABS_V2, &name).await?;
        ensure!(read["spec"]["schedules"][0]["schedule"] == "0 0 1 1 *", "{read}");
        ensure!(
            read["status"]["schedules"] == json!([{"name": "default", "missedRuns": 1}]),
            "{read}"
        );
        let read = crontabs.get(&CRONTABS, &name).await?;
        ensure!(read["status"] == json!({"missedRuns": 1}), "{read}");
    }
    Ok(())
}

async fn validate_non_trivial_converted_list(crontabs: &CronTabs) -> Result<()> {
    for version in BOTH {
        let listed = crontabs.list(version).await?;
        ensure!(listed.len() == 2, "{listed:?}");
        for object in listed {
            ensure!(object["apiVersion"] == version.api_version(), "{object}");
            let read = crontabs
                .get(version, object["metadata"]["name"].as_str().unwrap_or_default())
                .await?;
            ensure!(read == object, "{read} instead of {object}");
        }
    }
    Ok(())
}

/// What etcd contains and the schema does not know, is neither returned nor converted.
async fn validate_storage_pruning(environment: &Environment, crontabs: &CronTabs, stored: &Resource) -> Result<()> {
    let name = "pruned";
    crontabs.create(stored, &small(stored, name)).await?;
    let before = crontabs.get(&CRONTABS_V2, name).await?;
    let mut object = crontabs.stored(&environment.plane, name).await?;
    object["unknown"] = "garbage".into();
    object["spec"]["unknown"] = json!({"garbage": 1});
    // This name belongs to the other version.
    let other = if *stored == CRONTABS {
        "runPolicy"
    } else {
        "concurrencyPolicy"
    };
    object["spec"][other] = if *stored == CRONTABS {
        json!({"concurrencyPolicy": "Forbid"})
    } else {
        "Forbid".into()
    };
    let path = format!("{}/{}/{}/{name}", CRONTABS.group, CRONTABS.plural, crontabs.namespace);
    environment.plane.store_unchecked(&path, &object).await?;
    for version in BOTH {
        eventually(LIMIT, "the object in etcd to be read", || async {
            let read = crontabs.get(version, name).await?;
            let versions = [&before, &read].map(|object| &object["metadata"]["resourceVersion"]);
            ensure!(versions[0] != versions[1], "{versions:?}");
            let text = read.to_string();
            ensure!(!text.contains("garbage") && !text.contains("Forbid"), "{text}");
            anyhow::Ok(())
        })
        .await?;
    }
    let after = content(crontabs.get(&CRONTABS_V2, name).await?);
    let before = content(before);
    ensure!(after == before, "{after} instead of {before}");
    Ok(())
}

/// The defaults of both versions are the same, whichever applies first.
async fn validate_defaulting(crontabs: &CronTabs) -> Result<()> {
    for version in BOTH {
        crontabs
            .create(version, &small(version, &format!("defaulted-{}", version.version)))
            .await?;
    }
    for version in BOTH {
        let [first, second] = [
            crontabs.get(version, "defaulted-v1").await?,
            crontabs.get(version, "defaulted-v2").await?,
        ];
        ensure!(
            first["spec"] == second["spec"],
            "{} and {}",
            first["spec"],
            second["spec"]
        );
    }
    let read = crontabs.get(&CRONTABS_V2, "defaulted-v1").await?["spec"].take();
    ensure!(read["suspend"] == false, "{read}");
    // With a default in an item, kubectl's client-side apply would replace the list each time.
    let sent = &small(&CRONTABS_V2, "defaulted-v2")["spec"]["schedules"];
    ensure!(read["schedules"] == *sent, "{read} instead of {sent}");
    let policy = json!({"concurrencyPolicy": "Allow", "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1});
    ensure!(read["runPolicy"] == policy, "{read}");
    ensure!(
        read["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never",
        "{read}"
    );
    Ok(())
}
