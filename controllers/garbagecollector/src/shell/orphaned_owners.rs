//! The record of the owners whose dependents are still to be orphaned: an annotation of the Lease.
//!
//! When some resources cannot be listed, an owner is recorded before its finalizer `orphan` is
//! removed. The graph then decides that dependents which are found later are orphaned, also on the
//! next leader. The task of this module lists the resources until no dependent is left, and forgets
//! the owner.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::{CRDS, ObjectKey, Resource};
use portreeve_garbagecollector_graph::{Identity, OrphanedOwners, PartialObject, ReadResult};
use portreeve_informer::Verb;
use portreeve_reconcile::{EventContent, Shutdown};
use tokio::{sync::Notify, time::sleep};

use super::{
    CollectorContext, LeaseAnnotations,
    monitors::resource_name,
    requests::{self, RequestError},
};

/// The annotation with the owners and the resources that could not be listed.
const ANNOTATION: &str = "garbage-collector.portreeve.dev/orphaned-owners";
/// The name of the resource that represents all kinds of a group that were not served.
pub(super) const ANY_RESOURCE: &str = "*";
const API_SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices");
/// The delays between the attempts to list the resources: the first, and the longest.
const DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// The record on the Lease. The owners themselves are in the graph.
pub(super) struct OrphanRecord {
    lease_annotations: Option<LeaseAnnotations>,
    /// Whether the annotation was invalid when it was last read.
    is_invalid: AtomicBool,
    /// Serializes writes, so that none overwrites a later one.
    writing: tokio::sync::Mutex<()>,
    /// Notified when an owner is added.
    added: Notify,
    /// The resources that are no longer served. Owners that wait only for these are forgotten when
    /// the record is full.
    unserved: Mutex<BTreeSet<Box<str>>>,
}

impl OrphanRecord {
    pub(super) fn new(lease_annotations: Option<LeaseAnnotations>) -> Self {
        Self {
            lease_annotations,
            is_invalid: AtomicBool::new(false),
            writing: tokio::sync::Mutex::default(),
            added: Notify::new(),
            unserved: Mutex::default(),
        }
    }

    /// Adds an owner to the graph's record. If that is full, forgets owners that wait only for
    /// resources that are no longer served. Returns `false` if there is no room.
    fn add(&self, ctx: &CollectorContext, owner: &Identity, missing: &BTreeSet<Box<str>>) -> bool {
        let unserved = self.unserved.lock();
        let mut graph = ctx.graph.lock();
        let owners = graph.orphaned_owners_mut();
        while !owners.add(&owner.uid, missing) {
            let Some(evicted) = owners.evict(&unserved) else {
                return false;
            };
            tracing::warn!(
                owner = %evicted,
                "forgetting an orphaned owner: the record is full, and no resource of its dependents is served"
            );
        }
        true
    }

    /// Takes over the owners that a former leader has recorded. Call it before anything is decided.
    /// Returns whether the annotation is valid; an absent one is.
    pub(super) fn catch_up(&self, ctx: &CollectorContext) -> bool {
        let lease_annotations = self.lease_annotations.as_ref();
        let text = lease_annotations.and_then(|lease_annotations| lease_annotations.read(ANNOTATION));
        match text.map(|text| OrphanedOwners::parse(&text)).transpose() {
            Ok(owners) => {
                ctx.graph.lock().orphaned_owners_mut().merge(owners.unwrap_or_default());
                self.is_invalid.store(false, Ordering::Relaxed);
                true
            }
            Err(error) => {
                if !self.is_invalid.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        annotation = ANNOTATION,
                        reason = %error,
                        "ignoring invalid annotation of the Lease: dependents of the owners in it may be deleted; \
                         correct or remove it"
                    );
                }
                false
            }
        }
    }

    /// Writes the owners to the Lease if it has others. An invalid annotation is kept.
    async fn write(&self, ctx: &CollectorContext) -> Result<(), RequestError> {
        let Some(lease_annotations) = &self.lease_annotations else {
            return Ok(());
        };
        let _writing = self.writing.lock().await;
        if self.is_invalid.load(Ordering::Relaxed) && !self.catch_up(ctx) {
            return Err(RequestError::other(invalid(lease_annotations)));
        }
        let text = {
            let graph = ctx.graph.lock();
            let owners = graph.orphaned_owners();
            (!owners.is_empty()).then(|| owners.to_text())
        };
        if lease_annotations.read(ANNOTATION) == text {
            return Ok(());
        }
        let written = lease_annotations.write(ANNOTATION, text.as_deref()).await;
        written.map_err(|error| RequestError::other(error.to_string()))
    }
}

