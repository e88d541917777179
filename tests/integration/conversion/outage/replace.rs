//! Runs that replace each other in the middle of a migration, while nobody converts CronTabs. Jobs
//! start, but no status can be written.

use super::*;
use crate::fixtures::admin::Admin;

/// Brings a control plane into the middle of a migration: the CronTab `a`, whose two schedules
/// replace each other's runs, is stored in v1, and new writes are stored in v2. The apiserver calls
/// the webhook at this URL.
async fn migrating(converting: &Converting, namespace: &str, url: &str) -> Result<Namespace> {
    let namespace = converting.plane.namespace(namespace).await?;
    let crontabs = CronTabs::of(&namespace);
    let mut crontab = twice("a", converting.due);
    crontab["spec"]["runPolicy"] = json!({"concurrencyPolicy": "Replace"});
    crontabs.create(&CRONTABS_V2, &crontab).await?;
    wait_until_observed(&crontabs, &CRONTABS, "a").await?;
    let webhook = webhook(url, &converting.plane.authority().pem());
    let switch = |definition: &mut Value| {
        definition["spec"]["conversion"] = webhook.clone();
        for version in versions(definition) {
            version["storage"] = (version["name"] == *CRONTABS_V2.version).into();
        }
    };
    converting.definition()?.edit(switch).await?;
    wait_until_unreadable(&crontabs, &CRONTABS_V2, "a").await?;
    Ok(namespace)
}

/// Waits until the only Job is that of the schedule `second` for this time, and returns it with the
/// runs that it records.
async fn wait_for_the_last_job(namespace: &Namespace, slot: Timestamp) -> Result<(Job, Value)> {
    let jobs: Api<Job> = namespace.api();
    let expected = format!("{slot:.0}");
    eventually(LIMIT, &format!("only the second run at {slot}"), || async {
        let mut found = jobs.list(&ListParams::default()).await?.items;
        let annotations: Vec<_> = found.iter().map(ResourceExt::annotations).collect();
        ensure!(found.len() == 1, "{annotations:?}");
        let annotation = |name: &str| annotations[0].get(name).map_or("", String::as_str);
        let time = annotation("batch.kubernetes.io/cronjob-scheduled-timestamp");
        ensure!(
            annotation("stable.example.com/schedule") == "second" && time == expected,
            "{annotations:?}"
        );
        let replaced = serde_json::from_str(annotation("stable.example.com/replaced-runs"))?;
        anyhow::Ok((found.remove(0), replaced))
    })
    .await
}

#[tokio::test]
async fn runs_replace_each_other_in_the_middle_of_a_migration() -> Result<()> {
    let mut converting = Converting::start(&CRONTABS).await?;
    let nobody = format!("https://localhost:{}/", free_port()?);
    let namespace = migrating(&converting, "replace", &nobody).await?;
    let first = converting.due;
    converting.advance();
    let (_, replaced) = wait_for_the_last_job(&namespace, first).await?;
    ensure!(replaced["scheduled"] == json!({"default": [first]}), "{replaced}");
    let second = converting.due;
    converting.advance();
    let (job, replaced) = wait_for_the_last_job(&namespace, second).await?;
    let expected = json!({"default": [first, second], "second": [first]});
    ensure!(replaced["scheduled"] == expected, "{replaced}");

    // Another process has only the Job and the former status. It repeats nothing and counts nothing
    // as missed.
    let crontabs = CronTabs::of(&namespace);
    let found = crontabs.get(&CRONTABS, "a").await?;
    ensure!(found["status"].get("lastScheduleTime").is_none(), "{found}");
    let definition = converting.definition()?;
    let Converting {
        daemon,
        clock,
        port,
        plane,
        ..
    } = converting;
    daemon.stop().await?;
    definition.convert(&by_daemon(&plane, port)).await?;
    let daemon = Converting::daemon(&plane, &clock, port).await?;
    let recorded = wait_for_last_schedule(&crontabs, &CRONTABS, "a", second).await?;
    ensure!(
        recorded["status"].get("missedRuns").is_none_or(|missed| *missed == 0),
        "{recorded}"
    );
    let (same, _) = wait_for_the_last_job(&namespace, second).await?;
    ensure!(same.uid() == job.uid(), "{same:?}");
    daemon.stop().await
}

/// The apiserver waits for the webhook for 30 s each time. Runs start nevertheless, and the check
/// of the conversion fails.
#[tokio::test]
async fn runs_replace_each_other_while_the_conversion_hangs() -> Result<()> {
    let mut converting = Converting::start(&CRONTABS).await?;
    let silent = WebhookServer::silent(converting.plane.authority()).await?;
    let namespace = migrating(&converting, "hanging", silent.url()).await?;
    let first = converting.due;
    converting.advance();
    let (_, replaced) = wait_for_the_last_job(&namespace, first).await?;
    ensure!(replaced["scheduled"] == json!({"default": [first]}), "{replaced}");
    let check = format!("conversion/{}", CRONTABS.crd_name());
    let reason = converting
        .daemon
        .admin
        .wait_until_failing("/readyz", &check, &["conversion webhook for"]);
    let reason = reason.await?;
    ensure!(
        reason.contains("deadline exceeded") || reason.contains("Timeout"),
        "{reason}"
    );
    // An endpoint of the webhooks that is not ready could never convert again.
    let webhooks = Admin { port: converting.port };
    webhooks.ensure_passing("/readyz").await?;
    converting.convert_again().await?;
    wait_for_last_schedule(&CronTabs::of(&namespace), &CRONTABS, "a", first).await?;
    converting.daemon.stop().await
}
