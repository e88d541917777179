//! What docs/deploying.md and docs/webhooks.md say about removing an installation and its webhooks.

use anyhow::{Context, Result, ensure};
use kube::api::PatchParams;
use portreeve_testing::ControlPlane;
use serde_json::json;

use super::{edited_overlays, objects, webhooks::with_components};
use crate::fixtures::{daemon::printed, manifests, repository::root};

const DEPLOYING: &str = include_str!("../../../../docs/deploying.md");
const WEBHOOKS: &str = include_str!("../../../../docs/webhooks.md");
/// The line of the overlays that adds the definitions.
const LINE: &str = "- ../../../crds";
/// The line of the base that adds the namespace.
const NAMESPACE: &str = "- namespace.yaml";

#[test]
fn the_definitions_are_one_line_of_each_overlay() -> Result<()> {
    for line in [LINE, NAMESPACE] {
        ensure!(DEPLOYING.contains(&format!("`{line}`")), "{line}");
    }
    let base = std::fs::read_to_string(root().join("deploy/kustomize/base/kustomization.yaml"))?;
    ensure!(base.lines().any(|line| line == NAMESPACE), "{base}");
    let without = |text: String| {
        ensure!(text.lines().filter(|line| *line == LINE).count() == 1, "{text}");
        Ok(text.replace(LINE, ""))
    };
    for yaml in edited_overlays(without)? {
        let objects = objects(&yaml)?;
        ensure!(objects.keys().all(|key| !key.starts_with("CustomResourceDefinition ")));
    }
    Ok(())
}

/// These are neither in the overlay without the component, nor in the configurations.
#[test]
fn the_commands_name_what_the_component_leaves_over() -> Result<()> {
    for role in ["portreeve:webhooks", "portreeve:ca-bundles"] {
        ensure!(WEBHOOKS.contains(role), "the page lacks {role}");
        let (with, without) = (with_components("'{deploy}/webhooks'")?, with_components("")?);
        for kind in ["ClusterRole", "ClusterRoleBinding"] {
            let key = format!("{kind} {role}");
            ensure!(with.contains_key(&key) && !without.contains_key(&key), "{key}");
        }
    }
    Ok(())
}

/// A webhook whose caBundle the leader owns stays without its other fields.
#[tokio::test]
async fn a_server_side_apply_cannot_remove_a_webhook_with_a_bundle() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let client = plane.client()?;
    let yaml = printed(&["webhooks", "--controllers=foo", "--namespace=removal"])?;
    let mut documents = manifests::documents(&yaml)?.into_iter();
    let mut configuration = documents.next().context("no configuration")?;
    let force = PatchParams::apply("an-administrator").force();
    manifests::apply(&client, &configuration, None, &force).await?;
    let bundle = json!({
        "apiVersion": configuration["apiVersion"],
        "kind": configuration["kind"],
        "metadata": configuration["metadata"],
        "webhooks": [{
            "name": configuration["webhooks"][0]["name"],
            "clientConfig": {"caBundle": data_encoding::BASE64.encode(plane.authority().pem().as_bytes())},
        }],
    });
    manifests::apply(&client, &bundle, None, &PatchParams::apply("the-leader")).await?;
    configuration["webhooks"] = json!([]);
    let removed = manifests::apply(&client, &configuration, None, &force).await;
    let error = format!("{:#}", removed.err().context("the webhook was removed")?);
    let message = WEBHOOKS
        .split('`')
        .find(|text| text.starts_with("webhooks[0]."))
        .context("no message")?;
    ensure!(error.contains(message), "{error}");
    Ok(())
}
