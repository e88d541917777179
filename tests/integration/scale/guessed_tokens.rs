//! Clients that guess tokens and reconnect at once, beside a scraper with a valid one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, eventually, https_get};
use tokio::task::JoinSet;

use super::is_full_size;
use crate::{
    access::{NOTHING, account_token, rule},
    fixtures::{
        LIMIT,
        admin::Credentials,
        daemon::{Daemon, PROGRAM},
    },
};

/// The clients that guess tokens, more than there are connections, and the scrapes.
const CLIENTS: usize = 300;
const SCRAPES: u64 = 4;
/// The same in full size.
const FULL_SIZE: (usize, u64) = (1_000, 96);
/// How often a scraper connects. On a busy machine, its handshake can take longer than a connection
/// may be silent before it has shown credentials.
const TRIES: usize = 3;
/// The number of connections that end between two scrapes.
const ATTEMPTS: u64 = 50;

/// The caches are off, so the apiserver reviews the token at every scrape.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scraper_is_served_while_others_guess_tokens() -> Result<()> {
    let (clients, scrapes) = if is_full_size() { FULL_SIZE } else { (CLIENTS, SCRAPES) };
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("guessed").await?;
    let flags = [
        NOTHING,
        "--authentication-token-webhook-cache-ttl=0s",
        "--authorization-webhook-cache-authorized-ttl=0s",
    ];
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "guessed-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let credentials = account_token(plane, &system, "scraper", vec![rule(&["/metrics"])]).await?;
    let Credentials::Token(token) = credentials else {
        unreachable!("an account has a token")
    };
    let port = daemon.admin.port;
    let scrape = || async {
        let response = https_get(port, "/metrics", &format!("Authorization: Bearer {token}\r\n")).await?;
        ensure!(response.starts_with("HTTP/1.1 200"), "{:?}", response.lines().next());
        anyhow::Ok(())
    };
    scrape().await?;

    let attempts = Arc::new(AtomicU64::new(0));
    let mut guessing = JoinSet::new();
    for client in 0..clients {
        let attempts = Arc::clone(&attempts);
        guessing.spawn(async move {
            for guess in 0.. {
                let header = format!("Authorization: Bearer guess-{client}-{guess}\r\n");
                // Most connections are evicted, so there is no response.
                drop(https_get(port, "/metrics", &header).await);
                attempts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for number in 0..scrapes {
        let before = attempts.load(Ordering::Relaxed);
        eventually(LIMIT, "clients to reconnect", || async {
            let since = attempts.load(Ordering::Relaxed) - before;
            ensure!(since >= ATTEMPTS, "{since} connections ended");
            anyhow::Ok(())
        })
        .await?;
        let mut outcome = scrape().await;
        for _ in 1..TRIES {
            if outcome.is_err() {
                outcome = scrape().await;
            }
        }
        outcome.with_context(|| format!("scrape {number} of {scrapes}"))?;
    }
    guessing.shutdown().await;
    let status = daemon.process.exit_status();
    ensure!(status.is_none(), "{PROGRAM} ended with {status:?}");
    Ok(())
}
