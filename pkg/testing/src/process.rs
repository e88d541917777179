//! A child process that cannot outlive its handle or the process that holds the handle.
//!
//! Each program starts through a short shell script (`supervisor.sh`) in its own process group.
//! Dropping the handle kills the group. So does the supervisor's watchdog when the pipe from this
//! process closes, whether by SIGKILL, Ctrl-C, an abort or a normal exit. Nothing here depends on
//! an async runtime, so tests with different runtimes may share a process.
//!
//! Architecture Invariant: only the waiter thread reaps the child, under the same lock that every
//! signal takes. So no signal reaches another process that has got the same pid.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

const SUPERVISOR: &str = include_str!("supervisor.sh");
/// The interval between reads of the log while waiting for a line.
const LOG_INTERVAL: Duration = Duration::from_millis(20);
/// The number of log lines that an error includes.
const TAIL_LINES: usize = 20;

/// The destination of a process's output.
pub(crate) enum Output<'a> {
    /// Append to this file.
    Log(&'a Path),
    /// Write to this file or pipe.
    To(&'a OwnedFd),
    /// Write to the caller's stderr.
    Attached,
}

/// A supervised program. Dropping the handle kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: Option<PathBuf>,
    /// The offset at which this run's output begins, since each run appends to the log.
    log_start: u64,
    ended: watch::Receiver<Option<ExitStatus>>,
    reaping: Arc<Mutex<()>>,
    waiter: Option<JoinHandle<()>>,
    /// The pipe to the watchdog, which kills the group when the pipe closes. Nothing is written to
    /// it.
    _lifeline: Option<ChildStdin>,
}

impl Process {
    /// Starts `program` with its output appended to `log`, and returns without waiting for it.
    /// `name` is used in errors.
    ///
    /// # Errors
    /// Returns an error if the log cannot be opened or no process can be created. A program that
    /// does not exist ends immediately with status 127.
    pub fn spawn(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        envs: &[(&str, &str)],
        log: &Path,
    ) -> Result<Self> {
        Self::launch(name, program, args, envs, &Output::Log(log), Stdio::null())
    }

    /// Starts `program` with its output on `output`, such as a pipe. It has no log.
    ///
    /// # Errors
    /// Returns an error if no process can be created.
    pub fn spawn_with_output(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        output: &OwnedFd,
    ) -> Result<Self> {
        Self::launch(name, program, args, &[], &Output::To(output), Stdio::null())
    }

    /// Starts `program` with its output on this process's stderr, for interactive use. It has no
    /// log: [`Process::wait_for_log`] fails and [`Process::log_tail`] is empty.
    ///
    /// # Errors
    /// Returns an error if no process can be created.
    pub fn spawn_attached(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        envs: &[(&str, &str)],
    ) -> Result<Self> {
        Self::launch(name, program, args, envs, &Output::Attached, Stdio::null())
    }

    /// Starts `program`. The process holds `held` open while it runs.
    pub(crate) fn launch(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        envs: &[(&str, &str)],
        output: &Output<'_>,
        held: Stdio,
    ) -> Result<Self> {
        let (log, log_start, stderr) = match output {
            Output::Attached => (None, 0, Stdio::inherit()),
            Output::To(output) => {
                let output = output.try_clone();
                let output = output.with_context(|| format!("failed to duplicate {name}'s output"))?;
                (None, 0, Stdio::from(output))
            }
            Output::Log(path) => {
                let file = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .with_context(|| format!("failed to open {name}'s log {}", path.display()))?;
                let length = file
                    .metadata()
                    .with_context(|| format!("failed to size {}", path.display()))?
                    .len();
                (Some(path.to_path_buf()), length, Stdio::from(file))
            }
        };
        let mut child = Command::new("/bin/sh")
            .args(["-c", SUPERVISOR, name])
            .arg(program)
            .args(args)
            .envs(envs.iter().copied())
            .stdin(Stdio::piped())
            .stdout(held)
            .stderr(stderr)
            // With its own process group, a Ctrl-C in the terminal reaches only this process, which
            // then decides how to stop the child.
            .process_group(0)
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let lifeline = child.stdin.take();
        let pid = Pid::from_child(&child);
        let (tx, ended) = watch::channel(None);
        let reaping = Arc::new(Mutex::new(()));
        let waiter = thread::Builder::new()
            .name(format!("wait-{name}"))
            .spawn({
                let reaping = Arc::clone(&reaping);
                move || reap(child, pid, &reaping, &tx)
            })
            .with_context(|| format!("failed to start the thread that waits for {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            pid,
            log,
            log_start,
            ended,
            reaping,
            waiter: Some(waiter),
            _lifeline: lifeline,
        })
    }

