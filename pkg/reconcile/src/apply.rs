//! The only writer: runs a plan's effects in order and says what became of it.

use std::time::Duration;

use kube::Client;
use portreeve_client::{Answer, retry_after};
use serde::de::IgnoredAny;

use crate::{Effect, Events, Plan, request};

/// How soon a refusal that only people can cure is tried again. A 403 ends with a change of RBAC, of which no watch tells.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

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
}

/// What became of a plan.
#[derive(Debug)]
pub enum Applied {
    /// Everything is done.
    Done,
    /// The world is not what the plan was decided on: observe and decide again.
    LookAgain,
    /// Something failed that time may cure.
    Failed {
        /// What failed.
        error: EffectError,
        /// How long the apiserver asked to be left alone.
        after: Duration,
    },
    /// Something was refused that trying again soon cannot cure.
    Refused {
        /// What was refused.
        error: EffectError,
        /// When to try again all the same.
        after: Duration,
    },
}

/// An effect that failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {effect}")]
pub struct EffectError {
    effect: String,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Applier {
    /// Runs the plan's effects until one does not succeed.
    pub async fn run(&self, plan: &Plan) -> Applied {
        if self.dry_run {
            return Applied::Done;
        }
        for effect in &plan.effects {
            if let Some(stop) = self.perform(effect).await {
                return stop;
            }
        }
        Applied::Done
    }

    /// `None`: go on with the next effect.
    async fn perform(&self, effect: &Effect) -> Option<Applied> {
        if let Effect::Event(target, note) = effect {
            self.events.send(&self.manager, target, note);
            return None;
        }
        let request = match request::of(effect, &self.manager) {
            Ok(Some(request)) => request,
            Ok(None) => return None,
            Err(source) => {
                let error = EffectError::of(effect, source);
                let after = REFUSED_PAUSE;
                return Some(Applied::Refused { error, after });
            }
        };
        // What was written comes back through the watch; the answer's body is read to its end and dropped.
        let answer = self.client.request::<IgnoredAny>(request).await;
        answer.err().and_then(|error| judge(effect, error))
    }
}

/// What a refusal of this effect means for the plan. `None`: it is as good as done.
fn judge(effect: &Effect, error: kube::Error) -> Option<Applied> {
    let after = retry_after(&error).unwrap_or_default();
    match (Answer::of(&error), effect) {
        (Answer::NotFound, Effect::Delete { .. }) => None,
        (Answer::Invalid, Effect::Apply { .. }) if is_about_the_uid(&error) => Some(Applied::LookAgain),
        // There is no namespace, or no such resource, to create it in.
        (Answer::NotFound, Effect::Create(_)) | (Answer::Forbidden | Answer::Invalid, _) => Some(Applied::Refused {
            error: EffectError::of(effect, error),
            after: REFUSED_PAUSE,
        }),
        (Answer::NotFound | Answer::AlreadyExists | Answer::Conflict | Answer::Expired, _) => Some(Applied::LookAgain),
        (Answer::Fenced | Answer::Transient, _) => Some(Applied::Failed {
            error: EffectError::of(effect, error),
            after,
        }),
    }
}

/// Whether another object of that name is there now. The apiserver says 409 while the version differs too, and 422 when only the UID
/// does.
fn is_about_the_uid(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.field == "metadata.uid")
}

impl EffectError {
    fn of(effect: &Effect, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self {
            effect: effect.to_string(),
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests;
