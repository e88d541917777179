//! Tests of `portreeve-run` with a shell script in place of the daemon, and one with the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{DynamicObject, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config, ResourceExt};
use portreeve_testing::{Process, Signal, eventually};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portreeve-run");
const LIMIT: Duration = Duration::from_mins(4);

const SAMPLES: &str = "# Holds nothing.\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: two}\n";

/// The part of the script that answers `--list-controllers`.
const LISTING: &str = r#"[ "$1" != --list-controllers ] || { echo '[{"name": "one"}, {"name": "two"}]'; exit; }"#;

/// The part that answers `conversion enable`. The first time it fails, as while the definition is
/// not installed.
const CONVERSION: &str = r#"echo "$@" >>"$0.conversion"; [ "$(wc -l <"$0.conversion")" -gt 1 ]"#;

struct RunFixture {
    run: Process,
    folder: TempDir,
}

impl RunFixture {
    /// Starts `portreeve-run` with a daemon that runs this script.
    fn start(daemon: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let samples = folder.path().join("samples");
        fs::create_dir(&samples)?;
        fs::write(samples.join("samples.yaml"), SAMPLES)?;
        fs::write(samples.join("README.md"), "no sample")?;
        let script = |name: &str, lines: &[&str]| {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{}\n", lines.join("\n")))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            anyhow::Ok(path)
        };
        let binary = script("daemon", &[LISTING, daemon])?;
        script("kubectl-portreeve", &[CONVERSION])?;
        Self::start_with(folder, &binary, &[&samples])
    }

    /// Starts `portreeve-run` with this daemon and these samples.
    fn start_with(folder: TempDir, daemon: &Path, samples: &[&Path]) -> Result<Self> {
        let mut args = vec![daemon.as_os_str()];
        args.extend(samples.iter().map(|samples| samples.as_os_str()));
        args.push("-v=2".as_ref());
        let run = Process::spawn(
            "portreeve-run",
            Path::new(PROGRAM),
            args,
            &[],
            &folder.path().join("log"),
        )?;
        Ok(Self { run, folder })
    }

    async fn line(&self, start: &str) -> Result<String> {
        self.run.wait_for_log(LIMIT, |line| line.starts_with(start)).await
    }

    /// Returns the kubeconfig that the program prints once the samples are applied.
    async fn kubeconfig(&self) -> Result<PathBuf> {
        let line = self.line("  kubeconfig").await?;
        let kubeconfig = line.split_whitespace().nth(1);
        Ok(kubeconfig.context("the line contains no path")?.into())
    }

    /// Returns the control plane's folder.
    async fn plane(&self) -> Result<PathBuf> {
        let kubeconfig = self.kubeconfig().await?;
        let folder = kubeconfig.parent().context("the kubeconfig has no folder")?;
        Ok(folder.to_path_buf())
    }
}

async fn wait_until_removed(folder: &Path) -> Result<()> {
    eventually(LIMIT, "the control plane to vanish", || async {
        (!folder.exists()).then_some(())
    })
    .await
}

#[tokio::test]
async fn sigterm_stops_the_daemon_and_then_the_control_plane() -> Result<()> {
    let daemon = "trap 'echo daemon: told to stop; exit 0' TERM; echo daemon: \"$@\"; while :; do sleep 0.05; done";
    let fixture = RunFixture::start(daemon)?;
    let flags = fixture.line("daemon:").await?;
    for flag in [
        "--kubeconfig=/",
        "--controllers=one,two",
        "--install-crds",
        "--secure-port=",
        "--webhook-port=",
        "--tls-cert-file=/",
        "--tls-private-key-file=/",
        "-v=2",
    ] {
        ensure!(flags.contains(flag), "{flags} lacks {flag}");
    }
    fixture.line("Applied ConfigMap one (1 of 2): Holds nothing.").await?;
    let commands = fs::read_to_string(fixture.folder.path().join("kubectl-portreeve.conversion"))?;
    let commands: Vec<_> = commands.lines().collect();
    let port = flags
        .split_whitespace()
        .find_map(|flag| flag.strip_prefix("--webhook-port="));
    let url = format!("--url=https://localhost:{} --ca-file=/", port.context("no port")?);
    ensure!(commands.len() == 2 && commands[1].contains(&url), "{commands:?}");
    fixture.line("Applied Namespace two (2 of 2)").await?;
    let plane = fixture.plane().await?;
    ensure!(plane.exists());
    fixture.run.signal(Signal::TERM)?;
    fixture.line("daemon: told to stop").await?;
    let status = fixture.run.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-run exited with {status}{}",
        fixture.run.log_tail()
    );
    wait_until_removed(&plane).await
}

