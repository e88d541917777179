//! Workers: each takes one object after another, sends the requests that are needed to decide, and
//! carries out the decision.

use std::sync::Arc;

use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{
    Attempt, AttemptStep, FOREGROUND, Identity, Intent, KeepReason, NoopReason, OwnerState, PropagationPolicy,
    ReadRequest, ReadResult, Uid,
};
use portreeve_reconcile::{EventContent, reconcile_span};
use portreeve_workqueue::{Outcome, Work};
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    CollectorContext,
    decision_log::{Action, Decision},
    failures::Task,
    key_of,
    monitors::resource_name,
    patches,
    queued_object::QueuedObject,
    requests::{self, RequestError},
};

/// How often a conflict is retried immediately with a new decision.
const CONFLICTS: u32 = 10;
/// The maximum number of steps of an attempt, far above the number of references that an object can
/// hold.
const STEPS: u32 = 10_000;
/// Processes objects until the queue is closed.
pub(super) async fn run(ctx: Arc<CollectorContext>) {
    while let Some(work) = ctx.attempts.take().await {
        let object = ctx.graph.lock().key(work.key().uid);
        let span = reconcile_span(ctx.name, object);
        let outcome = ctx.attempt(&work).instrument(span).await;
        work.finish(outcome);
    }
}

/// The result of carrying out an intent.
enum End {
    Done,
    /// The object has changed: read it and decide again.
    Again,
    Later(RequestError),
    /// The breaker has stopped deletions: wait until somebody resumes them.
    Parked,
    /// The owner waits for resources to be synced.
    Waiting(Instant),
}

impl CollectorContext {
    /// Runs one attempt to process one object. Ends its probe of a resource unless the attempt
    /// needs that resource again.
    async fn attempt(&self, work: &Work<QueuedObject>) -> Outcome {
        let uid = work.key().uid;
        let mut unknown = Vec::new();
        let outcome = self.attempt_with(work, &mut unknown).await;
        let needed: Vec<_> = unknown.iter().filter_map(|identity| self.resource(identity)).collect();
        if self
            .read_gates
            .release(uid, |resource| outcome != Outcome::Forget && needed.contains(resource))
        {
            self.retry_unknown();
        }
        outcome
    }

    /// Runs one attempt. Adds the objects that it could not read to `unknown`.
    async fn attempt_with(&self, work: &Work<QueuedObject>, unknown: &mut Vec<Identity>) -> Outcome {
        let uid = work.key().uid;
        let mut attempt = Attempt::new(uid);
        let mut conflicts = 0;
        let mut version: Box<str> = Box::default();
        for _ in 0..STEPS {
            work.report_progress();
            let step = self.graph.lock().step(&attempt);
            match step {
                AttemptStep::Read(request) => {
                    let resource = self.resource(&request.identity);
                    let fact = if resource.is_some_and(|resource| !self.read_gates.admits(&resource, uid)) {
                        ReadResult::Unknown
                    } else if conflicts > 0 {
                        self.read_live(&request.identity).await
                    } else {
                        self.read_coalesced(&request.identity).await
                    };
                    self.record_unknown(&request.identity, &fact);
                    if fact == ReadResult::Unknown {
                        unknown.push(request.identity.clone());
                    }
                    attempt.record(request, fact);
                }
                AttemptStep::Noop(rest) => return self.rest(uid, rest, unknown),
                AttemptStep::Apply(intent) => match self.carry(&intent).await {
                    End::Parked => return Outcome::Forget,
                    End::Waiting(next) => return Outcome::At(next),
                    End::Done => {
                        self.succeeded(Task::Collect(uid));
                        // No watch will report what has become of a virtual node, so process it
                        // again.
                        let is_virtual = self.graph.lock().is_virtual(uid);
                        return if is_virtual { Outcome::Retry } else { Outcome::Forget };
                    }
                    End::Later(failure) => return self.later(work, &intent, &failure),
                    End::Again if conflicts == CONFLICTS => return self.later(work, &intent, &RequestError::Conflict),
                    End::Again => {
                        conflicts += 1;
                        work.charge(1);
                        attempt = Attempt::new(uid);
                        if let Intent::Delete { version: decided, .. } = &intent {
                            version.clone_from(decided);
                        }
                        let again = intent;
                        if let Err(failure) = self.look_again(&mut attempt, &again, &mut version).await {
                            return self.later(work, &again, &failure);
                        }
                    }
                },
            }
        }
        Outcome::Retry
    }

    /// Reads the object that has changed since it had `version`, and sets `version` to the new one.
    /// Returns an error if the read fails, or if the object has not changed.
    async fn look_again(
        &self,
        attempt: &mut Attempt,
        intent: &Intent,
        version: &mut Box<str>,
    ) -> Result<(), RequestError> {
        let item = intent.item().clone();
        match self.read_live(&item).await {
            ReadResult::Found(seen) if *seen.metadata.resource_version == **version => {
                Err(RequestError::unfounded_conflict())
            }
            ReadResult::Found(seen) => {
                version.clone_from(&seen.metadata.resource_version);
                let request = ReadRequest {
                    identity: item,
                    is_item: true,
                };
                attempt.record(request, ReadResult::Found(seen));
                Ok(())
            }
            ReadResult::Absent => {
                let known = match intent {
                    Intent::Delete { version, .. } => &**version,
                    _ => "",
                };
                self.mark_gone(&item, known);
                Ok(())
            }
            ReadResult::Unknown | ReadResult::Misplaced => Err(RequestError::Conflict),
        }
    }

