//! deploy/policies: the kustomize component and the chart render the same policies, and the
//! apiserver accepts them.

use anyhow::{Result, ensure};
use kube::api::PatchParams;

use super::manifests::{Objects, chart, custom_kustomization, ensure_same, objects, overlays_with};
use crate::{
    admission::environment::environment,
    fixtures::{daemon::printed, manifests},
};

/// The objects of deploy/policies.
const OBJECTS: [&str; 6] = [
    "MutatingAdmissionPolicy crontab-defaults-v2.stable.example.com",
    "MutatingAdmissionPolicy crontab-defaults.stable.example.com",
    "MutatingAdmissionPolicyBinding crontab-defaults-v2.stable.example.com",
    "MutatingAdmissionPolicyBinding crontab-defaults.stable.example.com",
    "ValidatingAdmissionPolicy crontab-limits.stable.example.com",
    "ValidatingAdmissionPolicyBinding crontab-limits.stable.example.com",
];

/// Returns the objects that the component adds to an overlay.
fn component() -> Result<Objects> {
    let overlay = "resources: ['{deploy}/kustomize/overlays/default']\n";
    let component = "components: ['{deploy}/policies']\n";
    let without = custom_kustomization(overlay, &[])?;
    let mut with = custom_kustomization(&format!("{overlay}{component}"), &[])?;
    with.retain(|key, _| !without.contains_key(key));
    Ok(with)
}

/// Returns the objects that `policies.enabled` adds to the chart.
fn of_the_chart(values: &[&str]) -> Result<Objects> {
    let without = chart("portreeve", "portreeve-system", values)?;
    let mut with = chart(
        "portreeve",
        "portreeve-system",
        &[values, &["policies.enabled=true"]].concat(),
    )?;
    with.retain(|key, _| !without.contains_key(key));
    Ok(with)
}

#[test]
fn the_component_and_the_chart_add_the_printed_policies() -> Result<()> {
    let component = component()?;
    ensure!(component.keys().eq(OBJECTS.iter()), "{:?}", component.keys());
    ensure_same(&component, &of_the_chart(&[])?)?;
    for document in manifests::documents(&printed(&["policies"])?)? {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let key = format!("{} {name}", document["kind"].as_str().unwrap_or_default());
        ensure!(component.get(&key) == Some(&document), "{document:#}");
    }
    ensure!(of_the_chart(&["controllers={foo}"])?.is_empty());
    Ok(())
}

/// The page and the overlays show the same lines, which are commented out in the overlays.
#[test]
fn the_documented_lines_switch_the_component_on() -> Result<()> {
    let page = include_str!("../../../docs/policies.md");
    ensure!(page.contains("```yaml\ncomponents:\n- ../../../policies\n```"));
    for yaml in overlays_with("policies")? {
        let objects = objects(&yaml)?;
        ensure!(OBJECTS.iter().all(|key| objects.contains_key(*key)), "{yaml}");
    }
    Ok(())
}

#[tokio::test]
async fn the_apiserver_accepts_the_policies_of_the_component_and_of_the_chart_strictly() -> Result<()> {
    let client = environment().await?.client()?;
    let strict = PatchParams::apply("an-administrator")
        .force()
        .dry_run()
        .validation_strict();
    for objects in [component()?, of_the_chart(&[])?] {
        for object in objects.values() {
            manifests::apply(&client, object, None, &strict).await?;
        }
    }
    Ok(())
}
