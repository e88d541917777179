//! Whether a kube-controller-manager deletes namespaces too.
//!
//! Its deletions of collections name no UID, and a pass of it goes on after this controller has
//! finalized the namespace, for a time that nothing limits. So one of the two must leave the work
//! to the other, and this one can: kube-controller-manager holds a Lease while it works.
//!
//! Its Lease is read in each attempt, and again before a namespace is finalized; attempts at the
//! same time share a read. A watch that is held up could make the Lease look expired.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portreeve_api::{Metadata, Resource};
use portreeve_informer::{ServedResources, Verb};
use serde::Deserialize;
use tokio::time::Instant;

use super::{
    requests::{RequestError, Requests},
    shared_read::SharedRead,
};

const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "Lease", "leases");
/// The default name and namespace of kube-controller-manager's Lease.
const NAME: &str = "kube-controller-manager";
const NAMESPACE: &str = "kube-system";
/// The default duration of the Lease.
const DURATION: u32 = 15;

/// kube-controller-manager's Lease.
#[derive(Debug, Deserialize)]
struct Lease {
    metadata: Metadata,
    #[serde(default)]
    spec: LeaseSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<Arc<str>>,
    lease_duration_seconds: Option<u32>,
}

/// A kube-controller-manager that holds its Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Holder {
    pub(super) identity: Arc<str>,
    /// When the Lease ends unless it is renewed.
    pub(super) until: Instant,
}

/// Says why nothing is done, and what to do about it.
pub(super) fn yielded(holder: &str) -> String {
    format!(
        "kube-controller-manager ({holder}) holds its Lease, and so deletes namespaces; if its namespace-controller is \
         off, set --namespace-mode=always"
    )
}

/// What is known of the Lease.
#[derive(Default)]
pub(super) struct OtherManager {
    known: Mutex<Known>,
    read: SharedRead<Result<Option<Arc<Lease>>, RequestError>>,
}

#[derive(Debug, Default)]
struct Known {
    seen: Option<Seen>,
    /// When the Lease was last seen to be held.
    held: Option<Instant>,
}

/// A version of the Lease, and when this process first saw it. Clocks of other machines do not
/// count, as in leader election.
#[derive(Debug)]
struct Seen {
    version: Arc<str>,
    at: Instant,
}

impl OtherManager {
    /// Returns who holds the Lease now.
    pub(super) async fn holder(
        &self,
        requests: &Requests,
        served: &ServedResources,
    ) -> Result<Option<Holder>, RequestError> {
        let lease = match self.read.get(requests.object(&LEASES, Some(NAMESPACE), NAME)).await {
            // A proxy may answer so too.
            Err(error) if error.is_not_found() && !served.supports(&LEASES, Verb::List) => None,
            lease => lease?,
        };
        Ok(self.observe(lease.as_deref(), Instant::now()))
    }

    /// Returns when the Lease was last seen to be held. A deletion from before then may still be on
    /// its way.
    pub(super) fn last_held(&self) -> Option<Instant> {
        self.known.lock().held
    }

    fn observe(&self, lease: Option<&Lease>, now: Instant) -> Option<Holder> {
        let lease = lease?;
        let identity = lease.spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
        let version = Arc::clone(&lease.metadata.resource_version);
        let mut known = self.known.lock();
        let is_new = known.seen.as_ref().is_none_or(|seen| seen.version != version);
        if is_new {
            known.seen = Some(Seen { version, at: now });
        }
        let since = known.seen.as_ref().map_or(now, |seen| seen.at);
        let seconds = lease.spec.lease_duration_seconds.unwrap_or(DURATION);
        let until = since + Duration::from_secs(seconds.into());
        if now >= until {
            return None;
        }
        known.held = Some(now);
        Some(Holder { identity, until })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_is_held_until_it_was_not_renewed_for_its_duration() {
        let other = OtherManager::default();
        let start = Instant::now();
        let held = |version: &str, holder: &str, seconds: u64| {
            let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 15});
            let lease = json!({"metadata": {"resourceVersion": version}, "spec": spec});
            let now = start + Duration::from_secs(seconds);
            let lease: Lease = serde_json::from_value(lease).unwrap();
            other.observe(Some(&lease), now).is_some()
        };
        assert!(held("1", "a", 0));
        assert!(held("1", "a", 14));
        assert!(!held("1", "a", 15));
        assert!(held("2", "a", 20), "it was renewed");
        assert!(!held("3", "", 21), "it was released");
        assert!(held("4", "b", 22));
        assert!(other.observe(None, start).is_none());
        assert_eq!(other.last_held(), Some(start + Duration::from_secs(22)));
    }
}
