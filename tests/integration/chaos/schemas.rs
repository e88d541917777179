//! CRDs that are deleted, and recreated with another schema.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResourceExt, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use portreeve_crontab::api::{CRONTABS, CronTab};
use portreeve_testing::{Matcher, eventually};
use serde_json::{Value, json};

use super::scenario::Scenario;
use crate::{
    audit::AuditLog,
    fixtures::{LIMIT, manifests::loose, schedules::Kind},
    schedules::profile::every_step,
};

/// Deletes a CRD, and waits until it is gone with all its objects.
pub(super) async fn delete(
    scenario: &Scenario,
    crd: &CustomResourceDefinition,
) -> Result<Api<CustomResourceDefinition>> {
    let crds: Api<CustomResourceDefinition> = Api::all(scenario.plane.client()?);
    let name = crd.name_any();
    crds.delete(&name, &DeleteParams::default()).await?;
    eventually(LIMIT, "the definition to be gone", || async {
        ensure!(crds.get_opt(&name).await?.is_none(), "the definition still exists");
        anyhow::Ok(())
    })
    .await?;
    Ok(crds)
}

/// Waits until `/readyz` reports that a resource is not served. The check must pass, because a
/// restart of the daemon would not help.
async fn wait_until_readyz_reports_not_served(scenario: &Scenario) -> Result<()> {
    let unserved = |status, text: &str| status == StatusCode::OK && text.contains("not served");
    let reported = scenario
        .daemon
        .admin
        .wait_until_readyz("a resource that is not served", unserved)
        .await;
    reported
        .map(|_| ())
        .context("/readyz does not report the deleted definition")
}

/// Waits until the collector watches these objects. It observes their deletion only if the watch is
/// open when the CRD is deleted: while the apiserver does not serve their kind, the collector
/// cannot check whether an owner exists.
async fn wait_until_collector_watches(scenario: &Scenario, resource: &portreeve_api::Resource) -> Result<()> {
    let watches = Matcher::watches().path_prefix(resource.collection_path(None));
    let watches = scenario.proxy.count(watches);
    scenario.proxy.reset();
    watches.wait_for_matched(1, LIMIT).await?;
    // An informer reads the resource too, so the watch alone does not show that the collector does.
    let label = format!("gvr=\"{resource}\"");
    eventually(LIMIT, "the collector to be synced", || async {
        let metrics = scenario.daemon.admin.metrics().await?;
        let synced = metrics.sum("gc_monitor_synced", &[&label]);
        ensure!(synced > 0.5, "gc_monitor_synced of {resource} is {synced}");
        anyhow::Ok(())
    })
    .await
}

/// An object that its controller cannot decode.
pub(super) struct UndecodableObject(Api<DynamicObject>);

impl UndecodableObject {
    const NAME: &str = "bad";

    /// Creates an undecodable object, once its kind is served.
    pub(super) async fn create<K: Resource<DynamicType = ()>>(scenario: &Scenario, spec: &Value) -> Result<Self> {
        let resource = ApiResource::erase::<K>(&());
        let namespace = scenario.work.fixture.name();
        let anything: Api<DynamicObject> = Api::namespaced_with(scenario.plane.client()?, namespace, &resource);
        let bad = DynamicObject::new(Self::NAME, &resource).data(json!({"spec": spec}));
        let parameters = PostParams::default();
        eventually(LIMIT, "the kind to be served", || anything.create(&parameters, &bad)).await?;
        Ok(Self(anything))
    }

    /// Waits until `/readyz` names the object. The check must pass, because a restart would not
    /// help.
    pub(super) async fn wait_until_reported(&self, scenario: &Scenario) -> Result<()> {
        let namespace = scenario.work.fixture.name();
        let named = format!("undecodable objects: 1 ({namespace}/{}", Self::NAME);
        let is_named = |status, text: &str| status == StatusCode::OK && text.contains(&named);
        let reported = scenario
            .daemon
            .admin
            .wait_until_readyz("the name of the undecodable object", is_named)
            .await;
        reported
            .map(|_| ())
            .context("/readyz does not report the undecodable object")
    }

    /// Deletes the object, because the verification could not decode it either.
    pub(super) async fn delete(self) -> Result<()> {
        self.0.delete(Self::NAME, &DeleteParams::default()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn schedules_run_again_when_their_crd_is_recreated() -> Result<()> {
    let scenario = Scenario::start().await?;
    let (fixture, slot) = (&scenario.work.fixture, scenario.work.slot());
    wait_until_collector_watches(&scenario, &CRONTABS).await?;
    let crds = delete(&scenario, &CronTab::crd()).await?;
    wait_until_readyz_reports_not_served(&scenario).await?;
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = fixture.namespace.api();
    eventually(LIMIT, "the Jobs of the CronTab to be collected", || async {
        let name = Kind::CronTab.job_of(Kind::CronTab.name(), slot);
        ensure!(jobs.get_opt(&name).await?.is_none(), "{name} still exists");
        anyhow::Ok(())
    })
    .await?;
    let served = scenario.proxy.count(Matcher::watches().resource("crontabs"));
    crds.create(&PostParams::default(), &loose(&CronTab::crd())?).await?;
    served.wait_for_matched(1, LIMIT).await?;
    let bad = UndecodableObject::create::<CronTab>(&scenario, &json!({"schedule": 7})).await?;
    bad.wait_until_reported(&scenario).await?;
    let again = serde_json::from_value(Kind::CronTab.manifest("again", &every_step(slot), &json!({})))?;
    let crontabs = Kind::CronTab.objects(&fixture.namespace);
    let parameters = PostParams::default();
    eventually(LIMIT, "CronTabs to be served", || crontabs.create(&parameters, &again)).await?;
    // By the test's clock, the CronTab was created before `slot`, so its Job is due.
    let job = Kind::CronTab.job_of("again", slot);
    eventually(LIMIT, "the Job of the new CronTab", || jobs.get(&job)).await?;
    scenario.ensure_healthy(|_| false).await?;
    AuditLog::of(&scenario.plane)?.check_effects()?;
    scenario.finish().await
}
