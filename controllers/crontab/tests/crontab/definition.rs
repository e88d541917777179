//! Tests how the apiserver processes the CRD.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, CustomResourceExt};
use portreeve_crontab::api::CronTab;
use serde_json::json;

use crate::fixture;

#[tokio::test]
async fn crd_is_structural_and_stored_unchanged() -> Result<()> {
    let fixture = fixture("definition").await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client().clone());
    let stored = definitions.get(CronTab::crd_name()).await?;
    // The apiserver reports problems of a schema as conditions.
    let conditions = stored.status.and_then(|status| status.conditions).unwrap_or_default();
    let mut types: Vec<&str> = conditions.iter().map(|condition| &*condition.type_).collect();
    types.sort_unstable();
    ensure!(types == ["Established", "NamesAccepted"], "{conditions:?}");
    ensure!(
        conditions.iter().all(|condition| condition.status == "True"),
        "{conditions:?}"
    );
    let ours = json!(CronTab::crd().spec.versions);
    let theirs = json!(stored.spec.versions);
    ensure!(ours == theirs, "the apiserver has changed the definition: {theirs}");
    Ok(())
}

/// `kubectl get ct` finds the resource by its short name.
#[tokio::test]
async fn discovery_contains_the_short_name() -> Result<()> {
    let fixture = fixture("discovery").await?;
    let path = "/apis/stable.example.com/v1";
    let list = fixture.request(Method::GET, path, "application/json", None).await?;
    let resources = list["resources"].as_array().context("no resources")?;
    let found = resources.iter().find(|resource| resource["name"] == "crontabs");
    let found = found.context("no crontabs")?;
    ensure!(
        found["shortNames"] == json!(["ct"]) && found["singularName"] == "crontab",
        "{found}"
    );
    ensure!(
        found["namespaced"] == true && found.get("categories").is_none(),
        "{found}"
    );
    ensure!(
        resources.iter().any(|resource| resource["name"] == "crontabs/status"),
        "{list}"
    );
    Ok(())
}
