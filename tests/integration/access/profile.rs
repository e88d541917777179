//! CPU profiles of the daemon.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode, header};
use kube::client::Body;
use portreeve_testing::{ControlPlane, Signal, eventually};
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::timeout,
};

use super::{Credentials, NOTHING, account_token, ensure_status, rule};
use crate::fixtures::{
    LIMIT,
    admin::{Admin, send},
    daemon::Daemon,
};

const PROFILE: &str = "/debug/pprof/profile";
/// What pprof finds in a profile of handshakes and probes.
const PARTS: [&str; 6] = [
    "PeriodType: cpu nanoseconds",
    "Period: 10000000",
    "samples/count cpu/nanoseconds",
    "portreeve_serving::",
    "rustls::",
    // Stacks reach the start of the thread.
    "Server>::run",
];

/// Takes a profile of one second.
async fn take(admin: Admin, token: &str) -> Result<Vec<u8>> {
    let mut config = admin.config()?;
    config.accept_invalid_certs = true;
    let request = Request::get(format!("{PROFILE}?seconds=1"));
    let request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    let response = send(config, request.body(Body::empty())?).await?;
    let status = response.status();
    let body = response.into_body();
    ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
    Ok(body)
}

/// Builds the program behind `go tool pprof`, which takes minutes on a machine that has never run
/// it.
async fn build_pprof(plane: &ControlPlane) -> Result<PathBuf> {
    let program = plane.folder().join("pprof");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg("cmd/pprof");
    let output = spawn_blocking(move || command.output()).await?;
    let output = output.context("failed to run go")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    Ok(program)
}

/// Returns what pprof reads in a profile.
fn read(plane: &ControlPlane, pprof: &Path, profile: &[u8]) -> Result<String> {
    let file = plane.folder().join("profile.pb.gz");
    fs::write(&file, profile)?;
    let output = Command::new(pprof).arg("-raw").arg(&file).output();
    let output = output.context("failed to run pprof")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the temporary files that a process has opened.
fn temporary_files(pid: u32) -> Result<Vec<PathBuf>> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"))?;
    // A file may be closed in the meantime.
    let files = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let is_temporary = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b".tmp")
    };
    Ok(files.filter(is_temporary).collect())
}

#[tokio::test]
async fn a_profile_names_the_functions_that_run() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let pprof = build_pprof(plane).await?;
    let system = plane.namespace("profile").await?;
    // As in the image, no folder for temporary files can be written to.
    let envs = [("TMPDIR", "/nonexistent")];
    let daemon = Daemon::start_with(plane, plane.kubeconfig(), "profiled-daemon", &[NOTHING], &envs).await?;
    daemon.admin.wait_until_ready().await?;
    let token = account_token(plane, &system, "developer", vec![rule(&[PROFILE])]).await?;
    let Credentials::Token(token) = token else {
        unreachable!()
    };
    let admin = daemon.admin;
    // Handshakes and probes are the work.
    let work = async {
        loop {
            admin.ensure_passing("/livez").await?;
        }
        #[expect(unreachable_code, reason = "the type of the error")]
        anyhow::Ok(())
    };
    // A busy machine may not run the daemon in the second of a profile.
    let profile = eventually(LIMIT, "a profile of the work", async || {
        let text = read(plane, &pprof, &take(admin, &token).await?)?;
        for part in PARTS {
            ensure!(text.contains(part), "{part} is not in {text}");
        }
        anyhow::Ok(())
    });
    tokio::select! {
        profile = profile => profile?,
        failed = work => return failed,
    }
    let files = temporary_files(daemon.process.pid())?;
    for file in &files {
        fs::remove_file(file)?;
    }
    ensure!(files.len() == 1 && files[0].starts_with("/dev/shm"), "{files:?}");
    Ok(())
}

#[tokio::test]
async fn one_profile_is_taken_at_a_time_and_ends_with_its_client() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("profile").await?;
    let folder = plane.folder().to_string_lossy();
    let envs = [("TMPDIR", &*folder)];
    let daemon = Daemon::start_with(plane, plane.kubeconfig(), "busy-profiler", &[NOTHING], &envs).await?;
    daemon.admin.wait_until_ready().await?;
    let credentials = account_token(plane, &system, "developer", vec![rule(&[PROFILE])]).await?;
    let Credentials::Token(token) = credentials.clone() else {
        unreachable!()
    };
    let admin = daemon.admin;
    ensure_status(&admin, PROFILE, &Credentials::None, 403).await?;
    let longest = format!("{PROFILE}?seconds=300");
    let mut first = JoinSet::new();
    let (path, client) = (longest.clone(), credentials.clone());
    first.spawn(async move { admin.get_as(&path, &client).await });
    daemon.wait_for_line(&["started CPU profile", "seconds=300"]).await?;
    let text = ensure_status(&admin, &longest, &credentials, 409).await?;
    ensure!(text.contains("another one is being taken"), "{text}");
    for path in ["/livez", "/readyz"] {
        ensure_status(&admin, path, &Credentials::None, 200).await?;
    }
    ensure!(first.try_join_next().is_none(), "the first profile ended too early");
    first.shutdown().await;
    let next = eventually(LIMIT, "the first profile to end", || take(admin, &token)).await?;
    ensure!(!next.is_empty());

    // A profile does not delay the shutdown.
    let client = credentials.clone();
    first.spawn(async move { admin.get_as(&longest, &client).await });
    let started = || async {
        let log = daemon.log()?;
        let profiles = log.lines().filter(|line| line.contains("seconds=300"));
        ensure!(profiles.count() == 2);
        anyhow::Ok(())
    };
    eventually(LIMIT, "the last profile to start", started).await?;
    daemon.process.signal(Signal::TERM)?;
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}");
    timeout(LIMIT, first.shutdown()).await?;
    Ok(())
}
