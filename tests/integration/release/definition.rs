//! v2 with the definition of deploy/, which can be applied again as docs/upgrading-gitops.md says.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api,
    api::{PatchParams, PostParams},
};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::manifests::custom_kustomization;
use crate::{
    certificates::webhooks::Bundles,
    fixtures::{
        LIMIT,
        conversion::{two_schedules, v1},
        daemon::administer,
        manifests,
    },
    upgrade::Upgrade,
};

const DEFINITION: &str = "customresourcedefinitions/crontabs.stable.example.com";
const PAGE: &str = include_str!("../../../docs/upgrading-gitops.md");

/// Returns the patch of docs/upgrading-gitops.md, without the operations for a migration unless it
/// is done. The webhook is that of the daemon, because no Service works here.
fn documented_patch(conversion: &Value, is_migrated: bool) -> Result<String> {
    let start = PAGE.find("```yaml\npatches:").context("the page has no patch")?;
    let (block, _) = PAGE[start..]
        .trim_start_matches("```yaml\n")
        .split_once("```")
        .context("the block does not end")?;
    let (always, migrated) = block.split_once("    # ").context("the patch has no comment")?;
    let text = if is_migrated {
        format!("{always}    # {migrated}")
    } else {
        always.to_owned()
    };
    let mut documents = manifests::documents(&text)?;
    let patch = documents[0]["patches"][0]["patch"].take();
    let mut operations: Value = serde_saphyr::from_str(patch.as_str().context("no operations")?)?;
    let documented = operations
        .as_array_mut()
        .into_iter()
        .flatten()
        .find(|operation| operation["path"] == "/spec/conversion")
        .context("the patch has no conversion")?;
    let config = documented["value"]["webhook"]["clientConfig"].take();
    let service = json!({
        "namespace": "portreeve-system", "name": "portreeve-webhook", "path": "/convert/crontabs.stable.example.com",
    });
    ensure!(config == json!({ "service": service }), "{config}");
    let url = &conversion["webhook"]["clientConfig"]["url"];
    documented["value"]["webhook"]["clientConfig"] = json!({ "url": url });
    documents[0]["patches"][0]["patch"] = operations.to_string().into();
    Ok(documents[0].to_string())
}

/// Returns the definition of CronTab in deploy/, with this patch.
fn rendered(patch: Option<&str>) -> Result<Value> {
    let mut kustomization = json!({"resources": ["{deploy}/crds"]});
    if let Some(patch) = patch {
        kustomization["patches"] = serde_json::from_str::<Value>(patch)?["patches"].take();
    }
    let mut objects = custom_kustomization(&kustomization.to_string(), &[])?;
    let name = "CustomResourceDefinition crontabs.stable.example.com";
    objects.remove(name).context("there is no definition")
}

impl Upgrade {
    /// Applies the definition as kubectl does. Returns the conflict, if there is one.
    async fn apply(&self, definition: &Value, force: bool) -> Result<Option<String>> {
        let parameters = PatchParams::apply("kubectl");
        let parameters = if force { parameters.force() } else { parameters };
        match manifests::apply(&self.plane.client()?, definition, None, &parameters).await {
            Ok(_) => Ok(None),
            Err(error) => {
                let message = format!("{error:#}");
                ensure!(message.contains("conflict"), "{message}");
                Ok(Some(message))
            }
        }
    }

    async fn spec(&self) -> Result<Value> {
        let bundles = Bundles::new(self.plane.client()?);
        Ok(bundles.get(DEFINITION).await?["spec"].take())
    }

    async fn schedule(&self, resource: &Resource, name: &str) -> Result<Value> {
        let mut object = self.crontabs().get(resource, name).await?;
        Ok(object["spec"].take())
    }
}

