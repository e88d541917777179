//! The executable while nobody reads its stderr, as when a log collector hangs.

use std::{ffi::OsStr, io::ErrorKind, os::fd::OwnedFd, path::Path};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::ListParams;
use portreeve_testing::{ControlPlane, Process, Signal, eventually, free_port};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{TcpStream, unix::pipe},
    time::timeout,
};

use crate::fixtures::{
    LIMIT,
    admin::{Admin, OPEN},
    daemon::PROGRAM,
    namespace::NamespaceFixture,
};

/// The metric of the lines that were dropped.
const DROPPED: &str = "portreeve_log_lines_dropped_total";

/// A pipe that is full of dots.
struct FullPipe {
    reader: pipe::Receiver,
    writer: OwnedFd,
}

impl FullPipe {
    async fn new() -> Result<Self> {
        let (writer, reader) = pipe::pipe()?;
        writer.writable().await?;
        let full = loop {
            if let Err(error) = writer.try_write(&[b'.'; 4096]) {
                break error;
            }
        };
        ensure!(full.kind() == ErrorKind::WouldBlock, "failed to fill a pipe: {full}");
        Ok(Self {
            reader,
            writer: writer.into_blocking_fd()?,
        })
    }

    /// Starts the executable with this pipe as stdout and stderr.
    fn spawn(&self, name: &str, args: &[impl AsRef<OsStr>]) -> Result<Process> {
        Process::spawn_with_output(name, Path::new(PROGRAM), args, &self.writer)
    }

    /// Starts a daemon with this pipe as stdout and stderr, and waits until it is ready.
    async fn daemon(&self, plane: &ControlPlane, name: &str, flags: &[&str]) -> Result<(Process, Admin)> {
        let admin = Admin { port: free_port()? };
        let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
        let port = format!("--secure-port={}", admin.port);
        let common = [
            &*kubeconfig,
            &*port,
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            OPEN,
        ];
        let args: Vec<&str> = common.into_iter().chain(flags.iter().copied()).collect();
        let process = self.spawn(name, &args)?;
        admin.wait_until_ready().await?;
        Ok((process, admin))
    }

    /// Returns the lines in the pipe. The first one begins with the dots.
    fn lines(self) -> Lines<BufReader<pipe::Receiver>> {
        BufReader::new(self.reader).lines()
    }
}

/// Reads until a line contains `text`, and returns the line.
async fn read_until(lines: &mut Lines<BufReader<pipe::Receiver>>, text: &str) -> Result<String> {
    let search = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        bail!("found no line with {text:?}")
    };
    let found = timeout(LIMIT, search).await;
    found.with_context(|| format!("timed out reading until a line with {text:?}"))?
}

/// Waits until the process ends, and ensures that it did so with `code`.
async fn ensure_exit(process: &Process, code: i32) -> Result<()> {
    let status = process.wait(LIMIT).await?;
    ensure!(status.code() == Some(code), "{}: {status}", process.name());
    Ok(())
}

/// Lets the daemon log more lines than it keeps. Each failed TLS handshake is a line at `-v=4`.
async fn overflow(admin: &Admin) -> Result<()> {
    let connect = async || {
        let mut connection = TcpStream::connect(("127.0.0.1", admin.port)).await?;
        connection.write_all(b"not TLS").await?;
        // The daemon closes the connection after the line.
        connection.read_to_end(&mut Vec::new()).await.ok();
        anyhow::Ok(())
    };
    eventually(LIMIT, "a dropped line", || async {
        let connections = stream::iter(0..1000).map(|_| connect()).buffer_unordered(20);
        connections.try_collect::<()>().await?;
        let dropped = admin.metrics().await?.sum(DROPPED, &[]);
        ensure!(dropped > 0.0, "no line was dropped");
        anyhow::Ok(())
    })
    .await
}

/// Uses its own control plane, because other daemons would reconcile the same Foos.
#[tokio::test]
async fn a_blocked_stderr_delays_neither_reconciles_nor_the_exit() -> Result<()> {
    const FOOS: usize = 60;
    let plane = ControlPlane::pooled().await?;
    let pipe = FullPipe::new().await?;
    let flags = ["--controllers=foo", "--install-crds", "-v=4"];
    let (process, admin) = pipe.daemon(&plane, "blocked", &flags).await?;
    let fixture = NamespaceFixture::new(&plane, "blocked").await?;
    let names: Vec<String> = (0..FOOS).map(|number| format!("web-{number}")).collect();
    let creations = stream::iter(&names).map(|name| fixture.create_foo(name, name, 1));
    creations.buffer_unordered(10).try_collect::<Vec<_>>().await?;
    let deployments = fixture.deployments();
    eventually(LIMIT, "a Deployment for each Foo", || async {
        let found = deployments.list(&ListParams::default()).await?.items.len();
        ensure!(found == FOOS, "{found} of {FOOS} exist");
        anyhow::Ok(())
    })
    .await?;
    overflow(&admin).await?;
    process.signal(Signal::TERM)?;
    ensure_exit(&process, 0).await
}

#[tokio::test]
async fn waiting_lines_are_written_and_dropped_lines_reported_once_stderr_is_read() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let pipe = FullPipe::new().await?;
    let (process, admin) = pipe.daemon(plane, "resumed", &["--controllers=-foo", "-v=4"]).await?;
    overflow(&admin).await?;
    let mut lines = pipe.lines();
    read_until(&mut lines, "starting portreeve").await?;
    let report = read_until(&mut lines, "dropped log lines").await?;
    let dropped = admin.metrics().await?.sum(DROPPED, &[]);
    ensure!(report.ends_with(&format!("lines={dropped}")), "{dropped}: {report}");
    process.signal(Signal::TERM)?;
    read_until(&mut lines, "stopped").await?;
    ensure_exit(&process, 0).await
}

#[tokio::test]
async fn an_error_ends_the_process_while_stderr_is_blocked() -> Result<()> {
    for (name, flag) in [
        ("usage", "--no-such-flag"),
        ("file", "--config=/no/such/file"),
        ("daemon", "--kubeconfig=/no/such/file"),
    ] {
        let pipe = FullPipe::new().await?;
        let process = pipe.spawn(name, &[flag])?;
        ensure_exit(&process, 1).await?;
    }
    Ok(())
}
