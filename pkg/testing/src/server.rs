//! One server of the control plane, which can be stopped, killed, paused and started again with its ports and data.

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
use crate::process::{Output, Process};
use crate::scratch::ScratchDir;

/// Far more than a start takes (3 s), for machines that are busy with other things.
const READY_LIMIT: Duration = Duration::from_mins(3);
const READY_INTERVAL: Duration = Duration::from_millis(100);
/// The longest that one look at a server's readiness may take.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// How long a server may take to stop by itself.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How a server says that it is ready.
#[derive(Debug)]
pub(crate) enum Probe {
    Etcd(Etcd),
    Apiserver(Box<Config>),
}

/// What a server was started with, and is started with again.
#[derive(Debug)]
pub(crate) struct ServerSpec {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) probe: Probe,
    /// What asks it to stop.
    pub(crate) stop: Signal,
}

/// A handle on etcd or kube-apiserver. Its methods are meant for a control plane of the test's own: on the shared one, every other
/// test of the binary would notice.
#[derive(Debug)]
pub struct ServerProcess {
    spec: ServerSpec,
    log: PathBuf,
    scratch: Arc<ScratchDir>,
    process: Mutex<Option<Process>>,
}

/// The context of a failed start whose reason was that somebody else has the port.
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

    /// Starts a server that was stopped, on the same port and with the same data, and waits until it is ready.
    ///
    /// # Errors
    /// When it runs already, ends, or is not ready within three minutes; the error carries the end of its log.
    pub async fn start(&self) -> Result<()> {
        let ServerSpec {
            name,
            program,
            args,
            probe,
            stop: _,
        } = &self.spec;
        if self.process.lock().is_some() {
            bail!("{name} has been started already");
        }
        let process = Process::launch(name, program, args, &[], &Output::Log(&self.log), self.scratch.hold()?)?;
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            let look = timeout(PROBE_LIMIT, probe.ready()).await;
            let state = match look.unwrap_or_else(|_| Err(anyhow!("no answer in {PROBE_LIMIT:?}"))) {
                Ok(()) => break,
                Err(state) => state,
            };
            if let Some(status) = process.exit_status() {
                let error = anyhow!("{name} ended with {status} before it was ready{}", process.log_tail());
                let port_taken = process.log_tail().contains("address already in use");
                return Err(if port_taken { error.context(PortTaken) } else { error });
            }
            if Instant::now() >= deadline {
                return Err(state)
                    .with_context(|| format!("{name} was not ready within {READY_LIMIT:?}{}", process.log_tail()));
            }
            sleep(READY_INTERVAL).await;
        }
        *self.process.lock() = Some(process);
        Ok(())
    }

    /// Asks the apiserver to stop (SIGTERM), and kills it when it has not within ten seconds. etcd is killed at once: asked, it waits seven
    /// seconds for the apiserver's streams, and what it has answered is written down already. Returns once it has ended.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn stop(&self) -> Result<ExitStatus> {
        let process = self.take()?;
        // It fails only when the server has ended by itself already.
        let _ = process.signal(self.spec.stop);
        match process.wait(STOP_LIMIT).await {
            Ok(status) => Ok(status),
            Err(_) => kill(process).await,
        }
    }

    /// Ends the server as a crash does (SIGKILL). Returns once it has ended.
    ///
    /// # Errors
    /// When it does not run.
    pub async fn kill(&self) -> Result<ExitStatus> {
        kill(self.take()?).await
    }

    /// Stops the server and starts it again.
    ///
    /// # Errors
    /// When it does not run, or does not come back.
    pub async fn restart(&self) -> Result<()> {
        self.stop().await?;
        self.start().await
    }

    /// Stops the server where it stands (SIGSTOP): connections to it open and stay open, and nothing is answered.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<()> {
        self.with_process(Process::pause)
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When it does not run.
    pub fn resume(&self) -> Result<()> {
        self.with_process(Process::resume)
    }

    /// The server's process id, which changes with each start.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.with_process(|process| Ok(process.pid()))
    }

    /// The file that all its runs write to.
    pub fn log(&self) -> &std::path::Path {
        &self.log
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> Result<T>) -> Result<T> {
        self.process
            .lock()
            .as_ref()
            .with_context(|| format!("{} does not run", self.spec.name))
            .and_then(act)
    }

    /// Out of the lock, so that waiting for its end does not hold it.
    fn take(&self) -> Result<Process> {
        self.process
            .lock()
            .take()
            .with_context(|| format!("{} does not run", self.spec.name))
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
                // A client of its own for each look: one that is kept would wait out its backoff.
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
