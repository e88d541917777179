//! A scan for dependents: lists every collectable resource in one namespace, or in all, to find
//! dependents that no watch has reported yet.
//!
//! Owners in the same namespace share the lists. A list serves every owner that was registered
//! before it began.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{Identity, PartialObject, Reference, ReferencePositions, Uid};
use portreeve_workqueue::Work;
use tokio::{
    sync::{MutexGuard, Notify},
    time::Instant,
};

use super::{
    CollectorContext, lists::await_lists, queued_object::QueuedObject, requests::RequestError, wait_with_progress,
};

/// The result of a scan for one owner.
pub(super) struct Scan {
    /// The dependents of the owner, with their references to it.
    pub(super) found: Vec<(Identity, ReferencePositions)>,
    /// The resources that could not be listed.
    pub(super) unlisted: HashMap<Resource, RequestError>,
}

/// The owners that wait for a scan, and the scan of each namespace.
#[derive(Default)]
pub(super) struct DependentScans {
    waiting: Mutex<HashMap<Uid, Waiting>>,
    /// The UIDs of the dependents that were released for each owner, by all its attempts.
    released: Mutex<HashMap<Uid, HashSet<Box<str>>>>,
    scans: Mutex<HashMap<Namespace, SharedScan>>,
}

type Namespace = Option<Box<str>>;

/// An owner that waits for a scan.
struct Waiting {
    uid: Box<str>,
    since: Instant,
    namespace: Namespace,
}

type SharedScan = Arc<DependentScan>;

/// The scan of one namespace. One worker at a time runs it.
#[derive(Default)]
struct DependentScan {
    results: tokio::sync::Mutex<ScanResults>,
    /// Notified whenever a page has arrived or failed.
    pages: Notify,
}

impl DependentScan {
    /// Waits until no other worker runs this scan.
    async fn turn(&self, work: &Work<QueuedObject>) -> MutexGuard<'_, ScanResults> {
        wait_with_progress(self.results.lock(), &self.pages, work).await
    }
}

/// The last complete list of each resource. A list that fails does not discard the others: the next
/// attempt lists only the missing resources.
#[derive(Default)]
struct ScanResults(HashMap<Resource, Listed>);

/// The result of one list.
struct Listed {
    began: Instant,
    found: Vec<(Box<str>, (Identity, ReferencePositions))>,
}

impl DependentScans {
    /// Registers an owner and returns when it started waiting. Lists that began at or after that
    /// time are valid for it.
    fn enlist(&self, uid: Uid, owner: &Identity) -> Instant {
        let mut waiting = self.waiting.lock();
        let new = || Waiting {
            uid: owner.uid.clone(),
            since: Instant::now(),
            namespace: owner.namespace.clone(),
        };
        waiting.entry(uid).or_insert_with(new).since
    }

    /// Drops an owner that no longer waits, and the scans that no owner needs any more.
    pub(super) fn release(&self, uid: Uid) {
        self.released.lock().remove(&uid);
        let mut waiting = self.waiting.lock();
        waiting.remove(&uid);
        let is_wanted = |namespace: &Namespace| waiting.values().any(|waiting| waiting.namespace == *namespace);
        self.scans.lock().retain(|namespace, _| is_wanted(namespace));
    }

    /// Records that a dependent was released for an owner.
    pub(super) fn dependent_released(&self, owner: Uid, dependent: &str) {
        let mut released = self.released.lock();
        released.entry(owner).or_default().insert(dependent.into());
    }

    /// Returns how many dependents were released for an owner.
    pub(super) fn released(&self, owner: Uid) -> usize {
        self.released.lock().get(&owner).map_or(0, HashSet::len)
    }

    /// Returns those of the referenced owners that wait for a scan, each once.
    ///
    /// Only this registry decides who waits: the graph may lose track of an owner for a moment, and
    /// the list would then lack its dependents for good.
    fn awaited(&self, references: &[Reference]) -> Vec<Box<str>> {
        if references.is_empty() {
            return Vec::new();
        }
        let waiting = self.waiting.lock();
        let is_awaited = |reference: &&Reference| waiting.values().any(|owner| owner.uid == reference.uid);
        let mut owners: Vec<_> = references
            .iter()
            .filter(is_awaited)
            .map(|reference| reference.uid.clone())
            .collect();
        owners.sort();
        owners.dedup();
        owners
    }

    fn scan_of(&self, namespace: &Namespace) -> SharedScan {
        Arc::clone(self.scans.lock().entry(namespace.clone()).or_default())
    }
}

impl CollectorContext {
    /// Returns the dependents of an owner. Uses lists of every collectable resource that all began
    /// after the owner was registered.
    pub(super) async fn scan_dependents(
        &self,
        work: &Work<QueuedObject>,
        owner: &Identity,
    ) -> Result<Scan, RequestError> {
        let since = self.dependent_scans.enlist(work.key().uid, owner);
        let scan = self.dependent_scans.scan_of(&owner.namespace);
        let mut results = scan.turn(work).await;
        let page = || {
            work.report_progress();
            scan.pages.notify_waiters();
        };
        let unlisted = self
            .complete(&mut results, owner.namespace.as_deref(), since, &page)
            .await?;
        let all = results.0.values().flat_map(|listed| &listed.found);
        let found = all
            .filter(|(of, _)| *of == owner.uid)
            .map(|(_, dependent)| dependent.clone());
        let found = found.collect();
        Ok(Scan { found, unlisted })
    }

    /// Lists the resources whose last complete list began before `since`, or that have none.
    /// Returns those that cannot be listed.
    async fn complete(
        &self,
        results: &mut ScanResults,
        namespace: Option<&str>,
        since: Instant,
        page: &(dyn Fn() + Sync),
    ) -> Result<HashMap<Resource, RequestError>, RequestError> {
        let watched = self.resources_to_list(namespace)?;
        results
            .0
            .retain(|resource, listed| watched.contains(resource) && listed.began >= since);
        let missing: Vec<_> = watched
            .into_iter()
            .filter(|resource| !results.0.contains_key(resource))
            .collect();
        let lists = missing.into_iter().map(|resource| async move {
            let listed = self.list_dependents(&resource, namespace, page).await;
            (resource, listed)
        });
        Ok(await_lists(lists, &mut results.0).await)
    }

    /// Lists a resource. Keeps the dependents of owners that wait for a scan.
    async fn list_dependents(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        page: &(dyn Fn() + Sync),
    ) -> Result<Listed, RequestError> {
        let began = Instant::now();
        let mut found = Vec::new();
        let take = |items: Vec<PartialObject>| {
            for PartialObject { metadata } in items {
                for owner in self.dependent_scans.awaited(&metadata.owner_references) {
                    let identity = Identity {
                        api_version: resource.api_version().into(),
                        kind: (*resource.kind).into(),
                        namespace: metadata.namespace.clone(),
                        name: metadata.name.clone(),
                        uid: metadata.uid.clone(),
                    };
                    let references = metadata.references_to(&owner);
                    found.push((owner, (identity, references)));
                }
            }
        };
        self.list_resource(resource, namespace, page, take).await?;
        Ok(Listed { began, found })
    }
}
