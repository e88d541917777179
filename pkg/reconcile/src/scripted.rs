//! For tests: a client whose answers are written down, and what it was asked. Exact traffic, never a fake apiserver.

use std::{convert::Infallible, sync::Arc};

use http::{Request, Response};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The requests that a scripted client has seen, as `METHOD path`.
pub(crate) type RecordedRequests = Arc<Mutex<Vec<String>>>;

/// A client that answers request after request from `script`, and then 200 with an empty object.
pub(crate) fn client(script: Vec<(u16, Value)>) -> (Client, RecordedRequests) {
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
        async move { Ok::<_, Infallible>(answer.unwrap()) }
    });
    (Client::new(service, "default"), asked)
}

/// The body of a refusal.
pub(crate) fn refusal(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
    (code, status)
}

/// The apiserver's word that there is no such Pod.
pub(crate) fn no_pod(name: &str) -> (u16, Value) {
    let (code, mut status) = refusal(404, "NotFound");
    status["details"] = json!({"name": name, "kind": "pods"});
    (code, status)
}