/// Returns the name of the annotation and of its Lease.
fn name(lease: &LeaseAnnotations) -> String {
    let lease = lease.target().map(|lease| lease.key.to_string()).unwrap_or_default();
    format!("the annotation {ANNOTATION} of Lease {lease}")
}

fn invalid(lease: &LeaseAnnotations) -> String {
    format!("{} is invalid; correct or remove it", name(lease))
}

/// Lists the missing resources until no owner is recorded.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    if ctx.settings.observe {
        return stop.requested().await;
    }
    tokio::select! {
        () = stop.requested() => {}
        () = ctx.settle_orphaned_owners() => {}
    }
}

impl CollectorContext {
    /// Records the owner on the Lease, so that its dependents in `missing` are orphaned when they
    /// are found. If that is impossible, sends an event on the owner, unless the record is not
    /// required.
    pub(super) async fn record_orphaned(
        &self,
        owner: &Identity,
        missing: &BTreeSet<Box<str>>,
        is_required: bool,
    ) -> Result<(), RequestError> {
        let record = &self.orphan_record;
        let has_room = |lease: &LeaseAnnotations| {
            if record.is_invalid.load(Ordering::Relaxed) && !record.catch_up(self) {
                return Err(invalid(lease));
            }
            let is_added = record.add(self, owner, missing);
            is_added.then_some(()).ok_or_else(|| format!("{} is full", name(lease)))
        };
        let recorded = match &record.lease_annotations {
            Some(lease) => has_room(lease),
            None => Err("the collector runs without leader election and so without a Lease".to_owned()),
        };
        if let Err(reason) = recorded {
            let resources = missing.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
            if !is_required {
                tracing::warn!(%owner, resources, reason, "finishing orphaning without a record of missing resources");
                return Ok(());
            }
            let sentence = format!(
                "The finalizer orphan stays, because dependents may exist in resources that cannot be listed ({resources}), \
                 and the collector cannot record that they are to be orphaned: {reason}. \
                 Make these resources listable, or delete their definitions."
            );
            let note = EventContent::warning("OrphaningBlocked", "Collect", &*sentence);
            self.note(owner, &note.report_once(sentence.clone()));
            return Err(RequestError::Reported(sentence));
        }
        record.added.notify_one();
        record.write(self).await
    }

    /// Settles the missing resources. Never returns.
    async fn settle_orphaned_owners(&self) {
        let mut watched = self.watched.subscribe();
        let [first, longest] = DELAYS;
        let mut delay = first;
        loop {
            let before = self.graph.lock().orphaned_owners().clone();
            for name in before.resources() {
                self.settle(&name).await;
            }
            self.forget_returned_owners().await;
            let written = self.orphan_record.write(self).await;
            if let Err(failure) = &written {
                tracing::warn!(
                    reason = failure.to_string(),
                    "failed to record orphaned owners on the Lease"
                );
            }
            let now = self.graph.lock().orphaned_owners().clone();
            delay = if now == before { longest.min(delay * 2) } else { first };
            if now.is_empty() && written.is_ok() {
                self.orphan_record.added.notified().await;
                delay = first;
            }
            sleep(first).await;
            tokio::select! {
                () = sleep(delay.saturating_sub(first)) => {}
                () = self.orphan_record.added.notified() => delay = first,
                // A resource that is synced can be listed.
                Ok(()) = watched.changed() => delay = first,
            }
        }
    }

