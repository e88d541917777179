//! `--install-crds` of a version that knows v2, when v2 is already served and stored.

use anyhow::{Context as _, Result, ensure};
use portreeve_reconcile::Descriptor;
use serde_json::json;

use super::{environment::shared, steps::FAST};
use crate::{
    controllers::{descriptor, idle, in_namespace, one_flag},
    fixtures::in_process::InProcess,
};

const RELEASE: &[Descriptor] = &[Descriptor {
    crds: &[include_str!("gadgets.yaml")],
    ..descriptor("gadget-controller", one_flag, |ctx| idle(ctx, "InstalledGadget"))
}];

/// The next release adds a field to v2, whose fields are at the end of the file.
const NEXT_RELEASE: &[Descriptor] = &[Descriptor {
    crds: &[concat!(
        include_str!("gadgets.yaml"),
        "              color:\n                type: string\n"
    )],
    ..descriptor("gadget-controller", one_flag, |ctx| idle(ctx, "UpdatedGadget"))
}];

#[tokio::test]
async fn an_update_of_the_definition_keeps_what_the_commands_have_set() -> Result<()> {
    let environment = shared().await?;
    let gadgets = environment.uninstalled("installed")?;
    let flags = ["--install-crds", &in_namespace("default")];
    InProcess::start(&environment.plane, RELEASE, &flags)
        .await?
        .stop()
        .await?;
    gadgets.wait_until_served("v1").await?;
    gadgets.create_many(3).await?;
    gadgets.enable().await?;
    gadgets.succeed(&FAST).await?;
    let before = gadgets.definition().await?;
    let migrated = "served v1 v2, storage v2, [\"v2\"]";
    ensure!(gadgets.versions().await? == migrated);

    InProcess::start(&environment.plane, NEXT_RELEASE, &flags)
        .await?
        .stop()
        .await?;
    let after = gadgets.definition().await?;
    let schema = &after["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    ensure!(
        schema["color"] == json!({"type": "string"}),
        "it is not updated: {schema}"
    );
    ensure!(gadgets.versions().await? == migrated);
    let conversion = |definition: &serde_json::Value| definition["spec"]["conversion"].clone();
    ensure!(conversion(&after) == conversion(&before), "{after}");
    let object = gadgets.api("v1").get("g-00002").await.context("v1 is unreadable")?;
    ensure!(object.data["spec"] == json!({"size": 2}), "{object:?}");
    Ok(())
}
