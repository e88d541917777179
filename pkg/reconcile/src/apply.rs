//! The only writer: runs a plan's effects in order and says what became of it.

use std::{sync::Arc, time::Duration};

use kube::{Client, core::response::StatusCause};
use portreeve_api::Metadata;
use portreeve_client::{ApiErrorKind, is_object_not_found, retry_after};
use serde::{Deserialize, de::IgnoredAny};

use crate::{Clock, ControllerMetrics, Effect, Events, Plan, request};

/// Turns effects into requests.
pub struct Applier {
    /// The way to the apiserver.
    pub client: Client,
    /// Where events go.
    pub events: Events,
    /// Who owns the fields that are written, and reports the events.
    pub manager: String,
    /// Do nothing: who decided logs the plan.
    pub dry_run: bool,
    /// What the controller counts.
    pub controller_metrics: ControllerMetrics,
    /// The time of day, for what is timed.
    pub clock: Arc<dyn Clock>,
}

/// What became of a plan.
#[derive(Debug)]
pub enum Applied {
    /// Everything is done.
    Done,
    /// The world is not what the plan was decided on: observe and decide again.
    Stale(EffectError),
    /// Something failed that time may cure.
    Failed {
        /// What failed.
        error: EffectError,
        /// How long the apiserver asked to be left alone.
        after: Duration,
    },
    /// Something was refused, and only people can cure that.
    Refused(EffectError),
}

/// An effect that failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {effect}")]
pub struct EffectError {
    /// What failed.
    pub effect: Box<Effect>,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Applier {
    /// Runs the plan's effects until one does not succeed.
    pub async fn run(&self, plan: &Plan) -> Applied {
        self.run_with_progress(plan, || ()).await
    }

    /// The same, and calls `step` after each, however it ended.
    pub(crate) async fn run_with_progress(&self, plan: &Plan, step: impl Fn() + Sync) -> Applied {
        if self.dry_run {
            return Applied::Done;
        }
        for effect in &plan.effects {
            let ended = self.perform(effect).await;
            step();
            if let Some(ended) = ended {
                return ended;
            }
        }
        Applied::Done
    }

    /// `None`: go on with the next effect.
    async fn perform(&self, effect: &Effect) -> Option<Applied> {
        match effect {
            Effect::Event(target, note) => self.events.send(&self.manager, target, note),
            Effect::Count { metric, by } => self.controller_metrics.count(metric, *by),
            Effect::ObserveLatency { metric, since } => {
                let latency = self.clock.now().duration_since(*since);
                self.controller_metrics.observe(metric, latency.as_secs_f64());
            }
            _ => return self.request(effect).await,
        }
        None
    }

    async fn request(&self, effect: &Effect) -> Option<Applied> {
        let request = match request::of(effect, &self.manager) {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(source) => return Some(Applied::Refused(EffectError::of(effect, source))),
        };
        match effect {
            Effect::RequireAbsent { uid, controller, .. } => {
                let answer = self.client.request::<Identified>(request).await;
                return check_absence(effect, (uid, controller), answer);
            }
            Effect::RequirePresent { uid, .. } => {
                let answer = self.client.request::<Identified>(request).await;
                return check_presence(effect, uid, answer);
            }
            _ => {}
        }
        // What was written comes back through the watch; the answer's body is read to its end and dropped.
        let answer = self.client.request::<IgnoredAny>(request).await;
        answer.err().and_then(|error| classify_error(effect, error))
    }
}

/// Of an object that may be gone, or another one, which one it is.
#[derive(Deserialize)]
struct Identified {
    metadata: Metadata,
}

/// The cache has not yet heard how an object is.
#[derive(Debug, thiserror::Error)]
enum StaleCacheError {
    #[error("it is there: the cache was behind")]
    There,
    #[error("it is gone, or going: the cache was behind")]
    Gone,
}

/// A 200 that tells of no object: nothing is concluded from it.
#[derive(Debug, thiserror::Error)]
#[error("the answer is no object: it has no metadata.uid")]
struct NoObject;

fn no_object(effect: &Effect) -> Applied {
    Applied::Failed {
        error: EffectError::of(effect, NoObject),
        after: Duration::ZERO,
    }
}

fn check_absence(
    effect: &Effect,
    (uid, controller): (&str, &str),
    answer: kube::Result<Identified>,
) -> Option<Applied> {
    let is_it = |found: &Metadata| {
        let owner = found.controller();
        *found.uid == *uid && owner.is_some_and(|owner| *owner.uid == *controller)
    };
    match answer {
        Ok(found) if found.metadata.uid.is_empty() => Some(no_object(effect)),
        Ok(found) if is_it(&found.metadata) => Some(Applied::Stale(EffectError::of(effect, StaleCacheError::There))),
        Ok(_) => None,
        Err(error) => classify_error(effect, error),
    }
}

fn check_presence(effect: &Effect, uid: &str, answer: kube::Result<Identified>) -> Option<Applied> {
    match answer {
        Ok(found) if found.metadata.uid.is_empty() => Some(no_object(effect)),
        Ok(found) if *found.metadata.uid == *uid && !found.metadata.is_terminating() => None,
        Ok(_) => Some(Applied::Stale(EffectError::of(effect, StaleCacheError::Gone))),
        // A 404 among them: then it is gone.
        Err(error) => classify_error(effect, error),
    }
}

/// What a refusal of this effect means for the plan. `None`: it is as good as done.
fn classify_error(effect: &Effect, error: kube::Error) -> Option<Applied> {
    let kind = ApiErrorKind::of(&error);
    let after = retry_after(&error).unwrap_or_default();
    let is_proven = match effect {
        Effect::Delete { target, .. } => is_object_not_found(&error, &target.resource, &target.key),
        Effect::RequireAbsent { resource, key, .. } => is_object_not_found(&error, resource, key),
        _ => false,
    };
    let gone = has_cause(&error, |cause| cause.reason == "NamespaceTerminating");
    // Another object of that name is there now: 409 while the version differs too, and 422 when only the UID does.
    let replaced = matches!(effect, Effect::Apply { .. }) && has_cause(&error, |cause| cause.field == "metadata.uid");
    let error = EffectError::of(effect, error);
    match (kind, effect) {
        (ApiErrorKind::NotFound, Effect::Delete { .. } | Effect::RequireAbsent { .. }) if is_proven => None,
        // The object that this is about goes with its namespace; its deletion is the next that is heard of it.
        (ApiErrorKind::Forbidden, Effect::Create(_)) if gone => Some(Applied::Done),
        (ApiErrorKind::Invalid, _) if replaced => Some(Applied::Stale(error)),
        // There is no namespace, or no such resource, to create it in.
        (ApiErrorKind::NotFound, Effect::Create(_)) | (ApiErrorKind::Forbidden | ApiErrorKind::Invalid, _) => {
            Some(Applied::Refused(error))
        }
        // A 404 that does not name what it is about is of somebody in between, or of a resource that is not served for now.
        (ApiErrorKind::Fenced | ApiErrorKind::Transient, _)
        | (ApiErrorKind::NotFound, Effect::Delete { .. } | Effect::RequireAbsent { .. }) => {
            Some(Applied::Failed { error, after })
        }
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
    fn of(effect: &Effect, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            effect: Box::new(effect.clone()),
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests;
