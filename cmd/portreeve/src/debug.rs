//! The HTTP routes of the debug pages and of `/configz`. The server authorizes requests before they
//! reach these routes.

use axum::{
    Router,
    extract::{Path, Query, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use portreeve_manager::{DEBUG_PAGES_PATH, DebugPages};
use portreeve_reconcile::DebugResponse;
use serde_json::Value;

/// Returns the routes of `/debug/controllers`, which lists the debug pages, and of the pages below
/// it.
pub(crate) fn routes(pages: DebugPages) -> Router {
    let index = async |State(pages): State<DebugPages>| http_response(DebugResponse::text(pages.index()));
    let page =
        async |State(pages): State<DebugPages>, Path((controller, path)): Path<(String, String)>, Query(pairs)| {
            http_response(
                pages
                    .show(&controller, &path, portreeve_reconcile::DebugQuery(pairs))
                    .await,
            )
        };
    Router::new()
        .route(DEBUG_PAGES_PATH, get(index))
        .route(&format!("{DEBUG_PAGES_PATH}/"), get(index))
        .route(&format!("{DEBUG_PAGES_PATH}/{{controller}}/{{page}}"), get(page))
        .with_state(pages)
}

/// Returns the route of `/configz`: the effective settings, which do not change while the daemon
/// runs.
pub(crate) fn configz(effective_config: &Value) -> Router {
    let text = format!("{effective_config:#}\n");
    let json = HeaderValue::from_static("application/json");
    Router::new().route("/configz", get(async move || ([(CONTENT_TYPE, json)], text)))
}

fn http_response(page: DebugResponse) -> Response {
    // A page that sets an invalid status code is broken, which is reported as a 500.
    let status = StatusCode::from_u16(page.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = HeaderValue::from_static(page.content_type);
    (status, [(CONTENT_TYPE, content_type)], page.body).into_response()
}
