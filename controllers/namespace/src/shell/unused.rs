//! Resources of which no object exists in the whole cluster. One list that is empty answers for all
//! namespaces that are being deleted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_api::Resource;
use tokio::time::Instant;

use super::{requests::Requests, shared_read::SharedRead};

/// The groups and versions that kube-apiserver serves itself. An aggregated API, such as one of
/// another version, may answer a list of all namespaces in another way than that of one, so its
/// resources are listed in the namespace.
const VERSIONS: [(&str, &str); 12] = [
    ("", "v1"),
    ("apps", "v1"),
    ("autoscaling", "v2"),
    ("batch", "v1"),
    ("coordination.k8s.io", "v1"),
    ("discovery.k8s.io", "v1"),
    ("events.k8s.io", "v1"),
    ("networking.k8s.io", "v1"),
    ("policy", "v1"),
    ("rbac.authorization.k8s.io", "v1"),
    ("resource.k8s.io", "v1"),
    ("storage.k8s.io", "v1"),
];
/// For how long an empty list answers for namespaces whose grace was over before it was sent.
const FRESH: Duration = Duration::from_secs(1);
/// For how long a resource that had objects, or could not be listed, is listed in each namespace
/// without another try.
const USED: Duration = Duration::from_mins(5);

/// What is known of the use of resources, by attempts together.
#[derive(Default)]
pub(super) struct UnusedResources(Mutex<HashMap<Resource, Arc<SharedRead<bool>>>>);

impl UnusedResources {
    /// Returns whether no namespace has an object of the resource. The list that shows it began
    /// after `due`, and less than a second before this call.
    pub(super) async fn contains(&self, resource: &Resource, due: Instant, requests: &Requests) -> bool {
        if !VERSIONS.contains(&(&*resource.group, &*resource.version)) {
            return false;
        }
        let read = Arc::clone(self.0.lock().entry(resource.clone()).or_default());
        let called = Instant::now();
        let list = async { requests.is_unused(resource).await.unwrap_or(false) };
        let suffices = |began: Instant, is_unused: &bool| {
            let age = called.saturating_duration_since(began);
            if *is_unused {
                began >= due && age < FRESH
            } else {
                age < USED
            }
        };
        read.get_unless(suffices, list).await
    }
}
