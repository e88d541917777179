//! The page that explains why a namespace still exists, and a line of `/readyz`.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::SignedDuration;
use portreeve_reconcile::{DebugPage, DebugQuery, DebugResponse, ReadinessCheck, ReadinessChecker, ReadinessStatus};

use super::{
    NamespaceContext,
    other_manager::yielded,
    tracked::{Progress, Tracked},
};
use crate::findings::Findings;

/// Returns the page `explain`.
pub(super) fn explain(ctx: &Arc<NamespaceContext>) -> DebugPage {
    let weak = Arc::downgrade(ctx);
    DebugPage {
        controller: ctx.name,
        path: "explain",
        handler: Arc::new(move |query| {
            Weak::upgrade(&weak).map_or_else(
                || DebugResponse::not_found("namespace-controller has stopped"),
                |ctx| ctx.explain(query),
            )
        }),
    }
}

/// Returns a check that never fails readiness: another replica could not delete the namespaces
/// either.
pub(super) fn readiness_checker(ctx: &Arc<NamespaceContext>) -> ReadinessChecker {
    let weak = Arc::downgrade(ctx);
    Arc::new(move || {
        let Some(ctx) = weak.upgrade() else { return Vec::new() };
        vec![ReadinessCheck {
            name: "namespaces/stuck".to_owned(),
            state: ctx.stuck_note().map_or(ReadinessStatus::Ok, ReadinessStatus::Note),
        }]
    })
}

impl NamespaceContext {
    fn stuck_note(&self) -> Option<String> {
        let limit = self.settings.stuck_after;
        let (_, stuck, oldest) = self.tracked.ages(limit);
        let (age, name) = oldest.filter(|_| stuck > 0)?;
        Some(format!(
            "{stuck} namespaces have been terminating for more than {:#}, {name} for {:#}: \
             /debug/controllers/{}/explain?name={name} shows why",
            seconds(limit),
            seconds(age),
            self.name
        ))
    }

    fn explain(&self, query: &DebugQuery) -> DebugResponse {
        let Some(name) = query.get("name").filter(|name| !name.is_empty()) else {
            let names = self.tracked.names(|_| true);
            return DebugResponse::bad_request(if names.is_empty() {
                "missing parameter: use ?name=NAMESPACE. No namespace is being deleted".to_owned()
            } else {
                format!(
                    "missing parameter: use ?name=NAMESPACE. Being deleted: {}",
                    names.join(" ")
                )
            });
        };
        match self.tracked.get(name) {
            Some(tracked) => DebugResponse::text(self.sentences(name, &tracked).join("\n") + "\n"),
            None => DebugResponse::not_found(format!(
                "namespace {name} is not being deleted: it does not exist, or nobody has deleted it"
            )),
        }
    }

    fn sentences(&self, name: &str, tracked: &Tracked) -> Vec<String> {
        let mut lines = vec![format!(
            "Namespace {name} ({}) has been terminating for {:#}, since this replica first saw it.",
            tracked.uid,
            seconds(tracked.since.elapsed())
        )];
        if let Some(deleted) = tracked.deleted_at {
            lines.push(format!("It was deleted at {deleted}."));
        }
        match &tracked.state {
            Progress::Started => lines.push("Its content is not deleted yet.".to_owned()),
            Progress::Finalized => lines.push(
                "Its content is deleted. It waits for others: for a finalizer in metadata.finalizers, or for one in spec.finalizers other \
                 than kubernetes."
                    .to_owned(),
            ),
            Progress::Protected => lines.push("This controller never touches this namespace.".to_owned()),
            Progress::Held(at) => lines.push(format!(
                "It was empty at {at}. It is kept for up to {:#}, because a deletion of its content got no answer and may still be on its way.",
                seconds(self.settings.late())
            )),
            Progress::Yielded(holder) => lines.push(format!("This controller leaves it alone: {}.", yielded(holder))),
            Progress::Failed(at, why) => lines.push(format!("The last attempt, at {at}, failed: {why}.")),
            Progress::Remaining(at, findings) => {
                lines.push(format!("The last attempt was at {at}."));
                lines.extend(describe(findings));
            }
        }
        if self.settings.observe {
            lines.push("This replica only observes: it deletes and changes nothing.".to_owned());
        }
        lines
    }
}

/// Returns the duration in whole seconds, which prints without fractions.
fn seconds(duration: Duration) -> SignedDuration {
    SignedDuration::from_secs(duration.as_secs().cast_signed())
}

/// Describes what is left, and what cannot be asked.
fn describe(findings: &Findings) -> Vec<String> {
    let hidden = findings
        .hidden
        .iter()
        .map(|why| format!("It may have objects that cannot be listed: {why}."));
    let failures = findings
        .failures
        .iter()
        .map(|(name, why)| format!("{} failed: {why}.", name.plain()));
    let mut lines: Vec<_> = hidden.chain(failures).collect();
    if findings.count() > 0 {
        lines.push(format!("{} objects are left:", findings.count()));
        lines.extend(findings.samples().iter().map(|sample| format!("  {sample}")));
    }
    lines
}
