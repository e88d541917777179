//! A Secret that is lost while its certificate is in use.

use anyhow::{Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use super::{
    FLAGS, Objects,
    webhooks::{Bundles, CHECKS, CONVERTED, DEFAULTS},
};
use crate::fixtures::{LIMIT, daemon::Daemon, rbac::restricted_kubeconfig};

#[tokio::test]
async fn a_lost_secret_is_recreated_and_bundles_keep_their_ca() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    objects.create_config_map().await?;
    bundles.create().await?;
    let all = [DEFAULTS, CHECKS, CONVERTED];
    let listed = format!("--tls-ca-bundles={}", all.join(","));
    let flags = [&FLAGS[..], &[&*listed]].concat();
    let kubeconfig = restricted_kubeconfig(&plane, &flags).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "leader", &flags).await?;
    let old = objects.wait_for_authority().await?;
    bundles.wait_until_all_are(&all, &old).await?;
    objects.wait_until_trusted(daemon.admin).await?;

    // A Secret that is being deleted is left alone.
    let finalizers = |list| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    let parameters = PatchParams::default();
    let secrets = &objects.secrets;
    secrets
        .patch(
            "portreeve-serving",
            &parameters,
            &finalizers(json!(["example.com/held"])),
        )
        .await?;
    secrets.delete("portreeve-serving", &DeleteParams::default()).await?;
    objects.replace_data(json!({"tls.key": null})).await?;
    bundles
        .patch(
            CHECKS,
            json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]),
        )
        .await?;
    bundles.wait_until_all_are(&[CHECKS], &old).await?;
    ensure!(
        !objects.data().await?.contains_key("tls.key"),
        "the deleted Secret was written"
    );
    secrets
        .patch("portreeve-serving", &parameters, &finalizers(json!([])))
        .await?;

    let new = eventually(LIMIT, "a new CA", || async {
        let authority = objects.wait_for_authority().await?;
        ensure!(authority != old);
        anyhow::Ok(authority)
    })
    .await?;
    bundles.wait_until_all_are(&all, &format!("{new}{old}")).await?;
    objects.wait_until_trusted(daemon.admin).await?;
    let calls = format!("calls of {} may have failed", all.join(", "));
    let event = objects.wait_for_event(&calls).await?;
    ensure!(event.contains("has had no usable certificate for at least "), "{event}");
    let log = daemon.log()?;
    ensure!(!log.contains("PRIVATE") && !log.contains("forbidden"), "{log}");
    Ok(())
}
