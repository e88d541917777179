//! A client for tests with scripted responses that records its requests. It is not a fake
//! apiserver.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http::{Request, Response};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The requests that a scripted client has received, as `METHOD path`.
pub(crate) type RecordedRequests = Arc<Mutex<Vec<String>>>;

/// Returns a client that answers requests in order from `script`, and then with 200 and an empty
/// object.
pub(crate) fn client(script: Vec<(u16, Value)>) -> (Client, RecordedRequests) {
    slow_client(script, Duration::ZERO)
}

/// Returns a client like [`client`] whose responses take this long.
pub(crate) fn slow_client(script: Vec<(u16, Value)>, delay: Duration) -> (Client, RecordedRequests) {
    let asked = RecordedRequests::default();
    let seen = Arc::clone(&asked);
    let script = Arc::new(Mutex::new(script.into_iter()));
    let service = tower::service_fn(move |request: Request<Body>| {
        seen.lock()
            .push(format!("{} {}", request.method(), request.uri().path()));
        let (code, body) = script.lock().next().unwrap_or((200, json!({})));
        let answer = Response::builder()
            .status(code)
            .body(Body::from(body.to_string().into_bytes()));
        async move {
            // A slow apiserver. Tests with a delay pause the time.
            tokio::time::sleep(delay).await;
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    (Client::new(service, "default"), asked)
}

/// Returns an error response with a `Status` body.
pub(crate) fn error_response(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
    (code, status)
}

/// Returns the apiserver's 404 response that names the missing Pod.
pub(crate) fn no_pod(name: &str) -> (u16, Value) {
    let (code, mut status) = error_response(404, "NotFound");
    status["details"] = json!({"name": name, "kind": "pods"});
    (code, status)
}
