//! A child process that cannot be left behind: it dies with its handle, and with the process that holds the handle.
//!
//! Each one runs under a few lines of shell (`supervisor.sh`) in a process group of its own. The group is killed when the handle
//! is dropped, and by the supervisor's watchdog when the pipe from this process closes: after a SIGKILL, a Ctrl-C or an abort as
//! well as after an ordinary exit. Nothing here is bound to a runtime, so a process may be shared by tests that each have their own.
//!
//! Architecture Invariant: only the waiter thread reaps, and it does so under the same lock as every signal is sent under. A signal
//! therefore never reaches a process that was given a used pid.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
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
/// How often a log is read while a line is waited for.
const LOG_INTERVAL: Duration = Duration::from_millis(20);
/// How many lines of the log an error carries.
const TAIL_LINES: usize = 20;

/// Where a process writes its output.
pub(crate) enum Output<'a> {
    /// Appended to this file.
    Log(&'a Path),
    /// The caller's own stderr.
    Attached,
}

/// A running program, supervised: dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: Option<PathBuf>,
    /// Where this run's output begins: the log of a process that is started again is appended to.
    log_start: u64,
    ended: watch::Receiver<Option<ExitStatus>>,
    reaping: Arc<Mutex<()>>,
    waiter: Option<JoinHandle<()>>,
    /// Never written to; the watchdog waits for its end.
    _lifeline: Option<ChildStdin>,
}

impl Process {
    /// Starts `program` with its output appended to `log`. Returns as soon as it is started; `name` is for errors only.
    ///
    /// # Errors
    /// When the log cannot be opened or no process can be created. A program that does not exist ends at once with status 127.
    pub fn spawn(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        envs: &[(&str, &str)],
        log: &Path,
    ) -> Result<Self> {
        Self::launch(name, program, args, envs, &Output::Log(log), Stdio::null())
    }

    /// Starts `program` with its output on this process's stderr, for a program that a person watches.
    /// Such a process has no log: [`Process::wait_for_log`] fails and [`Process::log_tail`] is empty.
    ///
    /// # Errors
    /// When no process can be created.
    pub fn spawn_attached(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item: AsRef<OsStr>>,
        envs: &[(&str, &str)],
    ) -> Result<Self> {
        Self::launch(name, program, args, envs, &Output::Attached, Stdio::null())
    }

    /// `held` stays open for as long as the process lives.
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
            // Its own group: a Ctrl-C in the terminal is for us, and we decide what it means for our processes.
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
            .with_context(|| format!("failed to watch over {name}"))?;
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

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id of the program itself.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The file that its output goes to, unless it was started attached.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// How it ended, when it has.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    /// Sends a signal to the program.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let _reaping = self.reaping.lock();
        if let Some(status) = self.exit_status() {
            bail!("cannot signal {}: it has ended with {status}", self.name);
        }
        rustix::process::kill_process(self.pid, signal)
            .with_context(|| format!("failed to send {signal:?} to {}", self.name))
    }

    /// Stops the program where it stands (SIGSTOP): its connections stay open and nothing is answered. Returns once it has stopped, each
    /// of its threads: on a busy machine some go on for a while after the signal.
    ///
    /// # Errors
    /// When the program has ended.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let state = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let state = retry_on_intr(|| waitid(WaitId::Pid(self.pid), state));
        match state.with_context(|| format!("failed to wait for {} to stop", self.name))? {
            Some(state) if state.stopped() => Ok(()),
            _ => bail!("{} has ended instead of stopping{}", self.name, self.log_tail()),
        }
    }

    /// Lets a paused program go on (SIGCONT).
    ///
    /// # Errors
    /// When the program has ended.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Waits until the program has ended by itself or by a signal.
    ///
    /// # Errors
    /// When it still runs after `limit`; the error carries the end of its log.
    pub async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = match timeout(limit, ended.wait_for(Option::is_some)).await {
            Ok(Ok(status)) => *status,
            Ok(Err(_)) => bail!("{}'s exit status was lost", self.name),
            Err(_) => bail!("{} still runs after {limit:?}{}", self.name, self.log_tail()),
        };
        status.with_context(|| format!("{}'s exit status was lost", self.name))
    }

    /// Waits until the program has written a line that `matches`, from its start on, and returns the line.
    ///
    /// # Errors
    /// When `limit` passes or the program ends without such a line; the error carries the end of its log.
    pub async fn wait_for_log(&self, limit: Duration, mut matches: impl FnMut(&str) -> bool) -> Result<String> {
        let log = self
            .log
            .as_deref()
            .with_context(|| format!("{} has no log: it was started attached", self.name))?;
        let mut file = File::open(log).with_context(|| format!("failed to open {}", log.display()))?;
        file.seek(SeekFrom::Start(self.log_start))
            .with_context(|| format!("failed to read {}", log.display()))?;
        let deadline = Instant::now() + limit;
        let mut unread = Vec::new();
        loop {
            // Asked before the log is read, so that what a program says last is not missed.
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

    /// The last lines of its log, made to be appended to an error: empty when there is none.
    pub fn log_tail(&self) -> String {
        self.log.as_deref().map(tail).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        {
            let _reaping = self.reaping.lock();
            if self.exit_status().is_none() {
                // The whole group: the program, what it started, and the watchdog. It can only fail for a group that is gone.
                let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
            }
        }
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// Waits for the program's end, then ends its group and publishes the status. Until `wait` has reaped it, its pid names nothing else.
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