    /// Settles a resource for the owners to which no object of it refers. The others' dependents
    /// are orphaned by attempts.
    async fn settle(&self, name: &str) {
        let owners = self.graph.lock().orphaned_owners().owners_of(name);
        let resources = self.resources_of(name);
        let mut referenced = HashSet::new();
        for resource in &resources {
            let listed = self.owners_referenced_in(resource, &owners).await;
            match self.report_list(resource, listed.map_err(|failure| failure.in_list_of(resource))) {
                Ok(found) => referenced.extend(found),
                Err(failure) => return tracing::debug!(reason = failure.to_string(), "failed to list resource"),
            }
        }
        let is_unserved = resources.is_empty() && self.is_no_longer_served(name).await;
        let unserved = &self.orphan_record.unserved;
        if is_unserved {
            unserved.lock().insert(name.into());
        } else {
            unserved.lock().remove(name);
        }
        if resources.is_empty() {
            // Its objects may be in etcd, or in the store of an aggregated API, and return.
            return;
        }
        let settled: Vec<_> = owners.into_iter().filter(|owner| !referenced.contains(owner)).collect();
        let mut graph = self.graph.lock();
        for owner in &settled {
            graph.orphaned_owners_mut().settle(owner, name);
        }
        drop(graph);
        if !settled.is_empty() {
            tracing::info!(
                resource = name,
                owners = settled.len(),
                "orphaned the remaining dependents in resource"
            );
        }
    }

    /// Returns the resource of this name, or those of a whole group. Empty if it is not served, or
    /// if the group is not known completely.
    fn resources_of(&self, name: &str) -> Vec<Resource> {
        let served = self.served.borrow();
        let Some(served) = served.as_ref() else {
            return Vec::new();
        };
        let group = name.strip_prefix(ANY_RESOURCE).map(|rest| rest.trim_start_matches('.'));
        let mut failed = served.failed().filter_map(|version| version.split_once('/'));
        if group.is_some_and(|group| failed.any(|(failed, _)| failed == group)) {
            return Vec::new();
        }
        let is_meant = |resource: &&Resource| match group {
            Some(group) => resource.group == group,
            None => resource_name(resource) == name,
        };
        let preferred = served.preferred(&[Verb::List]);
        preferred.filter(is_meant).cloned().collect()
    }

    /// Returns those of the owners to which objects of the resource refer. An object that is being
    /// deleted does not count: nothing is decided by its owners.
    async fn owners_referenced_in(
        &self,
        resource: &Resource,
        owners: &BTreeSet<Box<str>>,
    ) -> Result<HashSet<Box<str>>, RequestError> {
        let mut referenced = HashSet::new();
        let page = |items: Vec<PartialObject>| {
            let kept = items.into_iter().filter(|item| !item.metadata.deleting);
            let uids = kept
                .flat_map(|item| item.metadata.owner_references)
                .map(|owner| owner.uid);
            referenced.extend(uids.filter(|uid| owners.contains(uid)));
        };
        requests::list_all(&self.client, resource, None, page).await?;
        Ok(referenced)
    }

    /// Returns whether it is certain that a resource that discovery does not know is not served. An
    /// apiserver that has just started, or whose aggregated APIs are away, leaves out resources.
    async fn is_no_longer_served(&self, name: &str) -> bool {
        if !matches!(
            requests::get(&self.client, &CRDS, &ObjectKey::cluster(name)).await,
            Ok(None)
        ) {
            return false;
        }
        let group = name.split_once('.').map_or("", |(_, group)| group);
        let is_known = self.served.borrow().as_ref().is_some_and(|served| {
            let mut failed = served
                .failed()
                .map(|version| version.rsplit_once('/').map_or("", |(group, _)| group));
            let has_failed = failed.any(|failed| failed == group);
            !has_failed && served.preferred(&[]).any(|resource| resource.group == group)
        });
        if is_known {
            return true;
        }
        let mut has_service = false;
        let page = |services: Vec<PartialObject>| {
            let mut groups = services
                .iter()
                .filter_map(|service| service.metadata.name.split_once('.'));
            has_service |= groups.any(|(_, other)| other == group);
        };
        let listed = requests::list_all(&self.client, &API_SERVICES, None, page).await;
        listed.is_ok() && !has_service
    }

    /// Forgets the owners that exist again, because etcd was restored from a backup.
    async fn forget_returned_owners(&self) {
        let returned = self.graph.lock().returned_owners();
        for owner in returned {
            if let ReadResult::Found(seen) = self.read_live(&owner).await
                && !seen.metadata.deleting
            {
                tracing::warn!(%owner, "orphaned owner exists again, its dependents keep their references");
                self.graph.lock().orphaned_owners_mut().remove(&owner.uid);
            }
        }
    }
}
