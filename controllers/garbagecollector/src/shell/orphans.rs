//! Orphaning: removes the references to an owner that is deleted with `Orphan` from every
//! dependent, and then removes the finalizer `orphan` from the owner.
//!
//! Two things differ from kube-controller-manager. At most as many requests run at once as there
//! are workers. And before the finalizer is removed, every collectable resource is listed in the
//! owner's namespace: a dependent that no watch has reported yet would otherwise be collected
//! later. A resource that cannot be listed for 30 s is left out, and the owner is recorded on the
//! Lease ([`super::orphaned_owners`]). An API that is not served counts as such a resource.
//!
//! The owner is read before its dependents are changed, and again after a failed request: a restore
//! of etcd may have undone its deletion.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{StreamExt, stream};
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{Identity, ORPHAN, Orphaning, ReadResult, ReferencePositions, Uid};
use portreeve_reconcile::{Shutdown, reconcile_span};
use portreeve_workqueue::{Outcome, Work};
use tracing::Instrument;

use super::{
    CollectorContext,
    decision_log::{Action, Decision},
    dependent_scan::Scan,
    failure_reports::is_rejected,
    failures::Task,
    key_of,
    monitors::resource_name,
    orphaned_owners::ANY_RESOURCE,
    patches,
    queued_object::QueuedObject,
    requests::{self, RequestError},
    wait_with_progress,
};

/// Represents the kinds of a group that are not served.
const ANY: Resource = Resource::cluster("", "", "*", ANY_RESOURCE);

/// How often a dependent is read again immediately after a conflict.
const CONFLICTS: u32 = 10;

/// The failures to release dependents.
#[derive(Default)]
struct ReleaseFailures {
    /// One failure for each resource. A group represents its kinds that are not served.
    by_resource: HashMap<Resource, RequestError>,
}

/// Processes owners until the queue is closed. A long orphaning ends early when `stop` is
/// requested; the next leader starts it again.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    while let Some(work) = ctx.orphans.take().await {
        let uid = work.key().uid;
        let span = reconcile_span(ctx.name, ctx.graph.lock().key(uid));
        let outcome = tokio::select! {
            outcome = ctx.orphan(&work).instrument(span) => outcome,
            () = stop.requested() => return,
        };
        work.finish(outcome);
    }
}

/// Logs the end of an orphaning. Returns its result for the decision log.
fn describe(owner: &Identity, dependents: usize, missing: &BTreeSet<Box<str>>) -> String {
    let plural = if dependents == 1 { "" } else { "s" };
    let result = format!("{dependents} dependent{plural} orphaned");
    if missing.is_empty() {
        tracing::info!(%owner, dependents, "orphaned dependents");
        return result;
    }
    let resources = missing.iter().map(|name| &**name).collect::<Vec<_>>().join(", ");
    tracing::warn!(
        %owner,
        dependents,
        resources,
        "orphaned dependents, except those in resources that cannot be listed"
    );
    format!("{result}; those in {resources} are orphaned when they are found")
}

/// Returns the resource that represents all kinds of a group that are not served.
fn unserved(group: &str) -> Resource {
    Resource {
        group: group.to_owned().into(),
        ..ANY
    }
}

fn is_unserved(resource: &Resource) -> bool {
    resource.plural == ANY.plural
}

impl CollectorContext {
    /// Runs one attempt to orphan the dependents of an owner, and records its result.
    async fn orphan(&self, work: &Work<QueuedObject>) -> Outcome {
        let uid = work.key().uid;
        let orphaning = self.graph.lock().orphaning(uid);
        let Some(orphaning) = orphaning else {
            self.dependent_scans.release(uid);
            self.succeeded(Task::Orphan(uid));
            return Outcome::Forget;
        };
        let owner = orphaning.owner.clone();
        let Err(failure) = self.try_to_orphan(work, orphaning).await else {
            self.succeeded(Task::Orphan(uid));
            return Outcome::Forget;
        };
        let reason = failure.to_string();
        let is_new = self.failed(Task::Orphan(uid), reason.clone(), false);
        if is_new && !matches!(failure, RequestError::NotFound | RequestError::Conflict) {
            tracing::warn!(%owner, reason, "retrying failed orphaning");
        }
        let purpose = "to orphan the dependents of this object";
        self.report_failure(work, &owner, purpose, Task::Orphan(uid), &failure);
        failure.outcome(&self.outage)
    }

