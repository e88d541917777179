//! The controller and the daemon while nobody converts CronTabs.

mod migration;
mod replace;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, CustomResourceExt, ResourceExt, api::ListParams};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2, CronTab};
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, WebhookServer, eventually, free_port};
use serde_json::{Value, json};

use super::environment::BOTH;
use crate::{
    fixtures::{
        LIMIT,
        clock::OffsetClock,
        conversion::{CronTabs, Definition, by_daemon, serve_both, v2, versions, webhook},
        in_process::InProcess,
        schedules::{minutes, next_minute},
        webhooks::{NO_SHUTDOWN_DELAY, WebhookDaemon, install_definitions},
    },
    schedules::profile::every_step,
};

/// The number of minutes between two runs of a CronTab. A test creates CronTabs in the middle
/// between two due times, by the clock of the apiserver.
const STEP: i64 = 30;

/// A CronTab with two schedules that are both due at this time, and every `STEP` minutes before and
/// after it.
fn twice(name: &str, due: Timestamp) -> Value {
    let schedule = every_step(due);
    let schedules = ["default", "second"].map(|name| json!({"name": name, "schedule": schedule}));
    v2(name, json!({"schedules": schedules}))
}

/// A control plane, and a daemon in the test that is the only one to convert CronTabs.
struct Converting {
    daemon: InProcess,
    clock: OffsetClock,
    /// The next time at which the CronTabs are due.
    due: Timestamp,
    port: u16,
    plane: PooledPlane,
}

impl Converting {
    async fn start(stored: &Resource) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        install_definitions(&plane.client()?).await?;
        let (clock, port) = (OffsetClock::new(), free_port()?);
        let due = next_minute(Timestamp::now(), 1) + minutes(STEP / 2);
        // Nothing becomes due by itself.
        clock.set(due - minutes(STEP - 1));
        // A watch that is older than the conversion could deliver objects without converting them.
        let definition = Definition::of(&plane.client()?, CronTab::crd_name());
        definition.convert(&by_daemon(&plane, port)).await?;
        definition.store(&stored.version).await?;
        let daemon = Self::daemon(&plane, &clock, port).await?;
        serve_both(&plane, &by_daemon(&plane, port), stored).await?;
        Ok(Self {
            daemon,
            clock,
            due,
            port,
            plane,
        })
    }

    /// Starts a daemon, and waits until it is ready.
    async fn daemon(plane: &ControlPlane, clock: &OffsetClock, port: u16) -> Result<InProcess> {
        let own = WebhookDaemon::flags(plane, "only", port)?;
        let flags: Vec<_> = own
            .iter()
            .map(String::as_str)
            .chain(["--controllers=crontab", NO_SHUTDOWN_DELAY])
            .collect();
        let clock = Arc::new(clock.clone());
        InProcess::start_as(plane.kubeconfig(), clock, portreeve_cli::CONTROLLERS, &flags).await
    }

    /// Lets the next runs become due.
    fn advance(&mut self) {
        self.clock.set(self.due + minutes(1));
        self.due += minutes(STEP);
    }

    fn definition(&self) -> Result<Definition> {
        Ok(Definition::of(&self.plane.client()?, CronTab::crd_name()))
    }

    /// Lets nobody convert, and waits until `name` cannot be read in this version.
    async fn stop_converting(&self, crontabs: &CronTabs, version: &Resource, name: &str) -> Result<()> {
        let nobody = by_daemon(&self.plane, free_port()?);
        self.definition()?.convert(&nobody).await?;
        wait_until_unreadable(crontabs, version, name).await
    }

    /// Lets the daemon convert again.
    async fn convert_again(&self) -> Result<()> {
        let ours = by_daemon(&self.plane, self.port);
        self.definition()?.convert(&ours).await
    }
}

async fn wait_until_unreadable(crontabs: &CronTabs, version: &Resource, name: &str) -> Result<()> {
    eventually(LIMIT, "the conversion to be away", || async {
        ensure!(crontabs.get(version, name).await.is_err(), "it still works");
        anyhow::Ok(())
    })
    .await
}

/// Waits until this many Jobs of a CronTab exist, and returns their schedules.
async fn wait_for_jobs(namespace: &Namespace, name: &str, count: usize) -> Result<Vec<Option<String>>> {
    let jobs: Api<Job> = namespace.api();
    let of_crontab = ListParams::default().labels(&format!("stable.example.com/crontab={name}"));
    eventually(LIMIT, &format!("{count} Jobs of {name}"), || async {
        let found = jobs.list(&of_crontab).await?.items;
        ensure!(
            found.len() == count,
            "{:?}",
            found.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        );
        let schedule = |job: &Job| job.annotations().get("stable.example.com/schedule").cloned();
        anyhow::Ok(found.iter().map(schedule).collect())
    })
    .await
}

/// Waits until the controller has recorded these CronTabs.
async fn wait_until_observed(crontabs: &CronTabs, version: &Resource, name: &str) -> Result<Value> {
    eventually(LIMIT, &format!("{name} to be observed"), || async {
        let found = crontabs.get(version, name).await?;
        ensure!(
            found["status"]["observedGeneration"] == found["metadata"]["generation"],
            "{found}"
        );
        anyhow::Ok(found)
    })
    .await
}

