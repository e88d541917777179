//! Signals while a write is in flight, and the resulting exit codes.
//!
//! Each test has its own control plane, because every daemon watches all namespaces and would block
//! on another test's gate.

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_testing::{ControlPlane, PooledPlane, Signal};

use crate::fixtures::{
    LIMIT,
    admission_gate::{AdmissionGate, HeldWrite},
    daemon::Daemon,
    definitions::plane_with_definitions,
    namespace::NamespaceFixture,
};

/// A daemon whose creation of a Deployment `web` is in flight.
struct BusyDaemon {
    daemon: Daemon,
    fixture: NamespaceFixture,
    write: HeldWrite,
    _gate: AdmissionGate,
    _plane: PooledPlane,
}

async fn start_busy_daemon(name: &str, flags: &[&str]) -> Result<BusyDaemon> {
    let plane = plane_with_definitions().await?;
    let flags: Vec<&str> = ["--install-crds"].iter().chain(flags).copied().collect();
    let daemon = Daemon::start(&plane, name, &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, name).await?;
    let gate = AdmissionGate::close(&plane, &fixture).await?;
    fixture.create_foo("web", "web", 1).await?;
    let write = gate.hold().await?;
    Ok(BusyDaemon {
        daemon,
        fixture,
        write,
        _gate: gate,
        _plane: plane,
    })
}

#[tokio::test]
async fn the_daemon_waits_for_running_reconciles_before_it_exits() -> Result<()> {
    for (name, signal) in [("terminated", Signal::TERM), ("interrupted", Signal::INT)] {
        let BusyDaemon {
            daemon,
            fixture,
            write,
            _gate,
            _plane,
        } = start_busy_daemon(name, &[]).await?;
        daemon.process.signal(signal)?;
        daemon.wait_for_line(&["stopping"]).await?;
        let (status, _) = daemon.admin.get("/livez").await?;
        ensure!(
            status == StatusCode::OK,
            "/livez must answer until the reconcile has ended"
        );
        ensure!(
            daemon.process.exit_status().is_none(),
            "the daemon did not wait for the reconcile"
        );
        ensure!(
            fixture.deployments().get_opt("web").await?.is_none(),
            "the write was not in flight"
        );
        drop(write);
        let status = daemon.process.wait(LIMIT).await?;
        ensure!(status.code() == Some(0), "{status}: {}", daemon.process.log_tail());
        ensure!(
            fixture.deployments().get_opt("web").await?.is_some(),
            "the write was lost"
        );
        ensure!(
            daemon.log()?.trim_end().ends_with("stopped"),
            "{}",
            daemon.process.log_tail()
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_the_daemon_at_once() -> Result<()> {
    let busy = start_busy_daemon("impatient", &["--controller-shutdown-timeout=0"]).await?;
    busy.daemon.process.signal(Signal::TERM)?;
    busy.daemon.wait_for_line(&["received signal"]).await?;
    busy.daemon.process.signal(Signal::INT)?;
    let status = busy.daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "{status}: {}", busy.daemon.process.log_tail());
    let log = busy.daemon.log()?;
    ensure!(!log.contains("stopped"), "the daemon completed its shutdown: {log}");
    drop(busy.write);
    Ok(())
}

#[tokio::test]
async fn a_signal_stops_the_daemon_while_it_waits_for_the_apiserver() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    plane.apiserver().stop().await?;
    let daemon = Daemon::start(&plane, "waiting-daemon", &[]).await?;
    daemon.wait_for_line(&["waiting for the apiserver"]).await?;
    daemon.process.signal(Signal::TERM)?;
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}: {}", daemon.process.log_tail());
    Ok(())
}
