//! Kinds whose CustomResourceDefinition was deleted while the collector watched them.
//!
//! The apiserver deletes all objects of a CRD before the CRD itself. So once the CRD is gone, every
//! owner of its kind is absent, even if the watch has not reported its deletion. A kind that is not
//! served for any other reason proves nothing.

use std::collections::VecDeque;

use parking_lot::Mutex;
use portreeve_api::{CRDS, ObjectKey, Resource, Scope};
use portreeve_garbagecollector_graph::{Identity, ReadResult};
use tokio::time::{Instant, timeout};

use super::{
    CollectorContext,
    coalescer::{FRESH, SOON},
    requests,
};

/// The maximum number of kinds that are remembered.
const CAPACITY: usize = 1_000;

/// The resources whose CRD was deleted, the latest last.
#[derive(Default)]
pub(super) struct RemovedKinds(Mutex<VecDeque<Resource>>);

impl RemovedKinds {
    pub(super) fn add(&self, resource: &Resource) {
        let mut removed = self.0.lock();
        removed.retain(|known| known.crd_name() != resource.crd_name());
        if removed.len() == CAPACITY {
            removed.pop_front();
        }
        removed.push_back(resource.clone());
    }

    /// Returns the resource of the object, in any version, if its CRD was deleted.
    pub(super) fn find(&self, identity: &Identity) -> Option<Resource> {
        let (group, _) = identity.api_version.rsplit_once('/')?;
        let removed = self.0.lock();
        let mut removed = removed.iter();
        let found = removed.find(|resource| resource.group == group && *resource.kind == *identity.kind);
        found.cloned()
    }
}

impl CollectorContext {
    /// Returns whether an object whose kind is not served exists: it does not if the CRD of its
    /// kind was deleted and still does not exist.
    pub(super) async fn read_unserved(&self, identity: &Identity) -> ReadResult {
        match self.removed_kinds.find(identity) {
            None => ReadResult::Unknown,
            Some(resource) if resource.scope == Scope::Namespaced && identity.namespace.is_none() => {
                ReadResult::Misplaced
            }
            Some(resource) => self.read_definition(&resource.crd_name()).await,
        }
    }

    /// Reads a CRD, or reuses an answer younger than [`FRESH`]. Returns `Absent` if it does not
    /// exist, and otherwise `Unknown`.
    async fn read_definition(&self, name: &str) -> ReadResult {
        let identity = Identity {
            api_version: CRDS.api_version().into(),
            kind: (*CRDS.kind).into(),
            namespace: None,
            name: name.into(),
            uid: Box::default(),
        };
        let slot = self.coalescer.slot(&identity);
        let mut answer = slot.lock().await;
        if let Some((at, fact)) = &*answer
            && at.elapsed() < FRESH
        {
            return fact.clone();
        }
        let key = ObjectKey::cluster(name);
        let fact = match timeout(SOON, requests::get(&self.client, &CRDS, &key)).await {
            Ok(Ok(None)) => ReadResult::Absent,
            _ => ReadResult::Unknown,
        };
        *answer = Some((Instant::now(), fact.clone()));
        fact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_found_in_any_version_of_its_group() {
        let removed = RemovedKinds::default();
        let foos = Resource::namespaced("example.com", "v1", "Foo", "foos");
        removed.add(&foos);
        removed.add(&foos);
        let find = |api_version: &str, kind: &str| {
            let identity = Identity {
                api_version: api_version.into(),
                kind: kind.into(),
                namespace: None,
                name: "a".into(),
                uid: "u".into(),
            };
            removed.find(&identity).is_some()
        };
        assert!(find("example.com/v1", "Foo") && find("example.com/v2", "Foo"));
        assert!(!find("example.com/v1", "Bar") && !find("example.org/v1", "Foo") && !find("v1", "Foo"));
        assert_eq!(removed.0.lock().len(), 1);
    }
}
