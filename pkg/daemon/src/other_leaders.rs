//! The namespace of the Leases, and daemons that lead with Leases of the same names elsewhere.
//!
//! A daemon in a pod and one that somebody starts by hand have different namespaces by default, so
//! each would lead.

use std::{fs, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::time::timeout;

/// The namespace of a daemon outside of a cluster, as in Kubernetes' components.
const DEFAULT: &str = "kube-system";
/// Has the namespace of the pod.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The time for the answer of the apiserver. The check is worth no longer delay of the start.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns whether the daemon uses the apiserver of its own pod.
pub(crate) fn is_in_cluster(client: &portreeve_client::Args) -> bool {
    client.kubeconfig.is_none() && client.master.is_none()
}

/// Returns the namespace of the Leases if no flag sets it.
pub(crate) fn default_namespace(client: &portreeve_client::Args) -> String {
    let of_pod = is_in_cluster(client).then(|| fs::read_to_string(POD_NAMESPACE).ok());
    let of_pod = of_pod.flatten().map(|text| text.trim().to_owned());
    of_pod
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| DEFAULT.to_owned())
}

/// A Lease that is held in another namespace.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct OtherLeader {
    /// `namespace/name`.
    pub(crate) lease: String,
    pub(crate) holder: String,
}

/// Returns a Lease with one of these names that somebody holds in another namespace, or `None` if
/// that cannot be found out: most accounts may not list Leases.
pub(crate) async fn find(client: Client, namespace: &str, names: &[&str], now: Timestamp) -> Option<OtherLeader> {
    for name in names {
        let parameters = ListParams::default().fields(&format!("metadata.name={name}"));
        let leases: Api<Lease> = Api::all(client.clone());
        match timeout(LIMIT, leases.list(&parameters)).await {
            Ok(Ok(listed)) => {
                let mut others = listed
                    .items
                    .iter()
                    .filter(|lease| lease.namespace().as_deref() != Some(namespace));
                if let Some(other) = others.find_map(|lease| held(lease, now)) {
                    return Some(other);
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "cannot look for other leaders"),
            Err(_) => tracing::debug!("cannot look for other leaders: no answer within {LIMIT:?}"),
        }
    }
    None
}

/// Returns the holder of a Lease that has not expired.
fn held(lease: &Lease, now: Timestamp) -> Option<OtherLeader> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let duration = SignedDuration::from_secs(spec.lease_duration_seconds?.into());
    let renewed = spec.renew_time.as_ref()?.0;
    (now.duration_since(renewed) < duration).then(|| OtherLeader {
        lease: format!("{}/{}", lease.namespace().unwrap_or_default(), lease.name_any()),
        holder: holder.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

    use super::*;

    #[test]
    fn only_a_lease_that_is_held_and_fresh_has_a_leader() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let lease = |holder: &str, age| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                renew_time: Some(MicroTime(now - SignedDuration::from_secs(age))),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert_eq!(
            held(&lease("a", 14), now).map(|other| other.holder),
            Some("a".to_owned())
        );
        for free in [lease("a", 15), lease("", 0), Lease::default()] {
            assert_eq!(held(&free, now), None, "{free:?}");
        }
    }
}
