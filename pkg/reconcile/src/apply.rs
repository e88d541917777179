//! The only writer of keyed controllers: runs a plan's effects in order and reports the result.

mod list;
mod replace;

use std::{sync::Arc, time::Duration};

use kube::{Client, core::response::StatusCause};
use portreeve_api::Metadata;
use portreeve_client::{ApiErrorKind, is_object_not_found, is_unavailable, retry_after};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::{Clock, ControllerMetrics, Effect, Events, FenceMonitor, Plan, RequestState, request};

/// Turns effects into requests and sends them.
pub struct Applier {
    /// The client for the apiserver.
    pub client: Client,
    /// The event queue.
    pub events: Events,
    /// The field manager of writes and the reporter of events.
    pub manager: String,
    /// Whether to skip all effects. The worker logs the plan.
    pub dry_run: bool,
    /// The controller's own metrics.
    pub controller_metrics: ControllerMetrics,
    /// The wall clock, for latencies.
    pub clock: Arc<dyn Clock>,
    /// Records the answers to writes.
    pub fence_monitor: FenceMonitor,
}

/// The result of a plan.
#[derive(Debug)]
pub enum Applied {
    /// All effects are done, or the rest is not needed: the namespace is terminating, or this is a
    /// dry run.
    Done,
    /// The plan was based on outdated state: observe and decide again.
    Stale(EffectError),
    /// An effect failed, but a retry may succeed.
    Failed {
        /// The failed effect and its cause.
        error: EffectError,
        /// The `Retry-After` delay that the apiserver requested.
        after: Duration,
        /// How long the effect took.
        took: Duration,
    },
    /// An effect was rejected, which needs manual intervention.
    Refused(EffectError),
}

/// An effect that failed, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("failed to {effect}")]
pub struct EffectError {
    /// The failed effect.
    pub effect: Box<Effect>,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Applier {
    /// Runs the plan's effects until one does not succeed.
    pub async fn run(&self, plan: &Plan) -> Applied {
        self.run_with_progress(plan, |_| false).await
    }

    /// Like [`Applier::run`], but also calls `observe` for each [`Progress`].
    pub(crate) async fn run_with_progress(
        &self,
        plan: &Plan,
        observe: impl Fn(Progress<'_>) -> bool + Sync,
    ) -> Applied {
        self.run_counted(plan, &observe, &mut Written::default()).await
    }

    /// Like [`Applier::run_with_progress`], but also returns what it wrote, for a plan that reports
    /// a failure.
    pub(crate) async fn report(
        &self,
        plan: &Plan,
        observe: impl Fn(Progress<'_>) -> bool + Sync,
    ) -> (Applied, Written) {
        let mut written = Written::default();
        let applied = self.run_counted(plan, &observe, &mut written).await;
        (applied, written)
    }

    async fn run_counted(&self, plan: &Plan, observe: &Observe<'_>, written: &mut Written) -> Applied {
        if self.dry_run {
            return Applied::Done;
        }
        for effect in &plan.effects {
            let started = Instant::now();
            let ended = self.perform(effect, observe, written).await;
            observe(Progress::Ended);
            if let Some(mut ended) = ended {
                if let Applied::Failed { took, .. } = &mut ended {
                    *took = started.elapsed();
                }
                return ended;
            }
        }
        Applied::Done
    }

    /// Performs one effect. Returns `None` if the plan continues with the next effect.
    async fn perform(&self, effect: &Effect, observe: &Observe<'_>, written: &mut Written) -> Option<Applied> {
        match effect {
            Effect::Event(target, note) => written.writes += u32::from(self.events.send(&self.manager, target, note)),
            Effect::Count { metric, by } => self.controller_metrics.count(metric, *by),
            Effect::ObserveLatency { metric, since } => {
                let latency = self.clock.now().duration_since(*since);
                self.controller_metrics.observe(metric, latency.as_secs_f64());
            }
            _ => return self.request(effect, observe, written).await,
        }
        None
    }

    async fn request(&self, effect: &Effect, observe: &Observe<'_>, written: &mut Written) -> Option<Applied> {
        let request = match request::of(effect, &self.manager) {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(source) => return Some(Applied::Refused(EffectError::of(effect, source))),
        };
        let state = |state: RequestState<'_>| observe(Progress::Request(effect, state));
        match effect {
            Effect::RequireAbsent { uid, controller, .. } => {
                let answer = self.client.request::<Identified>(request).await;
                return check_absence(effect, uid, controller, answer);
            }
            Effect::RequirePresent { uid, .. } => {
                let answer = self.client.request::<Identified>(request).await;
                return check_presence(effect, uid, answer);
            }
            Effect::Read { .. } => {
                let answer = self.client.request::<Box<RawValue>>(request).await;
                return check_memory(effect, answer, state);
            }
            Effect::List { .. } => return self.list(effect, request, observe).await,
            Effect::Replace { .. } => return self.replace(effect, request, written).await,
            Effect::Create(_) => _ = state(RequestState::Sending),
            _ => {}
        }
        written.writes += 1;
        let answer = match effect {
            Effect::PatchStatus { .. } => {
                let patched = self.client.request::<Patched>(request).await;
                patched.map(|patched| written.status_version = Some(patched.metadata.resource_version))
            }
            Effect::Create(_) | Effect::Apply { .. } => {
                let written = self.client.request::<Box<RawValue>>(request).await;
                written.map(|written| _ = state(found(&written).unwrap_or(RequestState::Unanswered)))
            }
            // The watch delivers the written object, so the response body is read and discarded.
            _ => self.client.request::<IgnoredAny>(request).await.map(|_| ()),
        };
        self.fence_monitor.record(&answer);
        let create_state = state_after_create(effect, answer.as_ref().err());
        let ended = answer.err().and_then(|error| classify_error(effect, error));
        let delete_state = matches!(effect, Effect::Delete { .. }).then(|| match ended {
            None => RequestState::Deleted,
            Some(_) => RequestState::Changed,
        });
        create_state.or(delete_state).map(state);
        ended
    }
}

/// What a running plan reports.
#[derive(Clone, Copy)]
pub(crate) enum Progress<'a> {
    /// The request of this effect has reached this state. The answer is that of
    /// [`Reconciler::observe_request`](crate::Reconciler::observe_request).
    Request(&'a Effect, RequestState<'a>),
    /// An effect has ended, whatever its result.
    Ended,
}

/// Observes the progress of a plan.
type Observe<'a> = dyn Fn(Progress<'_>) -> bool + Sync + 'a;

/// Returns the state of a create that failed with this error. That of a successful one is its
/// response.
fn state_after_create(effect: &Effect, error: Option<&kube::Error>) -> Option<RequestState<'static>> {
    let (Effect::Create(_), Some(error)) = (effect, error) else {
        return None;
    };
    // A 429 is sent before the request is processed.
    let is_throttled = matches!(error, kube::Error::Api(status) if status.code == 429);
    Some(match ApiErrorKind::of(error) {
        ApiErrorKind::AlreadyExists => RequestState::Changed,
        ApiErrorKind::Transient | ApiErrorKind::Fenced if !is_throttled => RequestState::Unanswered,
        _ => RequestState::Rejected,
    })
}

