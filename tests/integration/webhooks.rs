//! The webhooks of CronTabs and Foos, called by a real apiserver.

mod attacks;
mod environment;
mod failures;
mod requests;
mod shutdown;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use portreeve_crontab::api::CRONTABS;
use portreeve_foo::api::{FOOS, Foo};
use serde_json::{Value, json};

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
    // The definition asks for the field where the name of the Foo is no name of a Deployment.
    for metadata in [
        json!({"name": "d.e"}),
        json!({"name": "f".repeat(64)}),
        json!({"generateName": "g-"}),
    ] {
        let foo = json!({"metadata": metadata, "spec": {}});
        let rejected = create(client, &FOOS, namespace, "", &foo).await?;
        let message = rejected.message();
        ensure!(message.contains("spec.deploymentName: Required value"), "{rejected:?}");
        ensure!(message.matches("spec.deploymentName").count() == 1, "{rejected:?}");
    }

    let renamed = patch(
        client,
        &FOOS,
        (namespace, "a"),
        &json!({"spec": {"deploymentName": "z"}}),
    )
    .await?;
    ensure!(renamed.status == StatusCode::OK, "{renamed:?}");
    let warning = "299 - \"spec.deploymentName: Deployment \\\"a\\\" will be deleted once \\\"z\\\" has replaced it\"";
    ensure!(renamed.warnings == [warning], "{:?}", renamed.warnings);
    let unchanged = patch(client, &FOOS, (namespace, "a"), &json!({"spec": {"replicas": 3}})).await?;
    ensure!(unchanged.warnings.is_empty(), "{unchanged:?}");
    Ok(())
}

/// The cases of kubebuilder's tutorial on webhooks.
#[tokio::test]
async fn crontabs_of_the_tutorial() -> Result<()> {
    let fixture = fixture("tutorial").await?;
    let (client, namespace) = (fixture.client(), fixture.name());
    let long = "a".repeat(53);
    let rows: [(&str, Value, &str); 6] = [
        ("defaulted", json!({}), ""),
        (
            "kept",
            json!({"concurrencyPolicy": "Forbid", "suspend": true, "successfulJobsHistoryLimit": 5, "failedJobsHistoryLimit": 2}),
            "",
        ),
        (&long, json!({}), "at most 52 characters"),
        ("short", json!({"schedule": "*/5 * * * *"}), ""),
        (
            "words",
            json!({"schedule": "invalid-cron-schedule"}),
            "spec.schedule: Invalid value: \"invalid-cron-schedule\": found 1 fields",
        ),
        (
            "zone",
            json!({"timeZone": "Europe/Atlantis"}),
            "spec.timeZone: Invalid value: \"Europe/Atlantis\": unknown time zone",
        ),
    ];
    for (name, fields, reason) in rows {
        let created = create(client, &CRONTABS, namespace, "", &crontab(name, fields.clone())).await?;
        if reason.is_empty() {
            ensure!(created.status == StatusCode::CREATED, "{created:?}");
            for (field, value) in fields.as_object().into_iter().flatten() {
                ensure!(created.body["spec"][field] == *value, "{created:?}");
            }
        } else {
            ensure!(
                created.status == StatusCode::UNPROCESSABLE_ENTITY,
                "{name}: {created:?}"
            );
            ensure!(created.message().contains(reason), "{name}: {created:?}");
        }
    }
    let rescheduled = |schedule: &str| json!({"spec": {"schedule": schedule}});
    let denied = patch(client, &CRONTABS, (namespace, "short"), &rescheduled("0 0 30 2 *")).await?;
    ensure!(
        denied.body["details"]["causes"][0]["field"] == "spec.schedule",
        "{denied:?}"
    );
    let cause = denied.body["details"]["causes"][0]["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        cause.starts_with("Invalid value: \"0 0 30 2 *\": it never runs"),
        "{denied:?}"
    );
    let prefix = "admission webhook \"crontabs.stable.example.com\" denied the request: spec.schedule: ";
    ensure!(denied.message().starts_with(prefix), "{denied:?}");
    let allowed = patch(client, &CRONTABS, (namespace, "short"), &rescheduled("0 0 * * *")).await?;
    ensure!(allowed.status == StatusCode::OK, "{allowed:?}");
    Ok(())
}

#[tokio::test]
async fn a_clock_change_is_a_warning() -> Result<()> {
    let fixture = fixture("clock").await?;
    let fields = json!({"schedule": "30 2 * * *", "timeZone": "Europe/Berlin", "dstPolicy": "Kubernetes"});
    let created = create(fixture.client(), &CRONTABS, fixture.name(), "", &crontab("a", fields)).await?;
    ensure!(created.status == StatusCode::CREATED, "{created:?}");
    let [warning] = &created.warnings[..] else {
        anyhow::bail!("{:?}", created.warnings);
    };
    ensure!(
        warning.starts_with("299 - \"spec.dstPolicy: the clock change of "),
        "{warning}"
    );
    Ok(())
}

/// An object of nearly the largest size that etcd stores is reviewed in both versions.
#[tokio::test]
async fn large_objects_are_reviewed() -> Result<()> {
    let fixture = fixture("large").await?;
    let (client, namespace) = (fixture.client(), fixture.name());
    let fields = json!({"jobTemplate": {"containers": [{"name": "a", "image": "a", "args": ["x".repeat(1_200_000)]}]}});
    let created = create(client, &CRONTABS, namespace, "", &crontab("a", fields)).await?;
    ensure!(created.status == StatusCode::CREATED, "{}", created.message());
    let denied = patch(
        client,
        &CRONTABS,
        (namespace, "a"),
        &json!({"spec": {"schedule": "61 * * * *"}}),
    )
    .await?;
    ensure!(
        denied.message().contains("spec.schedule: Invalid value"),
        "{}",
        denied.message()
    );
    Ok(())
}

/// Server-side apply sends partial objects of which only the merged one is reviewed.
#[tokio::test]
async fn an_apply_is_reviewed_as_a_whole() -> Result<()> {
    let fixture = fixture("apply").await?;
    let foos: Api<Foo> = Api::namespaced(fixture.client().clone(), fixture.name());
    let partial =
        json!({"apiVersion": FOOS.api_version(), "kind": "Foo", "metadata": {"name": "a"}, "spec": {"replicas": 2}});
    let applied = foos
        .patch("a", &PatchParams::apply("one"), &Patch::Apply(&partial))
        .await?;
    ensure!(applied.spec.deployment_name == "a", "{applied:?}");
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
