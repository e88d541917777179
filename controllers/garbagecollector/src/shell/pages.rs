//! The debug pages of the graph, the explanations and the decisions, and two lines of `/readyz`.

use std::sync::{Arc, Weak};

use portreeve_garbagecollector_graph::{
    GraphSnapshot, dump,
    explain::{self, ExplainContext},
};
use portreeve_reconcile::{DebugPage, DebugQuery, DebugResponse, ReadinessCheck, ReadinessChecker, ReadinessStatus};
use tokio::time::Instant;

use super::CollectorContext;

/// The number of nodes that are copied while the graph's lock is held.
const PIECE: usize = 500;

type Show = fn(&CollectorContext, &DebugQuery) -> DebugResponse;

/// Returns the debug pages.
pub(super) fn all(ctx: &Arc<CollectorContext>) -> Vec<DebugPage> {
    let pages: [(&'static str, Show); 3] = [("graph", graph), ("explain", explain), ("decisions", decisions)];
    let page = |(path, show): (&'static str, Show)| {
        let weak = Arc::downgrade(ctx);
        DebugPage {
            controller: ctx.name,
            path,
            handler: Arc::new(move |query| {
                let ctx = Weak::upgrade(&weak);
                ctx.map_or_else(
                    || DebugResponse::not_found("the garbage collector has stopped"),
                    |ctx| match unknown_format(query) {
                        Some(error) => error,
                        None => show(&ctx, query),
                    },
                )
            }),
        }
    };
    pages.into_iter().map(page).collect()
}

fn unknown_format(query: &DebugQuery) -> Option<DebugResponse> {
    let format = query.get("format")?;
    let is_known = matches!(format, "json" | "dot" | "text");
    (!is_known).then(|| {
        DebugResponse::bad_request(format!(
            "unknown format {format:?}; use json, or leave format out for dot or text"
        ))
    })
}

fn is_json(query: &DebugQuery) -> bool {
    query.get("format") == Some("json")
}

fn graph(ctx: &CollectorContext, query: &DebugQuery) -> DebugResponse {
    let around: Vec<_> = query.all("uid").collect();
    let chosen = ctx.graph.lock().select(&around);
    let mut snapshot = GraphSnapshot::default();
    // Copy the nodes in chunks, so that the watches do not wait for a page.
    for piece in chosen.chunks(PIECE) {
        ctx.graph.lock().add_to_snapshot(piece, &mut snapshot);
    }
    snapshot.sort();
    if is_json(query) {
        DebugResponse::json(&dump::json(&snapshot))
    } else {
        let mut shown = DebugResponse::text(dump::dot(&snapshot));
        shown.content_type = "text/vnd.graphviz";
        shown
    }
}

fn explain(ctx: &CollectorContext, query: &DebugQuery) -> DebugResponse {
    let Some(text) = query.get("uid").filter(|uid| !uid.is_empty()) else {
        return DebugResponse::bad_request(
            "missing parameter: use ?uid=UID, with the UID that `kubectl get -o jsonpath={.metadata.uid}` prints",
        );
    };
    let (uid, view) = {
        let graph = ctx.graph.lock();
        let uid = graph.uid(text);
        (uid, uid.and_then(|uid| graph.view(uid)))
    };
    let (Some(uid), Some(view)) = (uid, view) else {
        return DebugResponse::not_found(format!(
            "no object with UID {text} is in the graph: it does not exist, or its resource is ignored or not served; decisions?uid={text} \
             shows whether the collector has deleted it"
        ));
    };
    let failing = {
        let failing = ctx.failures.lock().reason(uid, Instant::now());
        failing.map(|(reason, duration)| (reason, duration.as_secs()))
    };
    let unserved = {
        let served = ctx.served.borrow();
        let is_served = |(version, kind): &(&str, &str)| {
            served
                .as_ref()
                .is_none_or(|served| served.lookup(version, kind).is_some())
        };
        let unserved = view.kinds().filter(|kind| !is_served(kind));
        unserved.map(|(version, kind)| (version.into(), kind.into())).collect()
    };
    let around = ExplainContext {
        unserved,
        failing,
        unsynced: ctx.unsynced(),
        tripped: ctx.breaker.tripped(),
        observes: ctx.settings.observe,
    };
    if is_json(query) {
        DebugResponse::json(&explain::json(&view, &around))
    } else {
        DebugResponse::text(explain::sentences(&view, &around).join("\n") + "\n")
    }
}

fn decisions(ctx: &CollectorContext, query: &DebugQuery) -> DebugResponse {
    DebugResponse::json(&ctx.decision_log.read(query.get("uid")))
}

/// Returns two checks that never fail readiness. Another replica could not list a failing resource
/// either, and the deletion limit, once reached, applies to all replicas.
pub(super) fn readiness_checks(ctx: &Arc<CollectorContext>) -> ReadinessChecker {
    let weak = Arc::downgrade(ctx);
    Arc::new(move || {
        let Some(ctx) = weak.upgrade() else { return Vec::new() };
        let listed = [("not synced", ctx.unsynced()), ("stale", ctx.stale())];
        let wrong = listed.into_iter().filter(|(_, resources)| !resources.is_empty());
        let wrong: Vec<_> = wrong
            .map(|(what, resources)| format!("{what}: {}", resources.join("; ")))
            .collect();
        let resources = if ctx.watched.borrow().is_empty() {
            ReadinessStatus::Note("not synced: waiting for discovery".to_owned())
        } else if wrong.is_empty() {
            ReadinessStatus::Ok
        } else {
            ReadinessStatus::Note(wrong.join("; "))
        };
        let breaker = ctx.breaker.tripped().map_or(ReadinessStatus::Ok, ReadinessStatus::Note);
        let check = |name: &str, state| ReadinessCheck {
            name: name.to_owned(),
            state,
        };
        vec![check("gc/resources", resources), check("gc/breaker", breaker)]
    })
}
