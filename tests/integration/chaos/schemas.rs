//! Definitions that are deleted, and come back otherwise.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResourceExt, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use portreeve_api::{CRONTABS, CronTab, FOOS, Foo};
use portreeve_testing::{Matcher, eventually};
use serde_json::{Value, json};

use super::{record, scenario::Scenario};
use crate::{
    schedules::{fixtures::job_of, kinds::Kind},
    support::{LIMIT, SETTLED},
    undecodable::loose,
};

/// Deletes a definition, and waits until it is gone with all its objects.
pub(super) async fn delete(
    scenario: &Scenario,
    definition: &CustomResourceDefinition,
) -> Result<Api<CustomResourceDefinition>> {
    let definitions: Api<CustomResourceDefinition> = Api::all(scenario.plane.client()?);
    let name = definition.name_any();
    definitions.delete(&name, &DeleteParams::default()).await?;
    eventually(LIMIT, "the definition to be gone", || async {
        ensure!(definitions.get_opt(&name).await?.is_none(), "it is there");
        anyhow::Ok(())
    })
    .await?;
    Ok(definitions)
}

/// Waits until the daemon misses a definition. It says so in a note: it is nobody's fault but that of who deleted it, and no reason to
/// restart anything.
async fn until_missed(scenario: &Scenario) -> Result<()> {
    let unserved = |status, text: &str| status == StatusCode::OK && text.contains("not served");
    let told = scenario
        .daemon
        .admin
        .wait_until_readyz("what is missed", unserved)
        .await;
    told.map(|_| ()).context("the definition is gone")
}

/// Waits until the collector watches these objects. That they are deleted along with their definition is seen by a watch, or else not
/// before it is back: of an owner whose kind is not served, nobody can tell whether it is there.
async fn until_watched(scenario: &Scenario, resource: &portreeve_api::Resource) -> Result<()> {
    let watches = Matcher::watches()
        .path_prefix(resource.collection_path(None))
        .metadata();
    let watches = scenario.proxy.count(watches);
    scenario.proxy.reset();
    watches.wait_for_matched(1, SETTLED).await
}

/// An object that its controller cannot read.
pub(super) struct UndecodableObject(Api<DynamicObject>);

impl UndecodableObject {
    const NAME: &str = "bad";

    /// Creates one, once its kind is served.
    pub(super) async fn create<K: Resource<DynamicType = ()>>(scenario: &Scenario, spec: &Value) -> Result<Self> {
        let resource = ApiResource::erase::<K>(&());
        let namespace = scenario.work.fixture.name();
        let anything: Api<DynamicObject> = Api::namespaced_with(scenario.plane.client()?, namespace, &resource);
        let bad = DynamicObject::new(Self::NAME, &resource).data(json!({"spec": spec}));
        let parameters = PostParams::default();
        eventually(LIMIT, "the kind to be served", || anything.create(&parameters, &bad)).await?;
        Ok(Self(anything))
    }

    /// Waits until it is named, which nobody has to be restarted for.
    pub(super) async fn wait_until_reported(&self, scenario: &Scenario) -> Result<()> {
        let namespace = scenario.work.fixture.name();
        let named = format!(
            "1 objects cannot be decoded and are skipped: {namespace}/{}",
            Self::NAME
        );
        let is_named = |status, text: &str| status == StatusCode::OK && text.contains(&named);
        let told = scenario.daemon.admin.wait_until_readyz("its name", is_named).await;
        told.map(|_| ()).context("one object cannot be decoded")
    }

    /// Deletes it: who judges cannot read it either.
    pub(super) async fn delete(self) -> Result<()> {
        self.0.delete(Self::NAME, &DeleteParams::default()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_definition_that_comes_back_with_another_schema_is_gone_on_with() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    until_watched(&scenario, &FOOS).await?;
    let definitions = delete(&scenario, &Foo::crd()).await?;
    until_missed(&scenario).await?;
    scenario.work.forget_foos();
    // What belonged to the Foos goes, and everybody else goes on.
    scenario.verify().await?;

    definitions.create(&PostParams::default(), &loose(&Foo::crd())?).await?;
    let bad = UndecodableObject::create::<Foo>(&scenario, &json!({"deploymentName": 7})).await?;
    bad.wait_until_reported(&scenario).await?;
    // It stops nobody else.
    scenario.work.wave().await?;
    bad.delete().await?;
    scenario.verify().await?;
    scenario.work.wave().await?;
    scenario.verify().await?;
    scenario.finish().await
}

#[tokio::test]
async fn schedules_whose_definition_was_deleted_are_gone_on_with_when_it_is_back() -> Result<()> {
    let scenario = Scenario::start().await?;
    let (fixture, slot) = (&scenario.work.fixture, scenario.work.slot);
    until_watched(&scenario, &CRONTABS).await?;
    let definitions = delete(&scenario, &CronTab::crd()).await?;
    until_missed(&scenario).await?;
    let jobs: Api<k8s_openapi::api::batch::v1::Job> = fixture.namespace.api();
    eventually(SETTLED, "the Jobs of the CronTab to be collected", || async {
        let of_it = job_of(Kind::CronTab.name(), slot);
        ensure!(jobs.get_opt(&of_it).await?.is_none(), "{of_it} is there");
        anyhow::Ok(())
    })
    .await?;
    let served = scenario.proxy.count(Matcher::watches().resource("crontabs"));
    definitions
        .create(&PostParams::default(), &loose(&CronTab::crd())?)
        .await?;
    served.wait_for_matched(1, SETTLED).await?;
    let bad = UndecodableObject::create::<CronTab>(&scenario, &json!({"schedule": 7})).await?;
    bad.wait_until_reported(&scenario).await?;
    let again = serde_json::from_value(Kind::CronTab.manifest("again", "*/10 * * * *", &json!({})))?;
    let tabs = Kind::CronTab.objects(&fixture.namespace);
    let parameters = PostParams::default();
    eventually(LIMIT, "CronTabs to be served", || tabs.create(&parameters, &again)).await?;
    // By the test's clock it was made before that.
    let job = job_of("again", slot);
    eventually(SETTLED, "the Job of the new CronTab", || jobs.get(&job)).await?;
    scenario.ensure_healthy(|_| false).await?;
    record::ensure_clean(&scenario.plane)?;
    scenario.finish().await
}