    async fn try_to_orphan(
        &self,
        work: &Work<QueuedObject>,
        Orphaning { owner, dependents }: Orphaning,
    ) -> Result<(), RequestError> {
        let uid = work.key().uid;
        let count = dependents.len();
        let decision = |result: &str| Decision {
            at: self.clock.now(),
            action: Action::Orphan,
            item: owner.clone(),
            owners: Vec::new(),
            result: result.to_owned(),
        };
        if self.settings.observe {
            tracing::info!(%owner, dependents = count, "skipped orphaning in observe mode");
            self.decision_log.write(decision("observed: nothing was written"));
            return Ok(());
        }
        self.ensure_orphaning(&owner).await?;
        let mut tried: BTreeSet<Box<str>> = dependents.iter().map(|(item, _)| item.uid.clone()).collect();
        let mut failed = self.release_all(work, &owner, dependents).await;
        let Scan { found, mut unlisted } = self.scan_dependents(work, &owner).await?;
        let strays: Vec<_> = found
            .into_iter()
            .filter(|(item, _)| tried.insert(item.uid.clone()))
            .collect();
        if !strays.is_empty() {
            tracing::info!(%owner, dependents = strays.len(), "orphaning dependents that no watch has reported yet");
            let more = self.release_all(work, &owner, strays).await;
            failed.by_resource.extend(more.by_resource);
        }
        let undiscovered = self.add_unserved(&mut unlisted, &failed);
        let missing = self.missing_resources(uid, &unlisted, failed)?;
        if !missing.is_empty() {
            // An aggregated API that has never answered blocks nothing if it cannot be recorded.
            let is_required = !missing.is_subset(&undiscovered);
            let recorded = self.record_orphaned(&owner, &missing, is_required).await;
            recorded.inspect_err(|_| {
                for resource in unlisted.keys() {
                    self.list_failures.wait(resource, Task::Orphan(uid));
                }
            })?;
        }
        if !self.graph.lock().is_orphaning(uid) {
            // The graph has lost track of the owner, or the owner is no longer orphaning. Some
            // dependents may be missing from the list, so try again.
            self.dependent_scans.release(uid);
            return Err(RequestError::Conflict);
        }
        let resource = self.served_as(&owner)?;
        let finished =
            requests::remove_finalizer(&self.writer, &resource, &key_of(&resource, &owner), &owner.uid, ORPHAN).await;
        match finished {
            Ok(()) | Err(RequestError::NotFound) => {}
            Err(failure) => return Err(failure),
        }
        // Earlier attempts may have released some of them.
        let count = self.dependent_scans.released(uid);
        self.dependent_scans.release(uid);
        self.decision_log.write(decision(&describe(&owner, count, &missing)));
        Ok(())
    }

    /// Returns the resources without which the deletion of the owner continues, because they cannot
    /// be listed. Returns a failure if it cannot continue yet.
    fn missing_resources(
        &self,
        uid: Uid,
        unlisted: &HashMap<Resource, RequestError>,
        failed: ReleaseFailures,
    ) -> Result<BTreeSet<Box<str>>, RequestError> {
        let owner = Task::Orphan(uid);
        let missing: BTreeSet<Box<str>> = unlisted.keys().map(|resource| resource_name(resource).into()).collect();
        let awaited = self.awaited_failure(owner, unlisted);
        // The objects of a resource that cannot be listed cannot be changed either. Their versions
        // may differ.
        let failed = failed.by_resource.into_iter();
        let failed = failed.filter(|(resource, _)| !missing.contains(&*resource_name(resource)));
        let failures = awaited.into_iter().chain(failed.map(|(_, failure)| failure));
        match failures.max_by_key(RequestError::requested_delay) {
            Some(failure) => Err(failure),
            None => Ok(missing),
        }
    }

    /// Returns an error unless the apiserver has the owner, and its dependents are to be orphaned.
    async fn ensure_orphaning(&self, owner: &Identity) -> Result<(), RequestError> {
        match self.read_coalesced(owner).await {
            ReadResult::Found(seen) if seen.metadata.deleting && seen.metadata.finalizers.orphan => Ok(()),
            ReadResult::Unknown => Err(RequestError::other("failed to read the owner")),
            // The watch will report what has become of the owner.
            ReadResult::Found(_) | ReadResult::Absent | ReadResult::Misplaced => Err(RequestError::Conflict),
        }
    }

