//! What happens to writes while no replica answers, and to objects that were stored without the
//! webhook.

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::environment::Environment;
use crate::fixtures::{
    LIMIT,
    definitions::plane_with_definitions,
    webhooks::{apply, configurations, create, crontab, fail_closed, patch},
};

#[tokio::test]
async fn writes_continue_without_the_webhook_unless_it_fails_closed() -> Result<()> {
    let Environment { plane, daemon } = Environment::start(plane_with_definitions().await?, &[]).await?;
    let client = plane.client()?;
    let closed = fail_closed(configurations(daemon.webhooks.port, Some(&plane.authority().pem()))?);
    drop(daemon);

    let bad = crontab("bad", json!({"schedule": "61 * * * *"}));
    let stored = create(&client, &CRONTABS, "default", "", &bad).await?;
    ensure!(
        stored.status == StatusCode::CREATED,
        "the failure is ignored: {stored:?}"
    );

    apply(&client, &closed).await?;
    let expected = "failed calling webhook \"crontabs.stable.example.com\"";
    eventually(LIMIT, "writes to be rejected", || async {
        let rejected = create(&client, &CRONTABS, "default", "?dryRun=All", &crontab("b", json!({}))).await?;
        ensure!(rejected.status == StatusCode::INTERNAL_SERVER_ERROR, "{rejected:?}");
        ensure!(rejected.message().contains(expected), "{rejected:?}");
        anyhow::Ok(())
    })
    .await
}

/// A CronTab that was stored without the webhook can be changed in everything but its schedule.
#[tokio::test]
async fn stored_objects_do_not_get_stuck() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let client = plane.client()?;
    let mut bad = crontab("bad", json!({"schedule": "61 * * * *"}));
    bad["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let stored = create(&client, &CRONTABS, "default", "", &bad).await?;
    ensure!(stored.status == StatusCode::CREATED, "{stored:?}");
    let Environment { plane, daemon: _daemon } = Environment::start(plane, &[]).await?;

    let change = async |merged: Value| patch(&client, &CRONTABS, ("default", "bad"), &merged).await;
    for harmless in [
        json!({"spec": {"suspend": true}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
    ] {
        let changed = change(harmless).await?;
        ensure!(changed.status == StatusCode::OK, "{changed:?}");
    }
    let denied = change(json!({"spec": {"schedule": "62 * * * *"}})).await?;
    ensure!(denied.status == StatusCode::UNPROCESSABLE_ENTITY, "{denied:?}");

    let path = format!("{}/bad", CRONTABS.collection_path(Some("default")));
    let delete = http::Request::delete(&path).body(Vec::new())?;
    let _: Value = client.request(delete).await?;
    let released = change(json!({"metadata": {"finalizers": null}})).await?;
    ensure!(released.status == StatusCode::OK, "{released:?}");
    drop(plane);
    Ok(())
}