    /// Records that the object, last known in this version, no longer exists.
    fn mark_gone(&self, item: &Identity, version: &str) {
        self.change(|graph, follow_ups| {
            if let Some(uid) = graph.uid(&item.uid) {
                graph.mark_gone(uid, version, follow_ups);
            }
        });
    }

    /// Records whether it is known that an owner exists. Logs the first owner of a kind that is not
    /// served.
    fn record_unknown(&self, owner: &Identity, fact: &ReadResult) {
        if *fact != ReadResult::Unknown {
            return self.failures.lock().owner_known(owner);
        }
        if !self.graph.lock().is_unproven_owner(owner) {
            // It is the object of the attempt itself.
            return;
        }
        let is_first = self.failures.lock().owner_unknown(owner);
        if is_first && self.resource(owner).is_none() {
            tracing::warn!(%owner, "keeping dependents of an owner that no version of its group serves");
        }
    }

    /// Returns why an attempt could not find out whether an object exists.
    fn describe_unknown(&self, unknown: &[Identity]) -> String {
        let Some(object) = unknown.first() else {
            return "cannot determine whether an owner exists: a watch has reported another state".to_owned();
        };
        let reason = if self.resource(object).is_none() {
            "its kind is not served in any version of its group"
        } else {
            "reading it failed"
        };
        format!("cannot determine whether {object} exists: {reason}")
    }

    fn rest(&self, uid: Uid, rest: NoopReason, unknown: &[Identity]) -> Outcome {
        self.metrics.count_attempt("noop", rest_name(rest));
        match rest {
            NoopReason::Unknown | NoopReason::Kept(KeepReason::OwnerUnknown) => {
                self.failed(Task::Collect(uid), self.describe_unknown(unknown), true);
                let next = self.limit_wait_for(uid, unknown);
                // Without a request that could be repeated, wait until `retry_unknown` is called.
                // This comes after the failure was recorded, so that no call is missed.
                let waits = |identity: &Identity| {
                    let resource = self.resource(identity);
                    resource.is_none_or(|resource| self.read_gates.excludes(&resource, uid))
                };
                if !unknown.is_empty() && unknown.iter().all(waits) {
                    return Outcome::At(Instant::now() + next);
                }
                // While no request succeeds, this read has failed for the same reason.
                if self.outage.is_failing() {
                    Outcome::RetryUnavailable(self.outage.min_wait())
                } else {
                    Outcome::Retry
                }
            }
            // The object may be deleted before any watch reports it: see
            // kubernetes/kubernetes#56121.
            NoopReason::Unobserved => Outcome::Retry,
            NoopReason::Gone | NoopReason::Absent | NoopReason::Kept(_) => {
                self.succeeded(Task::Collect(uid));
                Outcome::Forget
            }
        }
    }

    fn later(&self, work: &Work<QueuedObject>, intent: &Intent, failure: &RequestError) -> Outcome {
        let uid = work.key().uid;
        let message = failure.to_string();
        tracing::debug!(item = %intent.item(), reason = message, "retrying failed attempt");
        let is_new = self.failed(Task::Collect(uid), message.clone(), false);
        if is_new {
            self.note_down(intent, &format!("failed: {message}"));
        }
        self.report_failure(
            work,
            intent.item(),
            "to change this object",
            Task::Collect(uid),
            failure,
        );
        failure.outcome(&self.outage)
    }

    /// Carries out an intent.
    async fn carry(&self, intent: &Intent) -> End {
        let (action, item) = (Action::of(intent), intent.item());
        let resource = match self.served_as(item) {
            Ok(resource) => resource,
            Err(failure) => return End::Later(failure),
        };
        if self.settings.ignored.contains(&resource_name(&resource)) {
            return End::Done;
        }
        if self.settings.observe {
            let because = because(intent);
            tracing::info!(%item, action = action.word(), because, "skipped write in observe mode");
            self.note_down(intent, "observed: nothing was written");
            self.metrics.count_attempt(action.metric(), "observed");
            return End::Done;
        }
        if matches!(intent, Intent::RemoveFinalizer { .. })
            && let Some(next) = self.wait_for_sync(item)
        {
            return End::Waiting(next);
        }
        if matches!(intent, Intent::Delete { .. }) && !self.breaker.admit(self) {
            self.breaker.park(self, item);
            return End::Parked;
        }
        let sent = self.send(intent, &resource).await;
        if matches!(intent, Intent::Delete { .. }) && sent.as_ref().is_err_and(RequestError::changed_nothing) {
            self.breaker.refund();
        }
        let result = match &sent {
            Ok(()) => "success",
            Err(RequestError::NotFound) => "gone",
            Err(RequestError::Conflict) => "conflict",
            Err(RequestError::Other { .. } | RequestError::Reported(_)) => "error",
        };
        self.metrics.count_attempt(action.metric(), result);
        match sent {
            Ok(()) => {
                tracing::info!(%item, action = action.word(), because = because(intent), "changed object");
                self.note_down(intent, "done");
                if let Intent::BreakCycle { item, cycle, .. } = intent {
                    self.note(item, &cycle_event(cycle));
                }
                End::Done
            }
            Err(RequestError::NotFound) => {
                if let Intent::Delete { version, .. } = intent {
                    self.mark_gone(item, version);
                }
                End::Done
            }
            Err(RequestError::Conflict) => End::Again,
            Err(failure) => End::Later(failure),
        }
    }