/// The controller reads the version that is stored, so it does not need the conversion.
#[tokio::test]
async fn runs_start_without_the_conversion_while_v1_is_stored() -> Result<()> {
    let mut converting = Converting::start(&CRONTABS).await?;
    let namespace = converting.plane.namespace("stored-in-v1").await?;
    let crontabs = CronTabs::of(&namespace);
    crontabs.create(&CRONTABS_V2, &twice("a", converting.due)).await?;
    wait_until_observed(&crontabs, &CRONTABS, "a").await?;
    converting.stop_converting(&crontabs, &CRONTABS_V2, "a").await?;
    converting.advance();
    let mut schedules = wait_for_jobs(&namespace, "a", 2).await?;
    schedules.sort();
    ensure!(schedules == [None, Some("second".to_owned())], "{schedules:?}");
    converting.daemon.admin.ensure_passing("/readyz").await?;

    // The controller sees new CronTabs, and records what it does.
    let mut copy = crontabs.get(&CRONTABS, "a").await?;
    let annotations = copy["metadata"]["annotations"].take();
    copy = json!({"metadata": {"name": "b", "annotations": annotations}, "spec": copy["spec"]});
    crontabs.create(&CRONTABS, &copy).await?;
    // By the clock of the controller, it was created before the time that has just passed.
    wait_for_jobs(&namespace, "b", 2).await?;
    converting.advance();
    wait_for_jobs(&namespace, "b", 4).await?;
    wait_for_jobs(&namespace, "a", 4).await?;
    let recorded = wait_for_last_schedule(&crontabs, &CRONTABS, "a", converting.due - minutes(STEP)).await?;
    let mut entries = recorded["status"]["schedules"].as_array().into_iter().flatten();
    let second = entries.find(|entry| entry["name"] == "second");
    ensure!(
        second.is_some_and(|second| second["lastScheduleTime"] == recorded["status"]["lastScheduleTime"]),
        "{recorded}"
    );
    converting.daemon.stop().await
}

/// Waits until the status has this time for the last run of the schedule `default`.
async fn wait_for_last_schedule(crontabs: &CronTabs, version: &Resource, name: &str, time: Timestamp) -> Result<Value> {
    let path = if *version == CRONTABS {
        "/status/lastScheduleTime"
    } else {
        "/status/schedules/0/lastScheduleTime"
    };
    let expected = json!(format!("{time:.0}"));
    eventually(LIMIT, &format!("the last run of {name} to be recorded"), || async {
        let found = crontabs.get(version, name).await?;
        ensure!(found.pointer(path) == Some(&expected), "{found}");
        anyhow::Ok(found)
    })
    .await
}

/// The controller cannot read what is stored, and continues with what it knows. It reports that,
/// and catches up once somebody converts again.
#[tokio::test]
async fn no_run_is_lost_while_the_controllers_version_cannot_be_read() -> Result<()> {
    let mut converting = Converting::start(&CRONTABS_V2).await?;
    let namespace = converting.plane.namespace("stored-in-v2").await?;
    let crontabs = CronTabs::of(&namespace);
    crontabs.create(&CRONTABS_V2, &twice("a", converting.due)).await?;
    wait_until_observed(&crontabs, &CRONTABS_V2, "a").await?;
    converting.stop_converting(&crontabs, &CRONTABS, "a").await?;
    // The apiserver cannot convert this event, so it ends all watches of v1.
    crontabs.create(&CRONTABS_V2, &twice("b", converting.due)).await?;
    let is_reported = |_, text: &str| {
        let mut lines = text.lines();
        lines.any(|line| line.contains("crontabs.v1.stable.example.com") && !line.ends_with(" ok"))
    };
    let admin = converting.daemon.admin;
    admin
        .wait_until_readyz("a line about the CronTabs", is_reported)
        .await?;
    converting.advance();
    wait_for_jobs(&namespace, "a", 2).await?;

    converting.convert_again().await?;
    let due = converting.due - minutes(STEP);
    wait_for_last_schedule(&crontabs, &CRONTABS_V2, "a", due).await?;
    wait_for_jobs(&namespace, "b", 2).await?;
    converting.advance();
    wait_for_jobs(&namespace, "b", 4).await?;
    wait_for_jobs(&namespace, "a", 4).await?;
    admin.wait_until_ready().await?;
    converting.daemon.stop().await
}

/// The caches of the daemon need a conversion that only this daemon serves. The caches of the
/// apiserver are empty as well.
#[tokio::test]
async fn a_daemon_that_is_the_only_one_to_convert_starts() -> Result<()> {
    for stored in BOTH {
        let converting = Converting::start(stored).await?;
        let namespace = converting.plane.namespace("cold").await?;
        let crontabs = CronTabs::of(&namespace);
        for name in ["a", "b"] {
            crontabs.create(&CRONTABS_V2, &twice(name, converting.due)).await?;
            wait_until_observed(&crontabs, &CRONTABS_V2, name).await?;
        }
        let Converting {
            daemon,
            clock,
            due,
            port,
            plane,
        } = converting;
        daemon.stop().await?;
        plane.apiserver().stop().await?;
        plane.apiserver().start().await?;
        let daemon = Converting::daemon(&plane, &clock, port).await;
        let daemon = daemon.context("the daemon is not ready")?;
        clock.set(due + minutes(1));
        for name in ["a", "b"] {
            wait_for_jobs(&namespace, name, 2).await?;
        }
        daemon.finish().await?;
    }
    Ok(())
}
