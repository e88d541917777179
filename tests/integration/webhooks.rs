//! The webhooks of CronTabs and Foos, called by a real apiserver.

mod attacks;
mod environment;
mod failures;
mod requests;
mod shutdown;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::Client;
use portreeve_crontab::api::CRONTABS;
use portreeve_foo::api::FOOS;
use serde_json::json;

use self::environment::fixture;
use crate::fixtures::webhooks::{create, crontab, patch};

#[tokio::test]
async fn a_foo_is_defaulted_and_a_rename_is_a_warning() -> Result<()> {
    let fixture = fixture("foos").await?;
    let (client, namespace) = (fixture.client(), fixture.name());
    let foo = json!({"metadata": {"name": "a"}, "spec": {"replicas": 2}});
    let dry = create(client, &FOOS, namespace, "?dryRun=All", &foo).await?;
    ensure!(dry.body["spec"]["deploymentName"] == "a", "{dry:?}");
    let created = create(client, &FOOS, namespace, "", &foo).await?;
    ensure!(
        created.status == StatusCode::CREATED,
        "the dry run stored the Foo: {created:?}"
    );
    ensure!(
        created.body["spec"] == json!({"deploymentName": "a", "replicas": 2}),
        "{created:?}"
    );
    ensure!(created.warnings.is_empty(), "{created:?}");

    let given = json!({"metadata": {"name": "b"}, "spec": {"deploymentName": "c", "replicas": 1}});
    let created = create(client, &FOOS, namespace, "", &given).await?;
    ensure!(created.body["spec"]["deploymentName"] == "c", "{created:?}");

    let rename = json!({"spec": {"deploymentName": "z"}});
    let renamed = patch(client, &FOOS, (namespace, "a"), &rename).await?;
    ensure!(renamed.status == StatusCode::OK, "{renamed:?}");
    let warning = "299 - \"spec.deploymentName: Deployment \\\"a\\\" will be deleted once \\\"z\\\" has replaced it\"";
    ensure!(renamed.warnings == [warning], "{:?}", renamed.warnings);
    let unchanged = patch(client, &FOOS, (namespace, "a"), &json!({"spec": {"replicas": 3}})).await?;
    ensure!(unchanged.warnings.is_empty(), "{unchanged:?}");
    Ok(())
}

#[tokio::test]
async fn log_lines_name_the_listener() -> Result<()> {
    let log = environment::shared().await?.daemon.daemon.log()?;
    for listener in ["listener=\"secure\"", "listener=\"webhooks\""] {
        let mut lines = log.lines();
        let is_logged = lines.any(|line| line.contains("serving HTTPS") && line.contains(listener));
        ensure!(is_logged, "{listener}: {log}");
    }
    Ok(())
}

/// The replicas' own account and the control plane's namespace never depend on the webhooks.
#[tokio::test]
async fn replicas_and_kube_system_are_exempt() -> Result<()> {
    let environment = environment::shared().await?;
    let client = environment.plane.client()?;
    let mut config = environment.plane.config()?;
    config.auth_info.impersonate = Some("system:serviceaccount:portreeve-system:portreeve".to_owned());
    config.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
    let replica = Client::try_from(config)?;
    let bad = crontab("bad", json!({"schedule": "61 * * * *"}));
    for (client, namespace, expected) in [
        (&client, "default", StatusCode::UNPROCESSABLE_ENTITY),
        (&client, "kube-system", StatusCode::CREATED),
        (&replica, "default", StatusCode::CREATED),
    ] {
        let created = create(client, &CRONTABS, namespace, "?dryRun=All", &bad).await?;
        ensure!(created.status == expected, "{namespace}: {created:?}");
    }
    Ok(())
}