/// Returns the state of a request whose response is this object. Returns `None` if the response is
/// not an object.
fn found(response: &RawValue) -> Option<RequestState<'_>> {
    let object: Identified = serde_json::from_str(response.get()).ok()?;
    (!object.metadata.uid.is_empty()).then_some(RequestState::Found(response))
}

/// The writes of a plan.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// The number of requests that may have changed something, and of events.
    pub(crate) writes: u32,
    /// The version that the last write of a status created.
    pub(crate) status_version: Option<Arc<str>>,
}

/// The identity of an object in a response.
#[derive(Deserialize)]
struct Identified {
    metadata: Metadata,
}

/// The version of an object in the response to a write. A response without it is a success too.
#[derive(Deserialize)]
struct Patched {
    #[serde(default)]
    metadata: Metadata,
}

/// The cache does not reflect the current state of an object.
#[derive(Debug, thiserror::Error)]
enum StaleCacheError {
    #[error("the object exists: the cache was stale")]
    There,
    #[error("the object is gone or being deleted: the cache was stale")]
    Gone,
    #[error("the object has changed, and the cache does not show it yet")]
    Changed,
    #[error("the list has an object that the cache does not show yet")]
    Unseen,
}

/// A 200 response that does not contain an object. It proves nothing about the object.
#[derive(Debug, thiserror::Error)]
#[error("the response is not an object: it has no metadata.uid")]
struct NoObject;

