//! Watches a Lease. The watch shows a release to a standby before its next attempt, and changed
//! annotations to a leader.

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{WatchEvent, WatchParams},
};
use portreeve_client::error_chain;
use tokio::{sync::Notify, time::Instant};

use crate::guard::LeaseCache;

/// The maximum duration of one watch, in seconds. A dead connection can go unnoticed for that long;
/// in the meantime the regular attempts observe the Lease.
const MAX_WATCH_SECONDS: u32 = 60;

/// A watch that ends sooner than this counts as failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Records every change of the Lease in the cache and then notifies `lease_changed`. Never returns.
/// It restarts a failed watch after `pause`.
pub(crate) async fn follow(
    leases: Api<Lease>,
    name: String,
    cache: LeaseCache,
    lease_changed: &Notify,
    pause: Duration,
) {
    let parameters = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(MAX_WATCH_SECONDS);
    loop {
        let limit = Duration::from_secs(MAX_WATCH_SECONDS.into()) + pause;
        let started = Instant::now();
        let watched = tokio::time::timeout(limit, watch_once(&leases, &parameters, &cache, lease_changed)).await;
        match watched {
            // A watch that ends at once is a failure: an apiserver that is shutting down ends all
            // watches.
            Ok(Ok(())) if started.elapsed() >= SHORT_WATCH => continue,
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(lease = name, err = error_chain(&error), "failed to watch the lease"),
            Err(_) => tracing::debug!(lease = name, "timed out watching the lease"),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Runs one watch from resourceVersion 0: it starts at any version that the apiserver has cached.
async fn watch_once(
    leases: &Api<Lease>,
    parameters: &WatchParams,
    cache: &LeaseCache,
    lease_changed: &Notify,
) -> kube::Result<()> {
    let mut events = std::pin::pin!(leases.watch(parameters, "0").await?);
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => cache.apply_watch_event(lease),
            WatchEvent::Deleted(lease) => cache.apply_delete_event(lease),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
        }
        lease_changed.notify_one();
    }
    Ok(())
}