#[tokio::test]
async fn the_documented_patch_keeps_v2_when_the_definition_is_applied_again() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    let plain = rendered(None)?;
    ensure!(upgrade.apply(&plain, true).await?.is_none());
    upgrade.enable().await?;
    let conflict = upgrade.apply(&plain, false).await?.context("v2 was withdrawn")?;
    ensure!(conflict.contains("portreeve-migrate"), "{conflict}");
    let spec = upgrade.spec().await?;
    let patched = rendered(Some(&documented_patch(&spec["conversion"], false)?))?;
    ensure!(upgrade.apply(&patched, false).await?.is_none());
    ensure!(upgrade.spec().await? == spec);

    upgrade.crontabs().create(&CRONTABS_V2, &two_schedules("two")).await?;
    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    let spec = upgrade.spec().await?;
    ensure!(upgrade.apply(&patched, false).await?.is_some());
    let mut patched = rendered(Some(&documented_patch(&spec["conversion"], true)?))?;
    ensure!(upgrade.apply(&patched, false).await?.is_none());
    ensure!(upgrade.spec().await? == spec);
    // A newer version has other schemas.
    let description = "/spec/versions/1/schema/openAPIV3Schema/description";
    *patched.pointer_mut(description).context("no description")? = "Newer.".into();
    ensure!(upgrade.apply(&patched, true).await?.is_none());
    let mut newer = upgrade.spec().await?;
    let newer_description = newer
        .pointer_mut(&description["/spec".len()..])
        .context("no description")?;
    ensure!(newer_description.take() == "Newer.");
    *newer_description = spec.pointer(&description["/spec".len()..]).cloned().unwrap_or_default();
    ensure!(newer == spec, "{newer}");
    Ok(())
}

/// Some tools apply with force. `kubectl replace` removes the webhook as well.
#[tokio::test]
async fn a_forced_apply_withdraws_v2_and_a_replacement_hides_its_fields() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    let plain = rendered(None)?;
    ensure!(upgrade.apply(&plain, true).await?.is_none());
    upgrade.enable().await?;
    let crontabs = upgrade.crontabs();
    crontabs
        .create(&CRONTABS, &v1("one", json!({"schedule": "@daily"})))
        .await?;
    crontabs.create(&CRONTABS_V2, &two_schedules("two")).await?;
    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    let expected = upgrade.schedule(&CRONTABS_V2, "two").await?;
    let conversion = upgrade.spec().await?["conversion"].take();

    ensure!(upgrade.apply(&plain, true).await?.is_none());
    let spec = upgrade.spec().await?;
    ensure!(spec["conversion"] == conversion, "{}", spec["conversion"]);
    let (old, new) = (&spec["versions"][0], &spec["versions"][1]);
    ensure!(old["storage"] == true && new["storage"] == false && new["served"] == false);
    for name in ["one", "two"] {
        let spec = upgrade.schedule(&CRONTABS, name).await?;
        ensure!(spec["schedule"] == "@daily", "{spec}");
    }
    upgrade.enable().await?;
    ensure!(upgrade.schedule(&CRONTABS_V2, "two").await? == expected);
    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    let stored = crontabs.stored(&upgrade.plane, "two").await?;
    ensure!(stored["apiVersion"] == "stable.example.com/v2", "{stored}");
    ensure!(upgrade.schedule(&CRONTABS_V2, "two").await? == expected);

    let definitions: Api<CustomResourceDefinition> = Api::all(upgrade.plane.client()?);
    let mut replacement: CustomResourceDefinition = serde_json::from_value(plain)?;
    let name = CRONTABS.crd_name();
    replacement.metadata.resource_version = definitions.get(&name).await?.metadata.resource_version;
    definitions.replace(&name, &PostParams::default(), &replacement).await?;
    ensure!(upgrade.spec().await?["conversion"] == json!({"strategy": "None"}));
    eventually(LIMIT, "an object without a conversion", || async {
        let spec = upgrade.schedule(&CRONTABS, "two").await?;
        ensure!(spec["schedule"].is_null() && spec["jobTemplate"].is_null(), "{spec}");
        anyhow::Ok(())
    })
    .await
}
