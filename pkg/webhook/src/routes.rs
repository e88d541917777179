//! The routes of the listener: a path for each webhook, and `/readyz`.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::{
    Request, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE},
};
use jiff::Timestamp;
use portreeve_api::Resource;
use portreeve_client::parse_duration;
use portreeve_reconcile::{
    Clock,
    admission::{Webhook, WebhookHandler},
};
use serde_json::Value;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    Metrics,
    answer::{Answer, BadRequest},
    body::Buffers,
    conversion,
    lanes::Lanes,
    review,
};

/// The longest time limit of a call, also of one that names none. The configurations set 5 s.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the objects of a resource in a namespace, or `None` if they are not known.
pub type ParameterLister = Arc<dyn Fn(&Resource, &str) -> Option<Vec<Arc<Value>>> + Send + Sync>;

/// Returns why this replica should not get requests, or `None` if it should.
pub type Readiness = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What the routes need.
#[derive(Clone)]
pub struct Routes {
    /// The webhooks. Their paths must be unique.
    pub webhooks: Vec<Webhook>,
    /// Lists the parameters of webhooks.
    pub parameters: ParameterLister,
    /// Decides on `/readyz`.
    pub readiness: Readiness,
    /// The metrics.
    pub metrics: Metrics,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
}

impl Routes {
    /// Returns the router.
    pub fn into_router(self) -> Router {
        let Self {
            webhooks,
            parameters,
            readiness,
            metrics,
            clock,
        } = self;
        let buffers = Arc::new(Buffers::default());
        let lanes = Arc::new(Lanes::default());
        let readyz = Arc::clone(&readiness);
        let mut router = Router::new().route("/readyz", get(async move || readiness_response(&readyz)));
        for webhook in webhooks {
            let path = webhook.path();
            metrics.start(&path, &webhook.handler);
            let endpoint = Arc::new(Endpoint {
                path: path.clone(),
                webhook,
                parameters: Arc::clone(&parameters),
                readiness: Arc::clone(&readiness),
                metrics: metrics.clone(),
                clock: Arc::clone(&clock),
                buffers: Arc::clone(&buffers),
                lanes: Arc::clone(&lanes),
            });
            router = router.route(&path, post(move |request| Arc::clone(&endpoint).respond(request)));
        }
        router
    }
}

fn readiness_response(readiness: &Readiness) -> Response {
    match readiness() {
        None => "ok".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

/// One webhook.
struct Endpoint {
    path: String,
    webhook: Webhook,
    parameters: ParameterLister,
    readiness: Readiness,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    buffers: Arc<Buffers>,
    lanes: Arc<Lanes>,
}

impl Endpoint {
    async fn respond(self: Arc<Self>, request: Request<Body>) -> Response {
        let began = Instant::now();
        let in_flight = self.metrics.begin(&self.path);
        let limit = time_limit(request.uri().query());
        let response = timeout(limit, self.review(request)).await;
        let mut response = response.unwrap_or_else(|_| {
            failure(
                StatusCode::GATEWAY_TIMEOUT,
                "the request was not received and answered in time",
            )
        });
        if (self.readiness)().is_some() {
            // The apiserver keeps connections open; the next one should reach another replica.
            response.headers_mut().insert(CONNECTION, CLOSE);
        }
        self.metrics
            .observe(&self.path, response.status().as_u16(), began.elapsed());
        drop(in_flight);
        response
    }

    async fn review(self: &Arc<Self>, request: Request<Body>) -> Response {
        let content_type = request.headers().get(CONTENT_TYPE);
        if !content_type.and_then(|value| value.to_str().ok()).is_some_and(is_json) {
            return self.bad_request(&"the Content-Type is not application/json");
        }
        let (body, reserved) = match self.buffers.read(request.into_body()).await {
            Ok(read) => read,
            Err(error) => return self.bad_request(&error),
        };
        let lane = match self.webhook.handler {
            WebhookHandler::Convert(_) => self.lanes.of_conversions().await,
            _ => self.lanes.of_reviews(review::namespace(&body).as_deref()).await,
        };
        // Not on the thread of the connections, so that a long review delays no other answer.
        let (endpoint, mut running) = (Arc::clone(self), JoinSet::new());
        running.spawn_blocking(move || {
            let _lane = lane;
            endpoint.answer(&body, endpoint.clock.now())
        });
        match running.join_next().await {
            Some(Ok(Ok(answer))) => {
                self.metrics.count_decision(&self.path, answer.decision);
                let headers = [
                    (CONTENT_TYPE, "application/json".to_owned()),
                    (CONTENT_LENGTH, answer.body.len().to_string()),
                ];
                (headers, reserved.into_body(answer.body)).into_response()
            }
            Some(Ok(Err(error))) => self.bad_request(&error),
            Some(Err(_)) | None => {
                self.metrics.count_panic();
                tracing::error!(webhook = self.webhook.name, "recovered from a panic of a webhook");
                failure(StatusCode::INTERNAL_SERVER_ERROR, &"the webhook panicked")
            }
        }
    }

    fn answer(&self, body: &[u8], now: Timestamp) -> Result<Answer, BadRequest> {
        if let WebhookHandler::Convert(convert) = self.webhook.handler {
            return conversion::answer(body, convert);
        }
        let request = review::read(&self.webhook, body)?;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let parameters = match &self.webhook.parameters {
            Some(resource) => (self.parameters)(resource, namespace),
            None => Some(Vec::new()),
        };
        review::answer(&self.webhook, request, parameters.as_deref(), now)
    }

    fn bad_request(&self, reason: &dyn std::fmt::Display) -> Response {
        tracing::debug!(webhook = self.webhook.name, %reason, "rejected a request that is no valid review");
        failure(StatusCode::BAD_REQUEST, reason)
    }
}

const CLOSE: http::HeaderValue = http::HeaderValue::from_static("close");

fn failure(status: StatusCode, reason: &(impl std::fmt::Display + ?Sized)) -> Response {
    (status, format!("{reason}\n")).into_response()
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

/// Returns the time limit for a call: a tenth below that of the apiserver, so that the response
/// arrives before the apiserver gives up.
fn time_limit(query: Option<&str>) -> Duration {
    let mut pairs = query.unwrap_or_default().split('&');
    let given = pairs.find_map(|pair| pair.strip_prefix("timeout="));
    let given = given.and_then(|text| parse_duration(text).ok());
    given.unwrap_or(LONGEST_TIMEOUT).min(LONGEST_TIMEOUT) * 9 / 10
}

#[cfg(test)]
mod tests;
