//! What `portreeve crds` and `portreeve rbac` print, before a real apiserver.

use anyhow::{Result, ensure};
use kube::api::PatchParams;
use portreeve_testing::ControlPlane;

use crate::support::{daemon::printed, manifests};

#[tokio::test]
async fn the_apiserver_accepts_every_printed_manifest_strictly() -> Result<()> {
    let client = ControlPlane::shared().await.client()?;
    let dry = PatchParams::apply("an-administrator").dry_run().validation_strict();
    for (args, expected) in [
        (
            &["crds"][..],
            vec![
                "CustomResourceDefinition crontabs.stable.example.com",
                "CustomResourceDefinition foos.samplecontroller.k8s.io",
            ],
        ),
        (
            &["rbac", "--controllers=foo", "--install-crds", "--namespace=somewhere"],
            vec![
                "ClusterRole portreeve",
                "ClusterRoleBinding portreeve",
                "ClusterRole portreeve:install-crds",
                "ClusterRoleBinding portreeve:install-crds",
                "ClusterRole portreeve:foo-controller",
                "ClusterRoleBinding portreeve:foo-controller",
            ],
        ),
        (
            &["rbac", "--controllers=cronjob"],
            vec![
                "ClusterRole portreeve",
                "ClusterRoleBinding portreeve",
                "ClusterRole portreeve:cronjob-controller",
                "ClusterRoleBinding portreeve:cronjob-controller",
            ],
        ),
        (&["crds", "--controllers=cronjob"], vec![]),
    ] {
        let mut accepted = Vec::new();
        for document in manifests::documents(&printed(args)?)? {
            let object = manifests::apply(&client, &document, None, &dry).await?;
            let kind = object.types.map(|types| types.kind).unwrap_or_default();
            accepted.push(format!("{kind} {}", object.metadata.name.unwrap_or_default()));
        }
        ensure!(accepted == expected, "{args:?}: {accepted:?}");
    }
    Ok(())
}
