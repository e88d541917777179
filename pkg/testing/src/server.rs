//! One server of the control plane. It can be stopped, killed, paused, and restarted with the same
//! ports and data.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use http::Request;
use kube::{Client, Config};
use parking_lot::Mutex;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use crate::etcd::Etcd;
use crate::eventually::{LIMIT, poll_interval};
use crate::process::{Output, Process};
use crate::scratch::ScratchDir;

/// The time limit of one readiness probe.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// How long a server may take to stop after its signal.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// The environment variable with the timer slack of servers in nanoseconds, which `make test` sets:
/// servers with nothing to do otherwise wake up 250 times a second.
const TIMER_SLACK: &str = "SERVER_TIMER_SLACK";

/// How to find out whether a server is ready.
#[derive(Debug)]
pub(crate) enum Probe {
    Etcd(Etcd),
    Apiserver(Box<Config>),
}

/// The program and arguments of a server, for each start.
#[derive(Debug)]
pub(crate) struct ServerSpec {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) probe: Probe,
    /// The signal that stops it.
    pub(crate) stop: Signal,
}

/// A handle of etcd or kube-apiserver.
///
/// Use its methods only on a control plane that belongs to the test. On the shared one they disturb
/// all other tests of the binary.
#[derive(Debug)]
pub struct ServerProcess {
    spec: ServerSpec,
    log: PathBuf,
    scratch: Arc<ScratchDir>,
    process: Mutex<Option<Process>>,
}

/// The context of a failed start when another process has the port.
#[derive(Debug)]
pub(crate) struct PortTaken;

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its port was taken by another process")
    }
}

impl ServerProcess {
    pub(crate) fn new(spec: ServerSpec, scratch: Arc<ScratchDir>) -> Self {
        let log = scratch.path().join(format!("{}.log", spec.name));
        Self {
            spec,
            log,
            scratch,
            process: Mutex::new(None),
        }
    }

    /// Starts a stopped server with the same port and data, and waits until it is ready.
    ///
    /// # Errors
    /// Returns an error if it runs already, ends, or is not ready within 3 min. The error includes
    /// the end of its log.
    pub async fn start(&self) -> Result<()> {
        let ServerSpec {
            name,
            program,
            args,
            probe,
            stop: _,
        } = &self.spec;
        if self.process.lock().is_some() {
            bail!("{name} is already running");
        }
        let slack = env::var(TIMER_SLACK).unwrap_or_default();
        let envs = [("TIMER_SLACK", &*slack)];
        let output = Output::Log(&self.log);
        let process = Process::launch(name, program, args, &envs, &output, self.scratch.hold()?)?;
        let began = Instant::now();
        loop {
            let probed = timeout(PROBE_LIMIT, probe.ready()).await;
            let state = match probed.unwrap_or_else(|_| Err(anyhow!("no answer in {PROBE_LIMIT:?}"))) {
                Ok(()) => break,
                Err(state) => state,
            };
            if let Some(status) = process.exit_status() {
                let error = anyhow!("{name} ended with {status} before it was ready{}", process.log_tail());
                let port_taken = process.log_tail().contains("address already in use");
                return Err(if port_taken { error.context(PortTaken) } else { error });
            }
            if began.elapsed() >= LIMIT {
                return Err(state)
                    .with_context(|| format!("{name} was not ready within {LIMIT:?}{}", process.log_tail()));
            }
            sleep(poll_interval(began)).await;
        }
        *self.process.lock() = Some(process);
        Ok(())
    }

    /// Stops the server and returns once it has ended.
    ///
    /// The apiserver gets a SIGTERM, and a SIGKILL if it still runs after 10 s. etcd gets a SIGKILL
    /// at once: after a SIGTERM it would wait 7 s for the apiserver's streams, and it has
    /// already stored every write that it has acknowledged.
    ///
    /// # Errors
    /// Returns an error if it does not run.
    pub async fn stop(&self) -> Result<ExitStatus> {
        let process = self.take()?;
        // This fails only if the server has already ended.
        let _ = process.signal(self.spec.stop);
        match process.wait(STOP_LIMIT).await {
            Ok(status) => Ok(status),
            Err(_) => kill(process).await,
        }
    }

    /// Kills the server like a crash (SIGKILL) and returns once it has ended.
    ///
    /// # Errors
    /// Returns an error if it does not run.
    pub async fn kill(&self) -> Result<ExitStatus> {
        kill(self.take()?).await
    }

    /// Restarts the server.
    ///
    /// # Errors
    /// Returns an error if it does not run, or does not become ready again.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.start().await
    }

    /// Pauses the server (SIGSTOP): connections can be opened and stay open, but the server does
    /// not respond.
    ///
    /// # Errors
    /// Returns an error if it does not run.
    pub fn pause(&self) -> Result<()> {
        self.with_process(Process::pause)
    }

    /// Resumes a paused server.
    ///
    /// # Errors
    /// Returns an error if it does not run.
    pub fn resume(&self) -> Result<()> {
        self.with_process(Process::resume)
    }

    /// Returns the server's process id, which changes with each start.
    ///
    /// # Errors
    /// Returns an error if it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.with_process(|process| Ok(process.pid()))
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        self.process
            .lock()
            .as_ref()
            .with_context(|| format!("{} is not running", self.spec.name))
            .and_then(act)
    }

    /// Takes the process out of the lock, so that waiting for its end does not hold the lock.
    fn take(&self) -> Result<Process> {
        self.process
            .lock()
            .take()
            .with_context(|| format!("{} is not running", self.spec.name))
    }
}

async fn kill(process: Process) -> Result<ExitStatus> {
    let _ = process.signal(Signal::KILL);
    process.wait(STOP_LIMIT).await
}

impl Probe {
    async fn ready(&self) -> Result<()> {
        match self {
            Self::Etcd(etcd) => etcd.health().await,
            Self::Apiserver(config) => {
                // Use a new client per probe, because a reused one would wait for its backoff.
                let client = Client::try_from(config.as_ref().clone()).context("failed to build a client")?;
                let request = Request::get("/readyz")
                    .body(Vec::new())
                    .context("failed to build a request")?;
                client
                    .request_text(request)
                    .await
                    .context("the apiserver is not ready")?;
                Ok(())
            }
        }
    }
}
