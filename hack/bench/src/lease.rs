//! A watch of the Lease that the replicas of a controller share.

use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use tokio::time::timeout;

/// The name of the Lease, which is passed to every subject by flag.
pub(crate) const NAME: &str = "bench";
const NAMESPACE: &str = "kube-system";
/// The number of renewals after which a Lease counts as steady. By then the standby has observed
/// the Lease too.
const STEADY_RENEWALS: u32 = 3;

/// The holder of the Lease, and the time of its last renewal by the holder's clock.
#[derive(Clone, Debug, Eq, PartialEq)]
struct HolderRecord {
    holder: String,
    renewed: Option<Timestamp>,
}

impl HolderRecord {
    fn of(lease: &DynamicObject) -> Self {
        let spec = &lease.data["spec"];
        let renewed = spec["renewTime"].as_str().and_then(|time| time.parse().ok());
        Self {
            holder: spec["holderIdentity"].as_str().unwrap_or_default().to_owned(),
            renewed,
        }
    }
}

/// A change of the holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTransition {
    /// When the watch received the new holder.
    pub(crate) at: Timestamp,
    /// The last renewal by the former holder, by that holder's clock.
    pub(crate) last_renewal: Timestamp,
}

/// A watch of the Lease, which need not exist yet. The watch is not restarted, so the caller must
/// finish within five minutes, before the apiserver ends it.
pub(crate) struct Lease {
    changes: Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>,
    /// The last received record with a holder.
    held: Option<HolderRecord>,
}

impl Lease {
    pub(crate) async fn watch(client: &Client) -> Result<Self> {
        let only_this = WatchParams::default().fields(&format!("metadata.name={NAME}"));
        // With resource version 0, the first event contains the current Lease.
        let changes = api(client).watch(&only_this, "0").await;
        let changes = changes.context("failed to watch the Lease")?;
        Ok(Self {
            changes: Box::pin(changes),
            held: None,
        })
    }

    /// Waits until the Lease has a holder, and returns it.
    pub(crate) async fn holder(&mut self, limit: Duration) -> Result<String> {
        let held = async { Ok(self.next_holder().await?.holder) };
        within(limit, "somebody to hold the Lease", held).await
    }

    /// Waits until the holder has renewed the Lease several times, and returns the holder right
    /// after the last of these renewals.
    pub(crate) async fn wait_until_steady(&mut self, limit: Duration) -> Result<String> {
        let holder = self.holder(limit).await?;
        let renewals = async {
            for _ in 0..STEADY_RENEWALS {
                let next = self.next_holder().await?.holder;
                ensure!(
                    next == holder,
                    "the Lease changed from {holder} to {next} without a cause"
                );
            }
            Ok(())
        };
        within(limit, "the Lease to be renewed", renewals).await?;
        Ok(holder)
    }

    /// Waits until the Lease has a holder other than `holder`.
    pub(crate) async fn wait_for_transition_from(&mut self, holder: &str, limit: Duration) -> Result<LeaseTransition> {
        let transition = async {
            loop {
                let before = self.held.clone();
                let next = self.next_holder().await?;
                let at = Timestamp::now();
                if next.holder != holder {
                    let last_renewal = before.and_then(|term| term.renewed);
                    let last_renewal =
                        last_renewal.context("the watch has received no renewal of the former holder")?;
                    return Ok(LeaseTransition { at, last_renewal });
                }
            }
        };
        within(limit, "the Lease to pass to the standby", transition).await
    }

    /// Waits for the next event with a holder. Events of a Lease without a holder are skipped.
    async fn next_holder(&mut self) -> Result<HolderRecord> {
        loop {
            let event = self.changes.next().await.context("the watch of the Lease ended")?;
            let term = match event.context("the watch of the Lease failed")? {
                WatchEvent::Added(lease) | WatchEvent::Modified(lease) => HolderRecord::of(&lease),
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Deleted(_) => bail!("the Lease was deleted"),
                WatchEvent::Error(status) => bail!("the apiserver rejected the watch of the Lease: {}", status.message),
            };
            if !term.holder.is_empty() {
                self.held = Some(term.clone());
                return Ok(term);
            }
        }
    }
}

fn api(client: &Client) -> Api<DynamicObject> {
    let gvk = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&gvk))
}

async fn within<T>(limit: Duration, what: &str, wait: impl Future<Output = Result<T>>) -> Result<T> {
    let waited = timeout(limit, wait).await;
    waited.with_context(|| format!("timed out after {limit:?} waiting for {what}"))?
}

#[cfg(test)]
mod tests {
    use kube::api::{Patch, PatchParams, PostParams};
    use portreeve_testing::ControlPlane;
    use serde_json::json;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_transition_needs_a_new_holder_and_not_only_a_release() -> Result<()> {
        let plane = ControlPlane::shared().await;
        let client = plane.client()?;
        let mut lease = Lease::watch(&client).await?;
        let leases = api(&client);
        let written = async {
            let new: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
            }))?;
            leases.create(&PostParams::default(), &new).await?;
            for (holder, second) in [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("", 5), ("b", 6)] {
                let renewed = format!("2026-11-21T15:00:0{second}.250000Z");
                let spec = json!({"spec": {"holderIdentity": holder, "renewTime": renewed}});
                leases.patch(NAME, &PatchParams::default(), &Patch::Merge(spec)).await?;
            }
            anyhow::Ok(())
        };
        let observed = async {
            let holder = lease.wait_until_steady(LIMIT).await?;
            Ok((lease.wait_for_transition_from(&holder, LIMIT).await?, holder))
        };
        let ((), (transition, holder)) = tokio::try_join!(written, observed)?;
        assert_eq!(holder, "a");
        assert_eq!(transition.last_renewal.to_string(), "2026-11-21T15:00:04.25Z");
        assert!(transition.at <= Timestamp::now());
        Ok(())
    }
}
