//! `--config` and `/configz`: the config file, flags that override it, and the effective settings.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_testing::ControlPlane;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::usage::usage_error;
use crate::fixtures::{
    daemon::{Daemon, printed, run},
    namespace::NamespaceFixture,
};

const HEADER: &str = "apiVersion: portreeve.dev/v1alpha1\nkind: ControllerManagerConfiguration\n";
/// The endpoints that the daemons of these tests serve without authorization.
const OPEN: &str = "authorizationAlwaysAllowPaths: [/healthz, /readyz, /livez, /configz]\n";

fn write_config(folder: &Path, name: &str, body: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    fs::write(&file, format!("{HEADER}{body}"))?;
    Ok(file)
}

fn flag(file: &Path) -> String {
    format!("--config={}", file.display())
}

/// Returns the effective settings, in the form of a config file.
async fn effective_settings(daemon: &Daemon) -> Result<Value> {
    let (status, text) = daemon.admin.get("/configz").await?;
    ensure!(status == StatusCode::OK, "{status}: {text}");
    let mut configz: Value = serde_json::from_str(&text)?;
    let groups: Vec<_> = configz
        .as_object()
        .into_iter()
        .flatten()
        .map(|(group, _)| group)
        .collect();
    ensure!(groups == ["controllermanager.portreeve.dev"], "{groups:?}");
    Ok(configz["controllermanager.portreeve.dev"].take())
}

#[test]
fn a_config_file_that_cannot_be_read_is_named_in_the_error() -> Result<()> {
    let folder = TempDir::new()?;
    let missing = folder.path().join("missing.yaml");
    let long = folder.path().join("long.yaml");
    fs::write(&long, vec![b'#'; (1 << 20) + 1])?;
    for (file, word) in [
        (&*missing, "No such file"),
        (folder.path(), "directory"),
        (&*long, "longer than 1 MiB"),
    ] {
        let error = usage_error(&[&flag(file)])?;
        let name = file.display().to_string();
        ensure!(
            error.contains("--config") && error.contains(&name) && error.contains(word),
            "{error}"
        );
    }
    let error = usage_error(&["rbac", "--config=x"])?;
    ensure!(error.contains("--config"), "{error}");
    Ok(())
}

#[test]
fn errors_about_settings_name_the_place_in_the_config_file() -> Result<()> {
    let folder = TempDir::new()?;
    let config_error = |body: &str, flags: &[&str]| {
        let file = flag(&write_config(folder.path(), "portreeve.yaml", body)?);
        usage_error(&[&[&*file, "--secure-port=0"], flags].concat())
    };
    let error = config_error("leaderElectLeaseDuration: 5s\n", &[])?;
    for words in [
        "portreeve.yaml:3: leaderElectLeaseDuration: invalid leader election",
        "leaseDuration must be greater",
    ] {
        ensure!(error.contains(words), "{error}");
    }
    let error = config_error("v: 1\ncontrollers: [fooo]\n", &[])?;
    ensure!(
        error.contains("portreeve.yaml:4: controllers: invalid --controllers: unknown controller \"fooo\""),
        "{error}"
    );
    let error = config_error("controllers: [fooo]\n", &["--controllers=barr"])?;
    ensure!(
        error.contains("barr") && !error.contains("portreeve.yaml"),
        "the error blames the file instead of the flag: {error}"
    );
    let error = config_error("kubeconfig: admin.conf\n", &[])?;
    let kubeconfig = folder.path().join("admin.conf").display().to_string();
    ensure!(
        error.contains("portreeve.yaml:3: kubeconfig") && error.contains(&kubeconfig),
        "{error}"
    );
    Ok(())
}

#[test]
fn commands_that_print_and_exit_check_the_config_file() -> Result<()> {
    let folder = TempDir::new()?;
    let file = flag(&write_config(folder.path(), "portreeve.yaml", "controllers: [foo]\n")?);
    ensure!(printed(&[&file, "--list-controllers"])? == printed(&["--list-controllers"])?);
    let broken = flag(&write_config(folder.path(), "broken.yaml", "controlers: [foo]\n")?);
    ensure!(run(&[&broken, "--list-controllers"])?.status.code() == Some(1));
    let reference = printed(&["config-reference"])?;
    for text in [
        "| `leaderElectLeaseDuration` | duration | `15s` |",
        "## foo-controller",
        "`concurrentFooSyncs`",
    ] {
        ensure!(reference.contains(text), "the reference lacks {text:?}: {reference}");
    }
    Ok(())
}

#[tokio::test]
async fn a_daemon_uses_its_config_file_and_flags_override_it() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let folder = TempDir::new()?;
    let body = format!(
        "{OPEN}controllers: [foo]\ninstallCrds: true\nleaderElect: false\ndryRun: true\nv: 3\nconcurrentFooSyncs: 2\n"
    );
    let file = flag(&write_config(folder.path(), "portreeve.yaml", &body)?);
    // Flags set the serving port and the kubeconfig.
    let daemon = Daemon::start_closed(&plane, plane.kubeconfig(), "configured", &[&file, "--dry-run=false"]).await?;
    daemon.admin.wait_until_ready().await?;
    let settings = effective_settings(&daemon).await?;
    for (key, value) in [
        ("apiVersion", json!("portreeve.dev/v1alpha1")),
        ("kind", json!("ControllerManagerConfiguration")),
        ("controllers", json!(["foo"])),
        ("concurrentFooSyncs", json!(2)),
        ("concurrentGcSyncs", json!(20)),
        ("dryRun", json!(false)),
        ("installCrds", json!(true)),
        ("leaderElectLeaseDuration", json!("15s")),
        ("securePort", json!(daemon.admin.port)),
        ("v", json!(3)),
    ] {
        ensure!(settings[key] == value, "{key}: {}", settings[key]);
    }
    // The daemon installed the CRD, and the dry run is off.
    let fixture = NamespaceFixture::new(&plane, "configured").await?;
    fixture.ready_foo("web", 1).await?;
    Ok(())
}
