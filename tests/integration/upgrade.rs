//! CronTabs from v1 to v2 and back, on one control plane with a real daemon.

mod certificate;
mod hostile;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::batch::v1::Job, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, eventually, free_port};
use serde_json::{Value, json};

use crate::fixtures::{
    LIMIT,
    daemon::{Daemon, administer},
    dynamic_client::DynamicClient,
    object_builder::config_map,
    webhooks::{WebhookDaemon, install_definitions},
};

/// How long the next run of a schedule that runs every minute may take.
const NEXT_MINUTE: Duration = Duration::from_secs(90);

/// A control plane with a daemon whose webhooks the apiserver can call.
pub(crate) struct Upgrade {
    pub(crate) plane: PooledPlane,
    daemon: WebhookDaemon,
    namespace: Namespace,
}

impl Upgrade {
    pub(crate) async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        install_definitions(&plane.client()?).await?;
        let daemon = WebhookDaemon::start(&plane, "upgrade", &["--controllers=crontab"]).await?;
        let namespace = plane.namespace("upgrade").await?;
        Ok(Self {
            plane,
            daemon,
            namespace,
        })
    }

    pub(crate) async fn enable(&self) -> Result<()> {
        let ca = self.plane.folder().join("upgrade-ca.crt");
        std::fs::write(&ca, self.plane.authority().pem())?;
        let url = format!("--url=https://localhost:{}", self.daemon.webhooks.port);
        let ca = format!("--ca-file={}", ca.display());
        administer(&self.plane, &["conversion", "enable", &url, &ca]).await?;
        Ok(())
    }

    pub(crate) fn crontabs(&self, resource: &Resource) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            plural: resource.plural.to_string(),
        };
        Api::namespaced_with(self.namespace.client().clone(), self.namespace.name(), &resource)
    }

    pub(crate) async fn create(&self, resource: &Resource, name: &str, spec: Value) -> Result<()> {
        let object =
            json!({"apiVersion": resource.api_version(), "kind": "CronTab", "metadata": {"name": name}, "spec": spec});
        let object = serde_json::from_value(object)?;
        self.crontabs(resource).create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Waits until every schedule of a CronTab has started a run, and returns the names of all
    /// Jobs.
    async fn runs(&self, crontab: &str, schedules: &[&str]) -> Result<Vec<String>> {
        let jobs: Api<Job> = self.namespace.api();
        let labels = ListParams::default().labels(&format!("stable.example.com/crontab={crontab}"));
        eventually(NEXT_MINUTE, &format!("the runs of {crontab}"), || async {
            let jobs = jobs.list(&labels).await?.items;
            for schedule in schedules {
                let of_schedule = |job: &&Job| {
                    let annotation = job.annotations().get("stable.example.com/schedule");
                    annotation.map_or("default", String::as_str) == *schedule
                };
                ensure!(
                    jobs.iter().any(|job| of_schedule(&job)),
                    "no run of {schedule}: {jobs:?}"
                );
            }
            Ok(jobs.iter().map(ResourceExt::name_any).collect())
        })
        .await
    }

    /// Requests a run and waits until the status records it, in the version of `resource`.
    async fn run_now(&self, resource: &Resource, crontab: &str, value: &str) -> Result<()> {
        let annotation = Patch::Merge(json!({"metadata": {"annotations": {"stable.example.com/run-now": value}}}));
        let crontabs = self.crontabs(resource);
        crontabs.patch(crontab, &PatchParams::default(), &annotation).await?;
        eventually(LIMIT, &format!("run {value} of {crontab}"), || async {
            let status = crontabs.get(crontab).await?.data["status"].take();
            ensure!(status["lastRunNow"] == value, "{status}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the apiserver cannot convert objects of this version. Reads do not show that,
    /// because they may come from a cache.
    async fn wait_until_unusable(&self, resource: &Resource, spec: &Value) -> Result<()> {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let object = json!({"apiVersion": resource.api_version(), "kind": "CronTab", "metadata": {"name": "probe"}, "spec": spec});
        let object: DynamicObject = serde_json::from_value(object)?;
        eventually(LIMIT, &format!("{} to be unusable", resource.version), || async {
            let created = self.crontabs(resource).create(&parameters, &object).await;
            ensure!(created.is_err(), "{created:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Returns the version in which etcd stores a CronTab.
    pub(crate) async fn stored_version(&self, crontab: &str) -> Result<String> {
        let prefix = format!("stable.example.com/crontabs/{}/", self.namespace.name());
        let stored = self.plane.stored(&prefix).await?;
        let mut found = stored.iter().filter(|object| object["metadata"]["name"] == *crontab);
        let version = found.next().and_then(|object| object["apiVersion"].as_str());
        Ok(version.with_context(|| format!("{crontab} is not stored"))?.to_owned())
    }

    /// Lets the apiserver call a port where nothing listens instead of the conversion webhook.
    async fn break_conversion(&self) -> Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.plane.client()?);
        let url = format!("https://localhost:{}/convert", free_port()?);
        let broken = Patch::Merge(json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": url}}}}}));
        definitions
            .patch(&CRONTABS.crd_name(), &PatchParams::default(), &broken)
            .await?;
        Ok(())
    }
}

fn pod() -> Value {
    json!({"containers": [{"name": "a", "image": "a"}]})
}

pub(crate) fn v1(schedule: &str) -> Value {
    json!({"schedule": schedule, "jobTemplate": pod()})
}

pub(crate) fn v2(schedules: &[(&str, &str)]) -> Value {
    let schedules: Vec<_> = schedules
        .iter()
        .map(|(name, schedule)| json!({"name": name, "schedule": schedule}))
        .collect();
    json!({"schedules": schedules, "template": {"spec": {"template": {"spec": pod()}}}})
}

#[tokio::test]
async fn schedules_run_before_during_and_after_a_migration_and_on_the_way_back() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    upgrade.create(&CRONTABS, "old", v1("* * * * *")).await?;
    upgrade.enable().await?;

    // v2 is served and v1 stored: the annotation has the second schedule.
    let two = [("default", "* * * * *"), ("other", "* * * * *")];
    upgrade.create(&CRONTABS_V2, "two", v2(&two)).await?;
    let names = upgrade.runs("two", &["default", "other"]).await?;
    ensure!(names.len() >= 2, "{names:?}");
    upgrade.runs("old", &["default"]).await?;
    ensure!(upgrade.stored_version("two").await? == "stable.example.com/v1");
    eventually(LIMIT, "the status of both schedules in both versions", || async {
        let status = upgrade.crontabs(&CRONTABS_V2).get("two").await?.data["status"].take();
        let last = |index: usize| status["schedules"][index]["lastScheduleTime"].clone();
        ensure!(last(0).is_string() && last(1).is_string(), "{status}");
        ensure!(status.get("lastScheduleTime").is_none(), "{status}");
        let in_v1 = upgrade.crontabs(&CRONTABS).get("two").await?.data["status"].take();
        ensure!(in_v1["lastScheduleTime"].is_string(), "{in_v1}");
        let listed = in_v1["schedules"].as_array().context("no schedules")?;
        ensure!(listed.iter().any(|schedule| schedule["name"] == "other"), "{in_v1}");
        anyhow::Ok(())
    })
    .await?;

    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    ensure!(upgrade.stored_version("two").await? == "stable.example.com/v2");
    upgrade
        .daemon
        .daemon
        .wait_for_line(&["reading objects in their stored version", "v2"])
        .await?;
    upgrade.run_now(&CRONTABS_V2, "old", "after").await?;
    upgrade.create(&CRONTABS_V2, "new", v2(&two)).await?;
    upgrade.runs("new", &["default", "other"]).await?;

    // Back: v1 cannot express these two.
    for name in ["two", "new"] {
        upgrade
            .crontabs(&CRONTABS_V2)
            .delete(name, &DeleteParams::default())
            .await?;
    }
    administer(&upgrade.plane, &["migrate", "--to=v1", "--switch-delay=0s"]).await?;
    administer(&upgrade.plane, &["conversion", "disable"]).await?;
    ensure!(upgrade.stored_version("old").await? == "stable.example.com/v1");
    upgrade.run_now(&CRONTABS, "old", "back").await?;
    Ok(())
}

/// Before and after a migration, the controller reads and writes the stored version, so it needs no
/// conversion.
#[tokio::test]
async fn schedules_run_while_the_conversion_is_away() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    upgrade.enable().await?;
    upgrade.create(&CRONTABS, "before", v1("* * * * *")).await?;
    upgrade.break_conversion().await?;
    upgrade
        .wait_until_unusable(&CRONTABS_V2, &v2(&[("default", "@daily")]))
        .await?;
    // Only the health endpoint says so: an endpoint of the webhooks that fails /readyz could never
    // convert again.
    let admin = &upgrade.daemon.daemon.admin;
    let check = format!("conversion/{}", CRONTABS.crd_name());
    admin
        .wait_until_failing("/readyz", &check, &["conversion webhook for"])
        .await?;
    let failing = admin.failing("/readyz").await?;
    ensure!(failing.len() == 1, "{failing:?}");
    upgrade.daemon.webhooks.ensure_passing("/readyz").await?;
    upgrade
        .daemon
        .daemon
        .wait_for_line(&["objects cannot be converted", "v2"])
        .await?;
    upgrade.run_now(&CRONTABS, "before", "away").await?;
    upgrade.create(&CRONTABS, "meanwhile", v1("* * * * *")).await?;
    upgrade.runs("meanwhile", &["default"]).await?;

    upgrade.enable().await?;
    upgrade.daemon.daemon.admin.wait_until_passing("/readyz").await?;
    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    upgrade
        .daemon
        .daemon
        .wait_for_line(&["reading objects in their stored version", "v2"])
        .await?;
    upgrade.break_conversion().await?;
    upgrade.wait_until_unusable(&CRONTABS, &v1("@daily")).await?;
    upgrade.run_now(&CRONTABS_V2, "before", "away again").await?;
    upgrade
        .create(
            &CRONTABS_V2,
            "after",
            v2(&[("default", "* * * * *"), ("other", "* * * * *")]),
        )
        .await?;
    upgrade.runs("after", &["default", "other"]).await?;
    Ok(())
}

/// A reference that somebody wrote by hand has the version that is withdrawn.
#[tokio::test]
async fn the_dependents_of_a_crontab_in_v2_are_collected_when_only_v1_is_served() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    upgrade.enable().await?;
    upgrade
        .create(&CRONTABS_V2, "owner", v2(&[("default", "@daily")]))
        .await?;
    let owner = upgrade.crontabs(&CRONTABS_V2).get("owner").await?;
    let dynamic_client = DynamicClient::of(&upgrade.namespace);
    let child = dynamic_client.create(config_map("child").owned_by(&owner)).await?;
    let referenced = &child.owner_references()[0].api_version;
    ensure!(*referenced == CRONTABS_V2.api_version(), "{referenced}");
    administer(&upgrade.plane, &["conversion", "disable"]).await?;

    let collector = Daemon::start(&upgrade.plane, "collector", &["--controllers=garbagecollector"]).await?;
    collector.admin.wait_until_ready().await?;
    upgrade
        .crontabs(&CRONTABS)
        .delete("owner", &DeleteParams::default())
        .await?;
    dynamic_client.wait_until_gone(&child).await
}
