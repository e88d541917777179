//! The request handler of the listener: the authorization check, then health, metrics and the
//! caller's routes.
//!
//! Architecture Invariant: the authorization check runs before the routing, so that an unauthorized
//! client cannot find out which paths exist.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request, StatusCode};
use prometheus::Registry;
use tower::ServiceExt;

use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics};
use crate::{AllowedPaths, Check, health};

/// Evaluates all checks of an endpoint once. It runs for each request on the runtime's threads, so
/// it must only read cached state and must not block or compute for long.
pub type HealthChecker = Arc<dyn Fn() -> Vec<Check> + Send + Sync>;

/// The checks of each health endpoint. The server always adds `ping` as the first check.
#[derive(Clone)]
pub struct HealthCheckers {
    /// Fails when only a restart helps.
    pub livez: HealthChecker,
    /// Fails when this replica cannot do its work now.
    pub readyz: HealthChecker,
    /// Kubernetes' older endpoint, which kube-controller-manager still serves.
    pub healthz: HealthChecker,
}

/// The content that a [`Server`](crate::Server) serves.
#[derive(Clone)]
pub struct HttpEndpoints {
    /// The health checks.
    pub health: HealthCheckers,
    /// The registry that `/metrics` renders. The server adds its own metrics and those of the
    /// process, so each registry can be served only once.
    pub registry: Registry,
    /// All other routes. The health paths and `/metrics` never reach this router.
    pub extra_routes: Router,
}

/// Everything that a connection needs to respond to requests.
#[derive(Clone)]
pub(crate) struct RequestHandler {
    allowed: Arc<AllowedPaths>,
    routes: Router,
    request_limit: Duration,
}

impl RequestHandler {
    /// Creates the handler. `metrics` belong to the registry of the endpoints.
    pub(crate) fn new(
        endpoints: HttpEndpoints,
        metrics: Metrics,
        allowed: AllowedPaths,
        request_limit: Duration,
    ) -> Self {
        let HttpEndpoints {
            health: HealthCheckers { livez, readyz, healthz },
            extra_routes,
            ..
        } = endpoints;
        let routes = Router::new()
            .merge(health_routes("livez", &livez, &metrics))
            .merge(health_routes("readyz", &readyz, &metrics))
            .merge(health_routes("healthz", &healthz, &metrics))
            .route("/metrics", get(async move || render(&metrics)))
            // Not merged: axum panics when two merged routers have the same route.
            .fallback_service(extra_routes);
        Self {
            allowed: Arc::new(allowed),
            routes,
            request_limit,
        }
    }

    /// Responds to one request within the time limit.
    pub(crate) async fn handle(&self, request: Request<Body>) -> Response {
        let mut response = if self.allowed.allow(request.uri().path()) {
            match tokio::time::timeout(self.request_limit, self.routes.clone().oneshot(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => text(StatusCode::GATEWAY_TIMEOUT, "The request took too long\n".to_owned()),
            }
        } else {
            text(StatusCode::UNAUTHORIZED, "Unauthorized\n".to_owned())
        };
        // Responses show the current state, so they must not be cached, and they are never HTML.
        let headers = response.headers_mut();
        headers
            .entry(CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

fn health_routes(endpoint: &'static str, checker: &HealthChecker, metrics: &Metrics) -> Router {
    let (all, one, metrics) = (Arc::clone(checker), Arc::clone(checker), metrics.clone());
    let summary = async move |Query(pairs): Query<Vec<(String, String)>>| {
        let query = health::Query::from_pairs(pairs);
        let checks = health::with_ping(all());
        metrics.observe(
            endpoint,
            &checks,
            checks.iter().filter(|check| !query.exclude.contains(&check.name)),
        );
        let response = health::summary(endpoint, &checks, &query);
        if !response.status.is_success() {
            tracing::debug!(endpoint, checks = response.body, "health check failed");
        }
        text(response.status, response.body)
    };
    let single = async move |Path(name): Path<String>| {
        let response = health::single(&health::with_ping(one()), &name);
        response.map_or_else(
            || StatusCode::NOT_FOUND.into_response(),
            |response| text(response.status, response.body),
        )
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(summary))
        // A wildcard and not a parameter, because names may contain slashes.
        .route(&format!("/{endpoint}/{{*name}}"), get(single))
}

fn render(metrics: &Metrics) -> Response {
    match metrics.render() {
        Ok(body) => ([(CONTENT_TYPE, METRICS_TYPE)], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "failed to encode the metrics");
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed to encode the metrics: see the log\n".to_owned(),
            )
        }
    }
}

fn text(status: StatusCode, body: String) -> Response {
    (status, body).into_response()
}

#[cfg(test)]
mod corpus;
