//! The scan before the finalizer `foregroundDeletion` is removed. It lists what the graph may lack:
//! the resources that are not synced, and the kinds of the owner's known dependents.
//!
//! Owners in the same namespace share the lists. A list serves every owner that waited for its
//! dependents when the list began.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{ListedDependent, PartialObject, ScanRequest, ScanResult};
use portreeve_workqueue::Work;
use tokio::sync::Notify;

use super::{
    CollectorContext, lists::await_lists, monitors::resource_name, queued_object::QueuedObject, requests::RequestError,
    wait_with_progress,
};

/// The number of namespaces above which the lists of unused ones are dropped.
const MANY: usize = 1_024;

/// The lists of each namespace.
#[derive(Default)]
pub(super) struct ForegroundScans(Mutex<HashMap<Namespace, Arc<ForegroundScan>>>);

type Namespace = Option<Box<str>>;

/// The lists of one namespace. One worker at a time sends them.
#[derive(Default)]
struct ForegroundScan {
    lists: tokio::sync::Mutex<HashMap<Resource, Listed>>,
    /// Notified whenever a page has arrived or failed.
    pages: Notify,
}

/// The last complete list of a resource.
struct Listed {
    /// When it began: see `Graph::next_moment`.
    began: u64,
    /// The dependents that the graph lacked, each with the UID of its owner.
    found: Vec<(Box<str>, PartialObject)>,
}

impl ForegroundScans {
    fn scan_of(&self, namespace: &Namespace) -> Arc<ForegroundScan> {
        let mut scans = self.0.lock();
        if scans.len() >= MANY {
            scans.retain(|_, scan| Arc::strong_count(scan) > 1);
        }
        Arc::clone(scans.entry(namespace.clone()).or_default())
    }
}

impl CollectorContext {
    /// Looks for dependents of a waiting owner that the graph lacks, and adds them. Returns an
    /// error if a resource cannot be listed and the owner has to wait for it.
    pub(super) async fn scan_foreground(
        &self,
        work: &Work<QueuedObject>,
        request: &ScanRequest,
    ) -> Result<ScanResult, RequestError> {
        let owner = &request.owner;
        let resources = self.resources_to_scan(request)?;
        if resources.is_empty() || self.settings.observe {
            return Ok(ScanResult::Complete);
        }
        let scan = self.foreground_scans.scan_of(&owner.namespace);
        let mut lists = wait_with_progress(scan.lists.lock(), &scan.pages, work).await;
        let page = || {
            work.report_progress();
            scan.pages.notify_waiters();
        };
        let unlisted = self.list_for(&mut lists, request, resources, &page).await;
        if let Some(failure) = self.awaited_failure((work.key().uid, false), &unlisted) {
            return Err(failure);
        }
        if !unlisted.is_empty() {
            let resources = unlisted.keys().map(resource_name).collect::<Vec<_>>().join(", ");
            tracing::warn!(%owner, resources, "finishing foreground deletion without resources that cannot be listed");
        }
        let mut result = ScanResult::Complete;
        self.change(|graph, follow_ups| {
            for (resource, listed) in lists.iter_mut() {
                let api_version = resource.api_version();
                let kind = (&*api_version, &*resource.kind);
                listed.found.retain(|(of, seen)| {
                    let is_outdated =
                        *of == owner.uid && graph.add_listed(kind, seen, of, follow_ups) == ListedDependent::Outdated;
                    if is_outdated {
                        result = ScanResult::Outdated;
                    }
                    is_outdated || *of != owner.uid
                });
            }
        });
        Ok(result)
    }

    /// Returns the resources that are not synced, and those of the owner's known dependents.
    fn resources_to_scan(&self, request: &ScanRequest) -> Result<Vec<Resource>, RequestError> {
        let known: HashSet<_> = {
            let served = self.served.borrow();
            let served = served.as_ref();
            let kinds = request.kinds.iter();
            let known = kinds.filter_map(|(api_version, kind)| served?.lookup(api_version, kind));
            known.map(resource_name).collect()
        };
        self.resources_to_list(request.owner.namespace.as_deref(), |state| {
            !state.is_synced() || known.contains(&resource_name(&state.resource))
        })
    }

    /// Lists those of the resources whose last list began before the owner waited. Returns those
    /// that cannot be listed.
    async fn list_for(
        &self,
        lists: &mut HashMap<Resource, Listed>,
        request: &ScanRequest,
        resources: Vec<Resource>,
        page: &(dyn Fn() + Sync),
    ) -> HashMap<Resource, RequestError> {
        let is_valid = |listed: &Listed| request.since.is_some_and(|since| listed.began > since);
        let missing: Vec<_> = resources
            .into_iter()
            .filter(|resource| !lists.get(resource).is_some_and(is_valid))
            .collect();
        let requests = missing.into_iter().map(|resource| async move {
            let listed = self.list_blocking(&resource, request, page).await;
            (resource, listed)
        });
        await_lists(requests, lists).await
    }

    /// Lists a resource in the owner's namespace. Keeps the dependents that block a waiting owner
    /// and that the graph lacks.
    async fn list_blocking(
        &self,
        resource: &Resource,
        request: &ScanRequest,
        page: &(dyn Fn() + Sync),
    ) -> Result<Listed, RequestError> {
        let owner = &request.owner;
        let began = self.graph.lock().next_moment();
        let mut found = Vec::new();
        let take = |items: Vec<PartialObject>| {
            let graph = self.graph.lock();
            for seen in items {
                let owners = graph.unknown_blocked_owners(&seen, &owner.uid);
                found.extend(owners.into_iter().map(|owner| (owner, seen.clone())));
            }
        };
        self.list_resource(resource, owner.namespace.as_deref(), page, take)
            .await?;
        Ok(Listed { began, found })
    }
}
