//! The request handler of the listener: the authorization check, then health, metrics and the
//! caller's routes.
//!
//! Architecture Invariant: [`Access`] is asked before the routing, so that an unauthorized client
//! cannot find out which paths exist.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Path, Query};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Request, StatusCode};
use rustls::pki_types::CertificateDer;
use tower::ServiceExt;

use crate::access::{Access, Viewer};
use crate::metrics::{CONTENT_TYPE as METRICS_TYPE, Metrics};
use crate::{AccessControl, Check, health};

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

/// Health checks, metrics and other routes, which become a [`Service`].
#[derive(Clone)]
pub struct HttpEndpoints {
    /// Decides on every request whose path is not always allowed.
    pub access: Arc<dyn AccessControl>,
    /// The health checks.
    pub health: HealthCheckers,
    /// The metrics of the server, in the registry that `/metrics` renders.
    pub metrics: Metrics,
    /// All other routes. The health paths, `/metrics` and `/metrics/slis` never reach this router.
    pub extra_routes: Router,
}

/// The routes of a [`Server`](crate::Server), and who may use them.
#[derive(Clone)]
pub struct Service {
    /// Decides on every request whose path is not always allowed.
    pub access: Arc<dyn AccessControl>,
    /// The routes.
    pub routes: Router,
    /// The metrics of the certificate.
    pub metrics: Metrics,
}

impl From<HttpEndpoints> for Service {
    fn from(endpoints: HttpEndpoints) -> Self {
        let HttpEndpoints {
            health: HealthCheckers { livez, readyz, healthz },
            extra_routes,
            metrics,
            access,
        } = endpoints;
        let (slis, all) = (metrics.clone(), metrics.clone());
        let routes = Router::new()
            .merge(health_routes("livez", &livez, &metrics))
            .merge(health_routes("readyz", &readyz, &metrics))
            .merge(health_routes("healthz", &healthz, &metrics))
            .route("/metrics/slis", get(async move || render(slis.render_slis())))
            .route("/metrics", get(async move || render(all.render())))
            // Not merged: axum panics when two merged routers have the same route.
            .fallback_service(extra_routes);
        Self {
            access,
            routes,
            metrics,
        }
    }
}

/// Everything that a connection needs to respond to requests.
#[derive(Clone)]
pub(crate) struct RequestHandler {
    access: Access,
    routes: Router,
    request_limit: Duration,
}

impl RequestHandler {
    pub(crate) fn new(routes: Router, access: Access, request_limit: Duration) -> Self {
        Self {
            access,
            routes,
            request_limit,
        }
    }

    /// Returns whether the sender's credentials were accepted lately.
    pub(crate) fn is_known(&self, request: &Request<Body>) -> bool {
        self.access.is_known(request.headers())
    }

    /// Responds to one request within the time limit. `certificates` are those that the client has
    /// presented. Calls `begin` when the request is admitted.
    pub(crate) async fn handle(
        &self,
        mut request: Request<Body>,
        certificates: &[CertificateDer<'static>],
        begin: impl FnOnce(),
    ) -> Response {
        let responding = async {
            match self.access.admit(&mut request, certificates).await {
                Ok(()) => {
                    begin();
                    match self.routes.clone().oneshot(request).await {
                        Ok(response) => response,
                        Err(never) => match never {},
                    }
                }
                Err(rejection) => rejection,
            }
        };
        let response = tokio::time::timeout(self.request_limit, responding).await;
        let mut response =
            response.unwrap_or_else(|_| text(StatusCode::GATEWAY_TIMEOUT, "The request took too long\n".to_owned()));
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
    let summary = async move |Extension(viewer): Extension<Viewer>, Query(pairs): Query<Vec<(String, String)>>| {
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
        let lists_checks = query.verbose || !response.status.is_success();
        if lists_checks && !viewer.may_see_reasons().await {
            let response = health::summary(endpoint, &health::withhold_reasons(checks), &query);
            return text(response.status, response.body);
        }
        text(response.status, response.body)
    };
    let single = async move |Extension(viewer): Extension<Viewer>, Path(name): Path<String>| {
        let mut checks = health::with_ping(one());
        if !viewer.may_see_reasons().await {
            checks = health::withhold_reasons(checks);
        }
        health::single(&checks, &name).map_or_else(
            || StatusCode::NOT_FOUND.into_response(),
            |response| text(response.status, response.body),
        )
    };
    Router::new()
        .route(&format!("/{endpoint}"), get(summary))
        // A wildcard and not a parameter, because names may contain slashes.
        .route(&format!("/{endpoint}/{{*name}}"), get(single))
}

fn render(metrics: Result<String, prometheus::Error>) -> Response {
    match metrics {
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
