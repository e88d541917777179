//! What etcd has after the first start, which saves the next control planes the writes.

use std::sync::{Arc, OnceLock};

use crate::etcd::Stored;

/// The apiserver changes its own leases at any time.
pub(crate) const OWN_LEASES: [&str; 2] = ["/registry/leases/kube-system/apiserver-", "/registry/peerserverleases/"];
/// The keys that differ between control planes: this ConfigMap has the authorities of clients.
const OF_ONE: [&str; 2] = [
    "/registry/configmaps/kube-system/extension-apiserver-authentication",
    "/registry/events/",
];

static TEMPLATE: OnceLock<Arc<[Stored]>> = OnceLock::new();

/// Returns what a new etcd should have before the apiserver starts, unless this is the first.
pub(crate) fn template() -> Option<Arc<[Stored]>> {
    TEMPLATE.get().cloned()
}

/// Remembers what the first control plane has after its start.
pub(crate) fn remember(stored: &[Stored]) {
    let is_shared =
        |stored: &&Stored| !starts_with_any(&stored.key, &OWN_LEASES) && !starts_with_any(&stored.key, &OF_ONE);
    TEMPLATE.get_or_init(|| stored.iter().filter(is_shared).cloned().collect());
}

pub(crate) fn starts_with_any(key: &[u8], prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| key.starts_with(prefix.as_bytes()))
}
