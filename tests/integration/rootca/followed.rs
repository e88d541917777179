//! A CA in a file.

use std::{fs, sync::Arc};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use portreeve_reconcile::SystemClock;
use portreeve_testing::{Authority, ControlPlane, eventually};

use super::profile::NAME;
use crate::fixtures::{LIMIT, in_process::InProcess, rbac::restricted_kubeconfig};

const CONTROLLERS: &str = "--controllers=root-ca-cert-publisher";

#[tokio::test]
async fn a_changed_file_is_published_and_a_missing_one_is_refused() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let file = plane.folder().join("root-ca.crt");
    let flags = [CONTROLLERS, &*format!("--root-ca-file={}", file.display())];
    let start = || InProcess::start_as(&kubeconfig, Arc::new(SystemClock), portreeve_cli::CONTROLLERS, &flags);
    let error = start().await.err().context("the file does not exist")?;
    let error = format!("{error:?}");
    ensure!(
        error.contains("root-ca-file") && error.contains("root-ca.crt"),
        "{error}"
    );

    let maps: Api<ConfigMap> = Api::all(plane.client()?);
    let published = async |expected: &str| {
        eventually(LIMIT, "the CA in each namespace", || async {
            for namespace in ["default", "kube-system"] {
                let maps: Api<ConfigMap> = Api::namespaced(maps.clone().into_client(), namespace);
                let map = maps.get_opt(NAME).await?.context("it does not exist")?;
                let data = map.data.unwrap_or_default();
                ensure!(data.len() == 1 && data["ca.crt"] == expected, "{data:?}");
            }
            anyhow::Ok(())
        })
        .await
    };
    let (old, new) = (Authority::new()?.pem(), Authority::new()?.pem());
    fs::write(&file, &old)?;
    let daemon = start().await?;
    published(&old).await?;
    // Replaced as a Secret volume does it.
    fs::write(file.with_extension("new"), &new)?;
    fs::rename(file.with_extension("new"), &file)?;
    published(&new).await?;
    daemon.finish().await
}
