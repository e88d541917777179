//! Runs the example against a real apiserver.

use std::path::Path;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use portreeve_testing::{ControlPlane, LIMIT, eventually};
use serde_json::{Value, json};

#[tokio::test]
async fn copy_of_a_labelled_config_map_is_created_and_repaired() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let kubeconfig = plane.kubeconfig().to_string_lossy().into_owned();
    let program = Path::new(env!("CARGO_BIN_EXE_portreeve-example"));
    let daemon = plane.spawn(
        "example",
        program,
        &[
            "--kubeconfig",
            &kubeconfig,
            "--secure-port=0",
            "-v=4",
            "--logging-format=json",
        ],
        &[],
    )?;
    let namespace = plane.namespace("copies").await?;
    let maps = namespace.api::<ConfigMap>();
    let original = json!({
        "metadata": {"name": "original", "labels": {"example.dev/copy-to": "copy"}},
        "data": {"greeting": "hello"},
    });
    maps.create(&PostParams::default(), &serde_json::from_value(original)?)
        .await?;
    let copied = |greeting: &'static str| {
        let maps = maps.clone();
        move || {
            let maps = maps.clone();
            async move {
                let copy = maps.get_opt("copy").await.ok().flatten()?;
                (copy.data?.get("greeting")? == greeting).then_some(())
            }
        }
    };
    eventually(LIMIT, "the copy", copied("hello")).await?;

    let drift = json!({"data": {"greeting": "goodbye"}});
    maps.patch("copy", &PatchParams::default(), &Patch::Merge(drift))
        .await?;
    eventually(LIMIT, "the copy to be repaired", copied("hello")).await?;

    // `-v` applies to the crate of the controller, whatever its name is.
    let taken = json!({"metadata": {"name": "taken"}});
    maps.create(&PostParams::default(), &serde_json::from_value(taken)?)
        .await?;
    let label = json!({"metadata": {"labels": {"example.dev/copy-to": "taken"}}});
    maps.patch("original", &PatchParams::default(), &Patch::Merge(label))
        .await?;
    let is_wanted = |line: &str| line.contains("left a ConfigMap");
    let line = daemon.wait_for_log(LIMIT, is_wanted).await?;
    let line: Value = serde_json::from_str(&line)?;
    ensure!(line["logger"] == "copy_controller" && line["v"] == 4, "{line}");
    ensure!(line["controller"] == "copy-controller", "{line}");
    ensure!(line["object"] == format!("{}/original", namespace.name()), "{line}");
    let id = line["reconcileID"].as_str().unwrap_or_default();
    ensure!(id.len() == 36 && id.as_bytes()[14] == b'4', "{line}");
    Ok(())
}