    /// Adds the groups that may have dependents, but are not served: those of dependents that could
    /// not be changed, and those that discovery could not read. Returns the names of the latter.
    fn add_unserved(
        &self,
        unlisted: &mut HashMap<Resource, RequestError>,
        failed: &ReleaseFailures,
    ) -> BTreeSet<Box<str>> {
        let unknown: Vec<_> = {
            let served = self.served.borrow();
            let served = served.as_ref();
            let failed = served.into_iter().flat_map(|served| served.failed());
            let groups = failed
                .filter_map(|version| version.split_once('/'))
                .map(|(group, _)| group);
            let is_unknown = |group: &&str| {
                let mut resources = served.into_iter().flat_map(|served| served.preferred(&[]));
                !resources.any(|resource| resource.group == *group)
            };
            groups.filter(is_unknown).map(unserved).collect()
        };
        let away =
            |resource: &Resource| RequestError::other(format!("discovery of group {} has failed", resource.group));
        let is_known = |resource: &&Resource| failed.by_resource.contains_key(*resource);
        let undiscovered = unknown.iter().filter(|resource| !is_known(resource));
        let undiscovered = undiscovered.map(|resource| resource_name(resource).into()).collect();
        let unknown = unknown.into_iter().map(|resource| (away(&resource), resource));
        let known = failed.by_resource.iter().filter(|(resource, _)| is_unserved(resource));
        let known = known.map(|(resource, failure)| (failure.clone(), resource.clone()));
        for (failure, resource) in unknown.chain(known).collect::<Vec<_>>() {
            if let Err(failure) = self.report_list::<()>(&resource, Err(failure)) {
                unlisted.insert(resource, failure);
            }
        }
        undiscovered
    }

    async fn release_all(
        &self,
        work: &Work<QueuedObject>,
        owner: &Identity,
        dependents: Vec<(Identity, ReferencePositions)>,
    ) -> ReleaseFailures {
        let is_doubtful = &AtomicBool::new(false);
        let releases = dependents.into_iter().map(|(item, references)| async move {
            let of_group = || unserved(item.api_version.split_once('/').map_or("", |(group, _)| group));
            let resource = self.resource(&item).unwrap_or_else(of_group);
            let is_certain = if is_doubtful.load(Ordering::Relaxed) {
                self.ensure_orphaning(owner).await
            } else {
                Ok(())
            };
            let end = match is_certain {
                Ok(()) => self.release(work, owner, &item, references).await,
                Err(failure) => Err(failure),
            };
            if end.is_err() {
                is_doubtful.store(true, Ordering::Relaxed);
            }
            (resource, item, end)
        });
        let mut running = stream::iter(releases).buffer_unordered(self.settings.workers);
        let mut failed = ReleaseFailures::default();
        let mut count = 0;
        while let Some((resource, item, end)) = running.next().await {
            // An owner with thousands of dependents takes a long time but is not stuck.
            work.report_progress();
            self.orphaned.notify_waiters();
            let result = match &end {
                Ok(()) => "success",
                Err(_) => "error",
            };
            self.metrics.count_attempt("orphan", result);
            let Err(failure) = end else {
                self.dependent_scans.dependent_released(work.key().uid, &item.uid);
                continue;
            };
            if count > 0 {
                work.charge(1);
            }
            count += 1;
            if let Entry::Vacant(first) = failed.by_resource.entry(resource) {
                // One event for each resource shows the cause.
                if is_rejected(&failure) {
                    self.report_refusal(work, &item, "to change this object", &failure);
                }
                first.insert(failure.in_release_of(&item));
            }
        }
        failed
    }

    /// Removes the references to the owner from one dependent.
    async fn release(
        &self,
        work: &Work<QueuedObject>,
        owner: &Identity,
        item: &Identity,
        mut references: ReferencePositions,
    ) -> Result<(), RequestError> {
        // All owners together use at most as many concurrent requests as there are workers.
        let _permit = wait_with_progress(self.orphaning.acquire(), &self.orphaned, work).await;
        let resource = self.served_as(item)?;
        let key = key_of(&resource, item);
        let mut version = None;
        for _ in 0..CONFLICTS {
            work.report_progress();
            let patch = patches::remove_references(&item.uid, &references);
            match requests::patch(&self.writer, &resource, &key, &patch).await {
                // Once its owner is gone, a dependent that still refers to it would be deleted.
                Ok(result) if !result.metadata.references_to(&owner.uid).is_empty() => {
                    return Err(RequestError::restored());
                }
                Ok(_) | Err(RequestError::NotFound) => return Ok(()),
                Err(RequestError::Conflict) => work.charge(1),
                Err(failure) => return Err(failure),
            }
            match self.read_live(item).await {
                ReadResult::Found(seen) => {
                    references = seen.metadata.references_to(&owner.uid);
                    let seen = Some(seen.metadata.resource_version);
                    if version == seen && !references.is_empty() {
                        return Err(RequestError::unfounded_conflict());
                    }
                    version = seen;
                }
                ReadResult::Absent => return Ok(()),
                ReadResult::Unknown | ReadResult::Misplaced => break,
            }
            work.report_progress();
            if references.is_empty() {
                return Ok(());
            }
        }
        Err(RequestError::Conflict)
    }
}