fn failed(effect: &Effect, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Applied {
    Applied::Failed {
        error: EffectError::of(effect, source),
        after: Duration::ZERO,
        took: Duration::ZERO,
    }
}

fn check_absence(effect: &Effect, uid: &str, controller: &str, answer: kube::Result<Identified>) -> Option<Applied> {
    let is_it = |found: &Metadata| {
        let owner = found.controller();
        *found.uid == *uid && owner.is_some_and(|owner| *owner.uid == *controller)
    };
    match answer {
        Ok(found) if found.metadata.uid.is_empty() => Some(failed(effect, NoObject)),
        Ok(found) if is_it(&found.metadata) => Some(Applied::Stale(EffectError::of(effect, StaleCacheError::There))),
        Ok(_) => None,
        Err(error) => classify_error(effect, error),
    }
}

fn check_presence(effect: &Effect, uid: &str, answer: kube::Result<Identified>) -> Option<Applied> {
    match answer {
        Ok(found) if found.metadata.uid.is_empty() => Some(failed(effect, NoObject)),
        Ok(found) if *found.metadata.uid == *uid && !found.metadata.is_terminating() => None,
        Ok(_) => Some(Applied::Stale(EffectError::of(effect, StaleCacheError::Gone))),
        // This includes a 404, which means that the object is gone.
        Err(error) => classify_error(effect, error),
    }
}

/// Checks what the reconciler remembers of an object against this answer to a read.
fn check_memory(
    effect: &Effect,
    answer: kube::Result<Box<RawValue>>,
    observe: impl Fn(RequestState<'_>) -> bool,
) -> Option<Applied> {
    let is_changed = match answer {
        Ok(response) => match found(&response) {
            Some(state) => observe(state),
            None => return Some(failed(effect, NoObject)),
        },
        Err(error) => {
            if let Some(ended) = classify_error(effect, error) {
                return Some(ended);
            }
            observe(RequestState::Absent)
        }
    };
    is_changed.then(|| Applied::Stale(EffectError::of(effect, StaleCacheError::Changed)))
}

/// Classifies an error of this effect. Returns `None` if the effect counts as done.
fn classify_error(effect: &Effect, error: kube::Error) -> Option<Applied> {
    let kind = ApiErrorKind::of(&error);
    let after = retry_after(&error).unwrap_or_default();
    let is_proven = match effect {
        Effect::Delete { target, .. } => is_object_not_found(&error, &target.resource, &target.key),
        Effect::RequireAbsent { resource, key, .. } | Effect::Read { resource, key } => {
            is_object_not_found(&error, resource, key)
        }
        _ => false,
    };
    let gone = has_cause(&error, |cause| cause.reason == "NamespaceTerminating");
    // Another object with this name exists now. The status is 409 if the version differs too, and
    // 422 if only the UID differs.
    let replaced = matches!(effect, Effect::Apply { .. }) && has_cause(&error, |cause| cause.field == "metadata.uid");
    let error = EffectError::of(effect, error);
    match (kind, effect) {
        (ApiErrorKind::NotFound, Effect::Delete { .. } | Effect::RequireAbsent { .. } | Effect::Read { .. })
            if is_proven =>
        {
            None
        }
        // The namespace is terminating, so the owner will be deleted too, and its deletion triggers
        // the next reconcile.
        (ApiErrorKind::Forbidden, Effect::Create(_)) if gone => Some(Applied::Done),
        (ApiErrorKind::Invalid, _) if replaced => Some(Applied::Stale(error)),
        // The namespace or the resource does not exist.
        (ApiErrorKind::NotFound, Effect::Create(_)) | (ApiErrorKind::Forbidden | ApiErrorKind::Invalid, _) => {
            Some(Applied::Refused(error))
        }
        // A 404 that does not name the object comes from a proxy, or from a resource that is
        // temporarily not served.
        (ApiErrorKind::Fenced | ApiErrorKind::Transient, _)
        | (
            ApiErrorKind::NotFound,
            Effect::Delete { .. } | Effect::RequireAbsent { .. } | Effect::Read { .. } | Effect::List { .. },
        ) => Some(Applied::Failed {
            error,
            after,
            took: Duration::ZERO,
        }),
        (ApiErrorKind::NotFound | ApiErrorKind::AlreadyExists | ApiErrorKind::Conflict | ApiErrorKind::Expired, _) => {
            Some(Applied::Stale(error))
        }
    }
}

fn has_cause(error: &kube::Error, is_it: impl Fn(&StatusCause) -> bool) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(is_it)
}

impl EffectError {
    /// Returns whether the apiserver was unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.source.downcast_ref().is_some_and(is_unavailable)
    }

    /// Returns whether the apiserver, or what answers for it, rejected the request.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.source.downcast_ref(), Some(kube::Error::Api(_)))
    }

    /// Returns whether the apiserver answered with an internal error.
    pub(crate) fn is_internal(&self) -> bool {
        self.code() == Some(500)
    }

    /// Returns the status code of the answer, if there was one.
    pub(crate) fn code(&self) -> Option<u16> {
        match self.source.downcast_ref() {
            Some(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }

    pub(crate) fn of(effect: &Effect, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            effect: Box::new(effect.clone()),
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests;
