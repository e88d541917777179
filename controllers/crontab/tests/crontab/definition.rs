//! Tests how the apiserver processes the CRD.

use anyhow::{Result, ensure};
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
