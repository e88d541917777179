//! What operators see: the graph, why an object is kept or collected, the last decisions, and two lines of `/readyz`.

use std::sync::{Arc, Weak};

use portreeve_reconcile::{Condition, Finding, Inspect, Page, Query, Shown};

use super::Core;
use crate::{
    Shape, dump,
    explain::{self, Circumstances},
};

/// How many objects are drawn without letting anybody else at the graph.
const PIECE: usize = 500;

type Show = fn(&Core, &Query) -> Shown;

/// The pages.
pub(super) fn of(core: &Arc<Core>) -> Vec<Page> {
    let pages: [(&'static str, Show); 3] = [("graph", graph), ("explain", explain), ("decisions", decisions)];
    let page = |(path, show): (&'static str, Show)| {
        let weak = Arc::downgrade(core);
        Page {
            controller: core.name,
            path,
            show: Arc::new(move |query| {
                let core = Weak::upgrade(&weak);
                core.map_or_else(
                    || Shown::not_found("the garbage collector has ended"),
                    |core| match unknown_format(query) {
                        Some(refusal) => refusal,
                        None => show(&core, query),
                    },
                )
            }),
        }
    };
    pages.into_iter().map(page).collect()
}

fn unknown_format(query: &Query) -> Option<Shown> {
    let format = query.get("format")?;
    let is_known = matches!(format, "json" | "dot" | "text");
    (!is_known).then(|| {
        Shown::bad_request(format!(
            "format={format}: there are json, and dot or text, which is the default"
        ))
    })
}

fn is_json(query: &Query) -> bool {
    query.get("format") == Some("json")
}

fn graph(core: &Core, query: &Query) -> Shown {
    let around: Vec<_> = query.all("uid").collect();
    let chosen = core.graph.lock().choose(&around);
    let mut shape = Shape::default();
    // Piece by piece: the watches must not wait for a page.
    for piece in chosen.chunks(PIECE) {
        core.graph.lock().draw(piece, &mut shape);
    }
    shape.sort();
    if is_json(query) {
        Shown::json(&dump::json(&shape))
    } else {
        let mut shown = Shown::text(dump::dot(&shape));
        shown.content_type = "text/vnd.graphviz";
        shown
    }
}

fn explain(core: &Core, query: &Query) -> Shown {
    let Some(text) = query.get("uid").filter(|uid| !uid.is_empty()) else {
        return Shown::bad_request("explain needs ?uid=UID, as `kubectl get -o jsonpath={.metadata.uid}` prints it");
    };
    let (uid, view) = {
        let graph = core.graph.lock();
        let uid = graph.uid(text);
        (uid, uid.and_then(|uid| graph.view(uid)))
    };
    let (Some(uid), Some(view)) = (uid, view) else {
        return Shown::not_found(format!(
            "no object of UID {text} is in the graph: it does not exist, or its resource is ignored or not served; decisions?uid={text} \
             says whether the collector has deleted it"
        ));
    };
    let failing = {
        let troubles = core.troubles.lock();
        let failing = [false, true]
            .into_iter()
            .find_map(|orphaning| troubles.failing.get(&(uid, orphaning)));
        failing.map(|(since, reason)| (reason.clone(), since.elapsed().as_secs()))
    };
    let around = Circumstances {
        failing,
        unsynced: core.unsynced(),
        tripped: core.breaker.tripped(),
        observes: core.settings.observe,
    };
    if is_json(query) {
        Shown::json(&explain::json(&view, &around))
    } else {
        Shown::text(explain::sentences(&view, &around).join("\n") + "\n")
    }
}

fn decisions(core: &Core, query: &Query) -> Shown {
    Shown::json(&core.journal.read(query.get("uid")))
}

/// Two lines that never fail readiness: one resource that cannot be listed, or a limit that was reached, is nothing that another replica
/// would do better.
pub(super) fn findings(core: &Arc<Core>) -> Inspect {
    let weak = Arc::downgrade(core);
    Arc::new(move || {
        let Some(core) = weak.upgrade() else { return Vec::new() };
        let listed = [("not synced", core.unsynced()), ("stale", core.stale())];
        let wrong = listed.into_iter().filter(|(_, resources)| !resources.is_empty());
        let wrong: Vec<_> = wrong
            .map(|(what, resources)| format!("{what}: {}", resources.join("; ")))
            .collect();
        let resources = if core.watched.borrow().is_empty() {
            Condition::Note("not synced: discovery has not answered yet".to_owned())
        } else if wrong.is_empty() {
            Condition::Fine
        } else {
            Condition::Note(wrong.join("; "))
        };
        let breaker = core.breaker.tripped().map_or(Condition::Fine, Condition::Note);
        let finding = |name: &str, state| Finding {
            name: name.to_owned(),
            state,
        };
        vec![finding("gc/resources", resources), finding("gc/breaker", breaker)]
    })
}
