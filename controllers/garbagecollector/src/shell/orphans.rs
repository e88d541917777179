//! Orphaning: removes the references to an owner that is deleted with `Orphan` from every
//! dependent, and then removes the finalizer `orphan` from the owner.
//!
//! Two things differ from kube-controller-manager. At most as many requests run at once as there
//! are workers. And before the finalizer is removed, every collectable resource is listed in the
//! owner's namespace: a dependent that no watch has reported yet would otherwise be collected
//! later.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream};
use portreeve_garbagecollector_graph::{Identity, ORPHAN, Orphaning, ReadResult, ReferencePositions, Uid};
use portreeve_reconcile::Shutdown;
use portreeve_workqueue::{Outcome, Work};

use super::{
    CollectorContext,
    decision_log::{Action, Decision},
    key_of, patches,
    requests::{self, RequestError},
    wait_with_progress,
};

/// How often a dependent is read again immediately after a conflict.
const CONFLICTS: u32 = 10;

/// Processes owners until the queue is closed. A long orphaning ends early when `stop` is
/// requested; the next leader starts it again.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    while let Some(work) = ctx.orphans.take().await {
        let uid = *work.key();
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
                ctx.failed((uid, true), failure.to_string(), false);
                failure.outcome(&ctx.outage)
            }
        };
        work.finish(outcome);
    }
}

impl CollectorContext {
    async fn orphan(&self, work: &Work<Uid>) -> Result<(), RequestError> {
        let uid = *work.key();
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
        self.release_all(work, &owner, dependents).await?;
        let strays = self.scan_dependents(work, &owner).await?;
        let strays: Vec<_> = strays
            .into_iter()
            .filter(|(item, _)| released.insert(item.uid.clone()))
            .collect();
        if !strays.is_empty() {
            tracing::info!(%owner, dependents = strays.len(), "orphaning dependents that no watch has reported yet");
            self.release_all(work, &owner, strays).await?;
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
        tracing::info!(%owner, dependents = released.len(), "orphaned dependents");
        let plural = if released.len() == 1 { "" } else { "s" };
        let result = format!("{} dependent{plural} orphaned", released.len());
        self.decision_log.write(decision(&result));
        Ok(())
    }

    async fn release_all(
        &self,
        work: &Work<Uid>,
        owner: &Identity,
        dependents: Vec<(Identity, ReferencePositions)>,
    ) -> Result<(), RequestError> {
        let releases = dependents
            .into_iter()
            .map(|(item, references)| self.release(work, owner, item, references));
        let mut running = stream::iter(releases).buffer_unordered(self.settings.workers);
        let mut failed = None;
        while let Some(end) = running.next().await {
            // An owner with thousands of dependents takes a long time but is not stuck.
            work.report_progress();
            self.orphaned.notify_waiters();
            let result = match &end {
                Ok(()) => "success",
                Err(_) => "error",
            };
            if end.is_err() && failed.is_some() {
                work.charge(1);
            }
            self.metrics.count_attempt("orphan", result);
            failed = failed.or(end.err());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Removes the references to the owner from one dependent.
    async fn release(
        &self,
        work: &Work<Uid>,
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