    /// Returns the name under which it was started.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the log file, or `None` if its output goes elsewhere.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// Returns the exit status if the program has ended.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    /// Returns an error if the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let _reaping = self.reaping.lock();
        if let Some(status) = self.exit_status() {
            bail!("cannot signal {}: it has ended with {status}", self.name);
        }
        rustix::process::kill_process(self.pid, signal)
            .with_context(|| format!("failed to send {signal:?} to {}", self.name))
    }

    /// Pauses the program (SIGSTOP): its connections stay open, and it does not respond.
    ///
    /// Returns once all its threads have stopped, which can take a moment on a busy machine.
    ///
    /// # Errors
    /// Returns an error if the program has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let state = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let state = retry_on_intr(|| waitid(WaitId::Pid(self.pid), state));
        match state.with_context(|| format!("failed to wait for {} to stop", self.name))? {
            Some(state) if state.stopped() => Ok(()),
            _ => bail!("{} has ended instead of stopping{}", self.name, self.log_tail()),
        }
    }

    /// Resumes a paused program (SIGCONT).
    ///
    /// # Errors
    /// Returns an error if the program has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// Returns an error if it still runs after `limit`. The error includes the end of its log.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = match timeout(limit, ended.wait_for(Option::is_some)).await {
            Ok(Ok(status)) => *status,
            Ok(Err(_)) => bail!("{}'s exit status was lost", self.name),
            Err(_) => bail!("{} still runs after {limit:?}{}", self.name, self.log_tail()),
        };
        status.with_context(|| format!("{}'s exit status was lost", self.name))
    }

    /// Waits until the program has written a line that `matches`, anywhere in this run's output,
    /// and returns the line.
    ///
    /// # Errors
    /// Returns an error if `limit` passes or the program ends without such a line. The error
    /// includes the end of its log.
    pub async fn wait_for_log(&self, limit: Duration, mut matches: impl FnMut(&str) -> bool) -> Result<String> {
        let log = self
            .log
            .as_deref()
            .with_context(|| format!("{} has no log", self.name))?;
        let mut file = File::open(log).with_context(|| format!("failed to open {}", log.display()))?;
        file.seek(SeekFrom::Start(self.log_start))
            .with_context(|| format!("failed to read {}", log.display()))?;
        let deadline = Instant::now() + limit;
        let mut unread = Vec::new();
        loop {
            // Check this before reading the log, so that the last lines of the program are not
            // missed.
            let ended = self.exit_status();
            file.read_to_end(&mut unread)
                .with_context(|| format!("failed to read {}", log.display()))?;
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                if matches(line.trim_end()) {
                    return Ok(line.trim_end().to_owned());
                }
            }
            if let Some(status) = ended {
                bail!(
                    "{} ended with {status} before it wrote the expected line{}",
                    self.name,
                    self.log_tail()
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} did not write the expected line within {limit:?}{}",
                    self.name,
                    self.log_tail()
                );
            }
            sleep(LOG_INTERVAL).await;
        }
    }

    /// Returns the last lines of the log, formatted as the suffix of an error. Empty without a log.
    pub fn log_tail(&self) -> String {
        self.log.as_deref().map(tail).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        {
            let _reaping = self.reaping.lock();
            if self.exit_status().is_none() {
                // Kill the whole group: the program, its children, and the watchdog. This can fail
                // only if the group no longer exists.
                let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
            }
        }
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// Waits for the program's end, then kills its group and publishes the status. Its pid cannot be
/// reused until `wait` has reaped it.
fn reap(mut child: Child, pid: Pid, reaping: &Mutex<()>, ended: &watch::Sender<Option<ExitStatus>>) {
    let unreaped = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), unreaped));
    let _reaping = reaping.lock();
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    if let Ok(status) = child.wait() {
        ended.send_replace(Some(status));
    }
}

fn tail(log: &Path) -> String {
    let Ok(bytes) = fs::read(log) else {
        return format!("; its log {} cannot be read", log.display());
    };
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
    format!("; its log {} ends with:\n{last}", log.display())
}
