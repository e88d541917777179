//! The routes to what the daemon and its controllers show of themselves. Who may ask is decided before any of them is looked at.

use axum::{
    Router,
    extract::{Path, Query, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use portreeve_manager::{PAGES, Pages};
use portreeve_reconcile::Shown;
use serde_json::Value;

/// `/debug/controllers`, which lists the pages, and the pages below it.
pub(crate) fn routes(pages: Pages) -> Router {
    let index = async |State(pages): State<Pages>| answer(Shown::text(pages.index()));
    let page = async |State(pages): State<Pages>, Path((controller, path)): Path<(String, String)>, Query(pairs)| {
        answer(pages.show(&controller, &path, portreeve_reconcile::Query(pairs)).await)
    };
    Router::new()
        .route(PAGES, get(index))
        .route(&format!("{PAGES}/"), get(index))
        .route(&format!("{PAGES}/{{controller}}/{{page}}"), get(page))
        .with_state(pages)
}

/// `/configz`: the settings in force. They do not change while the daemon runs.
pub(crate) fn configz(in_force: &Value) -> Router {
    let text = format!("{in_force:#}\n");
    let json = HeaderValue::from_static("application/json");
    Router::new().route("/configz", get(async move || ([(CONTENT_TYPE, json)], text)))
}

fn answer(shown: Shown) -> Response {
    // A code that HTTP does not have is the page's fault.
    let status = StatusCode::from_u16(shown.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = HeaderValue::from_static(shown.content_type);
    (status, [(CONTENT_TYPE, content_type)], shown.body).into_response()
}
