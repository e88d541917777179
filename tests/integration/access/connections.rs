//! Clients that hold every connection of the listener. The row `connections` of the benchmark
//! measures how long probes then take.

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, SlowClients, eventually};

use super::{Credentials, NOTHING, account_token, ensure_status, rule};
use crate::fixtures::{LIMIT, daemon::Daemon};

/// More clients than the listener accepts connections.
const CLIENTS: usize = 200;
/// The test ends when the daemon has closed this many connections to make room for others.
const EVICTIONS: usize = 150;
/// The log line of such a connection.
const EVICTING: &str = "evicting connection to make room for another";

#[tokio::test]
async fn probes_and_scrapers_are_served_while_slow_clients_hold_every_connection() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("access").await?;
    let flags = [NOTHING, "-v=4"];
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "besieged-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let scraper = account_token(plane, &system, "besieged", vec![rule(&["/metrics"])]).await?;
    let clients = SlowClients::start(daemon.admin.port, CLIENTS);
    let evictions = || daemon.log().map(|log| log.matches(EVICTING).count());
    eventually(LIMIT, "all connections to be in use", || async {
        let evictions = evictions()?;
        ensure!(evictions > 0, "no connection was evicted");
        anyhow::Ok(())
    })
    .await?;
    let before = evictions()?;
    while evictions()? < before + EVICTIONS {
        for path in ["/livez", "/readyz", "/healthz"] {
            ensure_status(&daemon.admin, path, &Credentials::None, 200).await?;
        }
        ensure_status(&daemon.admin, "/metrics", &Credentials::None, 403).await?;
        ensure_status(&daemon.admin, "/metrics", &scraper, 200).await?;
    }
    ensure!(clients.closed() > 0);
    drop(clients);
    let status = daemon.process.exit_status();
    ensure!(status.is_none(), "{status:?}");
    Ok(())
}
