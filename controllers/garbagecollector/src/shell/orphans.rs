//! Orphaning: removes the references to an owner that is deleted with `Orphan` from every
//! dependent, and then removes the finalizer `orphan` from the owner.
//!
//! Two things differ from kube-controller-manager. At most as many requests run at once as there
//! are workers. And before the finalizer is removed, every collectable resource is listed in the
//! owner's namespace: a dependent that no watch has reported yet would otherwise be collected
//! later. A resource that cannot be listed for 30 s is left out, and the owner is recorded on the
//! Lease ([`super::orphaned_owners`]).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use futures::{StreamExt, stream};
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{Identity, ORPHAN, Orphaning, ReadResult, ReferencePositions, Uid};
use portreeve_reconcile::Shutdown;
use portreeve_workqueue::{Outcome, Work};

use super::{
    CollectorContext,
    decision_log::{Action, Decision},
    dependent_scan::Scan,
    key_of,
    monitors::resource_name,
    patches,
    queued_object::QueuedObject,
    requests::{self, RequestError},
    wait_with_progress,
};

/// How often a dependent is read again immediately after a conflict.
const CONFLICTS: u32 = 10;

/// The failures to release dependents, one per resource. `None` represents all kinds that are not
/// served.
type ReleaseFailures = HashMap<Option<String>, RequestError>;

/// Processes owners until the queue is closed. A long orphaning ends early when `stop` is
/// requested; the next leader starts it again.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    while let Some(work) = ctx.orphans.take().await {
        let uid = work.key().uid;
        let ended = tokio::select! {
            ended = ctx.orphan(&work) => ended,
            () = stop.requested() => return,
        };
        let outcome = match ended {
            Ok(()) => {
                ctx.succeeded(uid, true);
                Outcome::Forget
            }
            Err(failure) => {
                let reason = failure.to_string();
                if ctx.failed((uid, true), reason.clone(), false) && matches!(failure, RequestError::Other { .. }) {
                    let owner = ctx.graph.lock().name(uid);
                    tracing::warn!(owner, reason, "retrying failed orphaning");
                }
                failure.outcome(&ctx.outage)
            }
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

impl CollectorContext {
    async fn orphan(&self, work: &Work<QueuedObject>) -> Result<(), RequestError> {
        let uid = work.key().uid;
        let Some(Orphaning { owner, dependents }) = self.graph.lock().orphaning(uid) else {
            self.dependent_scans.release(uid);
            return Ok(());
        };
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
        let mut released: BTreeSet<Box<str>> = dependents.iter().map(|(item, _)| item.uid.clone()).collect();
        let mut failed = self.release_all(work, &owner, dependents).await;
        let Scan { found, unlisted } = self.scan_dependents(work, &owner).await?;
        let strays: Vec<_> = found
            .into_iter()
            .filter(|(item, _)| released.insert(item.uid.clone()))
            .collect();
        if !strays.is_empty() {
            tracing::info!(%owner, dependents = strays.len(), "orphaning dependents that no watch has reported yet");
            failed.extend(self.release_all(work, &owner, strays).await);
        }
        let missing = self.missing_resources(uid, &unlisted, failed)?;
        if !missing.is_empty() {
            self.record_orphaned(&owner, &missing).await.inspect_err(|_| {
                for resource in unlisted.keys() {
                    self.list_failures.wait(resource, (uid, true));
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
        self.dependent_scans.release(uid);
        self.decision_log
            .write(decision(&describe(&owner, released.len(), &missing)));
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
        let owner = (uid, true);
        let missing: BTreeSet<Box<str>> = unlisted.keys().map(|resource| resource_name(resource).into()).collect();
        let awaited = self.awaited_failure(owner, unlisted);
        // The objects of a resource that cannot be listed cannot be changed either.
        let is_missing = |name: &Option<String>| match name {
            Some(name) => missing.contains(&**name),
            None => self.has_failed_long(owner),
        };
        let failed = failed.into_iter().filter(|(name, _)| !is_missing(name));
        let failures = awaited.into_iter().chain(failed.map(|(_, failure)| failure));
        match failures.max_by_key(RequestError::requested_delay) {
            Some(failure) => Err(failure),
            None => Ok(missing),
        }
    }

    async fn release_all(
        &self,
        work: &Work<QueuedObject>,
        owner: &Identity,
        dependents: Vec<(Identity, ReferencePositions)>,
    ) -> ReleaseFailures {
        let releases = dependents.into_iter().map(|(item, references)| async move {
            let name = self.resource(&item).map(|resource| resource_name(&resource));
            (name, self.release(work, owner, item, references).await)
        });
        let mut running = stream::iter(releases).buffer_unordered(self.settings.workers);
        let mut failed = ReleaseFailures::new();
        while let Some((name, end)) = running.next().await {
            // An owner with thousands of dependents takes a long time but is not stuck.
            work.report_progress();
            self.orphaned.notify_waiters();
            let result = match &end {
                Ok(()) => "success",
                Err(_) => "error",
            };
            if end.is_err() && !failed.is_empty() {
                work.charge(1);
            }
            self.metrics.count_attempt("orphan", result);
            if let Err(failure) = end {
                failed.entry(name).or_insert(failure);
            }
        }
        failed
    }

    /// Removes the references to the owner from one dependent.
    async fn release(
        &self,
        work: &Work<QueuedObject>,
        owner: &Identity,
        item: Identity,
        mut references: ReferencePositions,
    ) -> Result<(), RequestError> {
        // All owners together use at most as many concurrent requests as there are workers.
        let _permit = wait_with_progress(self.orphaning.acquire(), &self.orphaned, work).await;
        let resource = self.served_as(&item)?;
        let key = key_of(&resource, &item);
        for _ in 0..CONFLICTS {
            work.report_progress();
            let patch = patches::remove_references(&item.uid, &references);
            match requests::patch(&self.writer, &resource, &key, &patch).await {
                Ok(_) | Err(RequestError::NotFound) => return Ok(()),
                Err(RequestError::Conflict) => work.charge(1),
                Err(failure) => return Err(failure),
            }
            match self.read_live(&item).await {
                ReadResult::Found(seen) => references = seen.metadata.references_to(&owner.uid),
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