    fn note_down(&self, intent: &Intent, result: &str) {
        self.decision_log.write(Decision {
            at: self.clock.now(),
            action: Action::of(intent),
            item: intent.item().clone(),
            owners: owners(intent),
            result: result.to_owned(),
        });
    }

    async fn send(&self, intent: &Intent, resource: &Resource) -> Result<(), RequestError> {
        let item = intent.item();
        let key = key_of(resource, item);
        match intent {
            Intent::Delete {
                version,
                policy,
                unblock,
                ..
            } => self.delete(resource, item, version, *policy, unblock).await,
            Intent::BreakCycle {
                version, references, ..
            } => {
                let patch = patches::unblock(&item.uid, version, references);
                requests::patch(&self.writer, resource, &key, &patch).await.map(drop)
            }
            Intent::RemoveReferences { references, .. } => {
                let patch = patches::remove_references(&item.uid, references);
                requests::patch(&self.writer, resource, &key, &patch).await.map(drop)
            }
            Intent::RemoveFinalizer { .. } => {
                requests::remove_finalizer(&self.writer, resource, &key, &item.uid, FOREGROUND).await
            }
        }
    }

    async fn delete(
        &self,
        resource: &Resource,
        item: &Identity,
        version: &str,
        policy: PropagationPolicy,
        unblock: &[(usize, Box<str>)],
    ) -> Result<(), RequestError> {
        let key = key_of(resource, item);
        let mut version = version.to_owned();
        if !unblock.is_empty() {
            let patch = patches::unblock(&item.uid, &version, unblock);
            let seen = requests::patch(&self.writer, resource, &key, &patch).await;
            self.metrics
                .count_attempt("unblock", if seen.is_ok() { "success" } else { "error" });
            version = seen?.metadata.resource_version.into();
        }
        requests::delete(&self.writer, resource, &key, &item.uid, &version, policy).await
    }
}

fn owners(intent: &Intent) -> Vec<(Identity, OwnerState)> {
    match intent {
        Intent::Delete { owners, .. } | Intent::RemoveReferences { owners, .. } => owners.clone(),
        Intent::BreakCycle { cycle, .. } => {
            let waiting = |owner: &Identity| (owner.clone(), OwnerState::WaitingForDependents);
            cycle.iter().map(waiting).collect()
        }
        Intent::RemoveFinalizer { .. } => Vec::new(),
    }
}

/// Returns the event on an object whose reference no longer blocks the deletion of its owner.
fn cycle_event(cycle: &[Identity]) -> EventContent {
    let cause = match cycle {
        [] => "This object is its own owner and waited for its own deletion".to_owned(),
        [owner] => format!("This object and its owner {owner} waited for each other to be deleted"),
        [owner, others @ ..] => {
            let count = others.len();
            format!("This object, its owner {owner} and {count} more waited for each other to be deleted")
        }
    };
    let message = format!("{cause}. The garbage collector has set blockOwnerDeletion to false in its reference");
    EventContent::normal("ForegroundDeletionCycleBroken", "Collect", message)
}

/// Returns the owners and states that led to the intent, for the log.
fn because(intent: &Intent) -> String {
    match intent {
        Intent::RemoveFinalizer { .. } => return "no dependent blocks its deletion".to_owned(),
        Intent::BreakCycle { cycle, .. } if cycle.is_empty() => return "it waits for its own deletion".to_owned(),
        _ => {}
    }
    let owners = owners(intent);
    let owners = owners
        .iter()
        .map(|(owner, owner_state)| format!("{owner} is {}", owner_state.word()));
    owners.collect::<Vec<_>>().join(", ")
}

fn rest_name(rest: NoopReason) -> &'static str {
    match rest {
        NoopReason::Gone => "gone",
        NoopReason::Absent => "absent",
        NoopReason::Unknown => "unknown",
        NoopReason::Unobserved => "unobserved",
        NoopReason::Kept(KeepReason::BeingDeleted) => "being_deleted",
        NoopReason::Kept(KeepReason::WaitsForDependents) => "waits_for_dependents",
        NoopReason::Kept(KeepReason::NoOwner) => "no_owner",
        NoopReason::Kept(KeepReason::Owned) => "owned",
        NoopReason::Kept(KeepReason::OwnerUnknown) => "owner_unknown",
        NoopReason::Kept(KeepReason::OwnerMisplaced) => "owner_misplaced",
    }
}