#[tokio::test]
async fn an_exited_daemon_is_reported_as_an_error() -> Result<()> {
    let fixture = RunFixture::start("echo daemon: \"$@\"; exit 3")?;
    let status = fixture.run.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-run exited with {status}");
    fixture
        .line("error: the daemon exited unexpectedly with exit status: 3")
        .await?;
    Ok(())
}

#[tokio::test]
async fn killing_portreeve_run_kills_the_daemon() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pipe_path = folder.path().join("pipe_path");
    ensure!(Command::new("mkfifo").arg(&pipe_path).status()?.success());
    let mut reader = pipe::OpenOptions::new().open_receiver(&pipe_path)?;
    // The daemon ignores every signal except SIGKILL, as a hung daemon does, and holds a pipe open
    // until it dies.
    let daemon = format!(
        "trap '' TERM INT HUP; exec 9>'{}'; while :; do sleep 0.05; done",
        pipe_path.display()
    );
    let fixture = RunFixture::start(&daemon)?;
    let plane = fixture.plane().await?;
    fixture.run.signal(Signal::KILL)?;
    fixture.run.wait(LIMIT).await?;
    wait_until_removed(&plane).await?;
    let mut received = Vec::new();
    timeout(LIMIT, reader.read_to_end(&mut received))
        .await
        .context("the daemon is still running")??;
    Ok(())
}

/// Returns a client for the CronTabs in a version.
async fn crontabs(kubeconfig: &Path, version: &str) -> Result<Api<DynamicObject>> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let kind = GroupVersionKind::gvk("stable.example.com", version, "CronTab");
    let resource = ApiResource::from_gvk(&kind);
    Ok(Api::namespaced_with(Client::try_from(config)?, "default", &resource))
}

#[tokio::test]
async fn the_daemon_serves_the_samples_in_both_versions() -> Result<()> {
    let daemon = Path::new(PROGRAM).with_file_name("portreeve");
    ensure!(
        daemon.is_file(),
        "found no daemon: run `hack/build portreeve kubectl-portreeve`"
    );
    let controllers = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../controllers"));
    let samples = ["crontab", "foo"].map(|controller| controllers.join(controller).join("samples"));
    let samples = samples.each_ref().map(|samples| &**samples);
    let fixture = RunFixture::start_with(tempfile::tempdir()?, &daemon, &samples)?;
    fixture.line("Deleted namespace ").await?;
    let kubeconfig = fixture.kubeconfig().await?;
    for version in ["v1", "v2"] {
        let listed = crontabs(&kubeconfig, version)
            .await?
            .list(&ListParams::default())
            .await?;
        let names: Vec<_> = listed.iter().map(ResourceExt::name_any).collect();
        let expected = ["example-crontab", "example-invalid", "example-minutely"];
        ensure!(names == expected, "{version}: {names:?}");
    }
    let (v1, v2) = (crontabs(&kubeconfig, "v1").await?, crontabs(&kubeconfig, "v2").await?);
    let schedules = |object: &DynamicObject| object.data["spec"]["schedules"].as_array().map_or(0, Vec::len);
    let (in_v1, in_v2) = (v1.get("example-crontab").await?, v2.get("example-crontab").await?);
    ensure!(schedules(&in_v2) == 2, "{in_v2:?}");
    let default = &in_v2.data["spec"]["schedules"][0]["schedule"];
    ensure!(in_v1.data["spec"]["schedule"] == *default, "{in_v1:?}");
    ensure!(schedules(&v2.get("example-minutely").await?) == 1);

    // No webhook rejects the invalid sample, so that its condition shows what is wrong.
    eventually(LIMIT, "the condition of the invalid sample", || async {
        let status = v1.get("example-invalid").await?.data["status"].take();
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let is_invalid = |condition: &Value| condition["type"] == "Valid" && condition["status"] == "False";
        ensure!(conditions.iter().any(is_invalid), "{status}");
        anyhow::Ok(())
    })
    .await?;
    fixture.run.signal(Signal::TERM)?;
    let status = fixture.run.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-run exited with {status}{}",
        fixture.run.log_tail()
    );
    Ok(())
}
