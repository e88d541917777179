//! The HTTP routes of the debug pages, and of pages about the process. The server authorizes
//! requests before they reach these routes.

use std::time::SystemTime;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Path, Query, State},
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use portreeve_manager::{DEBUG_PAGES_PATH, DebugPages};
use portreeve_reconcile::DebugResponse;
use portreeve_serving::ZPages;
use serde_json::Value;

use crate::{
    feature_gates::{Feature, is_enabled},
    logging,
    metrics::RUSTC_VERSION,
    options::Config,
    profile,
};

/// The paths that `/statusz` lists.
const PATHS: [&str; 9] = [
    "/configz",
    "/debug/controllers",
    profile::PATH,
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/readyz",
];
/// The longest body of a request, which is a log level.
const LONGEST_BODY: usize = 64;

/// Returns the routes of the debug pages and of the pages about the process.
pub(crate) fn all(pages: DebugPages, config: &Config) -> Router {
    routes(pages).merge(about_the_process(config))
}

/// Returns the routes of `/debug/controllers`, which lists the debug pages, and of the pages below
/// it.
fn routes(pages: DebugPages) -> Router {
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

/// Returns the routes of `/configz`, `/flagz`, `/statusz`, `/debug/flags/v` and
/// `/debug/pprof/profile`.
fn about_the_process(config: &Config) -> Router {
    let gates = &config.options.manager.feature_gates;
    let pages = ZPages {
        component: "portreeve",
        version: env!("CARGO_PKG_VERSION"),
        rust_version: RUSTC_VERSION,
        flags: is_enabled(gates, Feature::ComponentFlagz).then(|| config.flag_values.clone()),
        paths: is_enabled(gates, Feature::ComponentStatusz).then(|| PATHS.to_vec()),
        started: SystemTime::now(),
    };
    let verbosity = put(set_verbosity).layer(DefaultBodyLimit::max(LONGEST_BODY));
    configz(&config.effective)
        .merge(pages.routes())
        .merge(profile::routes())
        .route("/debug/flags/v", verbosity)
}

/// Sets the log level to the one in the body, as in Kubernetes.
async fn set_verbosity(body: String) -> (StatusCode, String) {
    let text = body.trim();
    let Ok(verbosity) = text.parse() else {
        let problem = format!("failed to set the log level to {text:?}: send a number from 0 to 255, as in -v\n");
        return (StatusCode::BAD_REQUEST, problem);
    };
    match logging::set_verbosity(verbosity) {
        Ok(()) => {
            tracing::info!(v = verbosity, "changed log level");
            (
                StatusCode::OK,
                format!("successfully set the log level to {verbosity}\n"),
            )
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

/// Returns the route of `/configz`: the effective settings, which do not change while the daemon
/// runs.
fn configz(effective_config: &Value) -> Router {
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
