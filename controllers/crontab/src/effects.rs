//! Builds the effects that several plans use: events, deletions, and checks that Jobs are gone.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, EventContent, Propagation, Target};

use crate::{
    api::JobReference,
    input::Input,
    job::{CachedJob, JOBS},
};

pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent::normal(reason, "Sync", message)
}

pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent::warning(reason, "Sync", message)
}

/// Returns an event about the schedule.
pub(crate) fn event(input: &Input<'_>, content: EventContent) -> Effect {
    Effect::Event(target(input), content)
}

/// Returns the schedule as the target of an effect.
pub(crate) fn target(input: &Input<'_>) -> Target {
    Target::of(&input.resource, input.metadata)
}

/// Returns the effects that delete a Job, unless it is already being deleted.
pub(crate) fn deletion(input: &Input<'_>, job: &CachedJob) -> Vec<Effect> {
    if job.metadata().is_terminating() {
        return Vec::new();
    }
    let delete = Effect::Delete {
        target: Target::of(&JOBS, job.metadata()),
        propagation: Propagation::Background,
    };
    let content = normal("SuccessfulDelete", format!("Deleted job {}", job.name()));
    // Deleting a Job that is already gone succeeds. Without `report_once`, a stale cache would
    // repeat this event.
    vec![delete, event(input, content.report_once(&*job.metadata().uid))]
}

/// Returns the effects that read these Jobs, which the watch has not shown yet.
pub(crate) fn reads<'a>(input: &Input<'_>, names: impl Iterator<Item = &'a str>) -> Vec<Effect> {
    let read = |name| Effect::Read {
        resource: JOBS,
        key: input.metadata.key().with_name(name),
    };
    names.map(read).collect()
}

/// Returns a `RequireAbsent` for each of these Jobs, which the status lists as active and the cache
/// lacks.
pub(crate) fn require_absent(input: &Input<'_>, missing: &[&JobReference]) -> impl Iterator<Item = Effect> {
    missing.iter().map(|job| Effect::RequireAbsent {
        resource: JOBS,
        key: input.metadata.key().with_name(&*job.name),
        uid: job.uid.as_str().into(),
        controller: Arc::clone(&input.metadata.uid),
    })
}
