//! `portreeve testenv` as a child process: the controllers that a control plane lacks.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;

use crate::assets::path_from;
use crate::control_plane::ControlPlane;
use crate::eventually::{LIMIT, eventually};
use crate::scratch::ScratchDir;

/// The environment variable with the path of the binary.
const VARIABLE: &str = "TEST_ASSET_PORTREEVE";
/// How long `/settled` waits for one answer of [`Testenv::settled`].
const SETTLE_LIMIT: Duration = Duration::from_secs(50);

/// The controllers that a [`ControlPlane`] lacks: garbage collection, the deletion of namespaces,
/// TTLs and schedules of Jobs, and more. They end when this handle is dropped, or when its process
/// ends in any way, because that closes their standard input.
#[derive(Debug)]
pub struct Testenv {
    child: Child,
    input: Option<ChildStdin>,
    ready: Option<Ready>,
    started: SystemTime,
    folder: ScratchDir,
}

/// The content of the ready file.
#[derive(Clone, Debug, Deserialize)]
struct Ready {
    address: String,
    certificate: String,
}

impl Testenv {
    /// Starts the controllers on a control plane, and waits until they are ready. The flags are
    /// those of `portreeve testenv`, such as `--controllers=*,-cronjob`.
    ///
    /// The binary is `TEST_ASSET_PORTREEVE`, or else `portreeve` on the PATH.
    ///
    /// # Errors
    /// Returns an error if there is no binary, or if it ends before it is ready. The error includes
    /// its log.
    pub async fn start(plane: &ControlPlane, flags: &[&str]) -> Result<Self> {
        let program = path_from(VARIABLE).unwrap_or_else(|| PathBuf::from("portreeve"));
        Self::start_program(&program, plane.kubeconfig(), flags).await
    }

    /// Like [`Testenv::start`], with this binary and kubeconfig.
    ///
    /// # Errors
    /// See [`Testenv::start`].
    pub async fn start_program(program: &Path, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let mut testenv = Self::launch(program, kubeconfig, flags)?;
        testenv.wait_until_ready().await?;
        Ok(testenv)
    }

    /// Starts the process without waiting for it.
    ///
    /// # Errors
    /// Returns an error if it cannot be started.
    pub fn launch(program: &Path, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let folder = ScratchDir::new()?;
        let file = |name: &str| {
            let path = folder.path().join(name);
            File::create(&path).with_context(|| format!("failed to create {}", path.display()))
        };
        let started = SystemTime::now();
        let mut child = Command::new(program)
            .arg("testenv")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--ready-file={}", folder.path().join("ready.json").display()))
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(file("stdout")?)
            .stderr(file("log")?)
            .spawn()
            .with_context(|| {
                format!(
                    "failed to run {}: set {VARIABLE} to the path of portreeve, or put it on the PATH",
                    program.display()
                )
            })?;
        let input = child.stdin.take();
        Ok(Self {
            child,
            input,
            ready: None,
            started,
            folder,
        })
    }

    /// Waits until the caches of the controllers are synced.
    ///
    /// # Errors
    /// Returns an error if the process ends first.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        let path = self.folder.path().join("ready.json");
        let ended = eventually(LIMIT, "testenv to be ready", || {
            let (ended, is_ready) = (self.child.try_wait(), path.exists());
            async move {
                let ended = ended?;
                ensure!(is_ready || ended.is_some(), "the ready file does not exist");
                anyhow::Ok(ended)
            }
        })
        .await?;
        if let Some(status) = ended {
            bail!(
                "testenv ended with {status} before it was ready; its log:\n{}",
                self.log()?
            );
        }
        let text = fs::read_to_string(&path).context("failed to read the ready file")?;
        self.ready = Some(serde_json::from_str(&text).context("failed to parse the ready file")?);
        Ok(())
    }

    /// Returns the time from the start of the process until it was ready, by the time of its ready
    /// file.
    ///
    /// # Errors
    /// Returns an error if it is not ready.
    pub fn ready_after(&self) -> Result<Duration> {
        let ready = fs::metadata(self.folder.path().join("ready.json")).context("testenv is not ready")?;
        ready
            .modified()?
            .duration_since(self.started)
            .context("the clock went back")
    }

    /// Returns the ID of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the controllers have nothing left to do. All that follows from earlier requests
    /// is then visible. What waits for a time, or for somebody else's finalizer, does not count.
    ///
    /// # Errors
    /// Returns an error that lists what is left.
    pub async fn settled(&self) -> Result<()> {
        let path = format!("/settled?timeout={}s", SETTLE_LIMIT.as_secs());
        let (status, body) = self.get(&path).await?;
        ensure!(
            status == StatusCode::NO_CONTENT,
            "the controllers have not settled within {SETTLE_LIMIT:?}: {status}: {body}"
        );
        Ok(())
    }

    /// Returns the status and the body of a response.
    ///
    /// # Errors
    /// Returns an error if the process is not ready, or does not answer.
    pub async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        let Ready { address, certificate } = self.ready.as_ref().context("testenv is not ready")?;
        let mut config = Config::new(address.parse().context("failed to parse the address")?);
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
        config.root_cert = Some(vec![certificate.context("failed to parse the certificate")?.to_vec()]);
        config.default_retry = false;
        // A client does not outlive the runtime of a test.
        let client = Client::try_from(config).context("failed to build a client")?;
        let request = Request::get(path).body(Body::empty()).context("invalid path")?;
        let response = client.send(request).await.context("testenv does not answer")?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .context("failed to read the answer")?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    }

    /// Closes standard input, which ends the process.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// Returns an error if that fails.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("failed to send a signal")
    }

    /// Waits until the process has ended.
    ///
    /// # Errors
    /// Returns an error if it still runs after [`LIMIT`].
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        eventually(LIMIT, "testenv to end", || {
            let ended = self.child.try_wait();
            async move { ended?.context("it still runs") }
        })
        .await
    }

    /// Returns what the process has written to standard output.
    ///
    /// # Errors
    /// Returns an error if that cannot be read.
    pub fn stdout(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("stdout"))?)
    }

    /// Returns the log.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("log"))?)
    }
}

impl Drop for Testenv {
    fn drop(&mut self) {
        // Nothing of it is needed any more. This fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
