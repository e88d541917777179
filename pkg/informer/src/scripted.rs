//! A fake apiserver for unit tests. The test receives each request and writes each response.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body::{Body, Frame};
use kube::Client;
use portreeve_api::Metadata;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};
use tower::BoxError;

use crate::{Projection, Watch};

pub(crate) const FOOS: portreeve_api::Resource =
    portreeve_api::Resource::namespaced("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos");
pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(crate) fn foos() -> Watch {
    Watch::all(FOOS)
}

/// A projection with one field that may fail to decode.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Foo {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    #[expect(dead_code, reason = "the tests only check that decoding it fails")]
    spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    replicas: i32,
}

impl Projection for Foo {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Formats an object as `name@version`.
pub(crate) fn print<T: Projection>(object: &T) -> String {
    let metadata = object.metadata();
    format!("{}@{}", metadata.name, metadata.resource_version)
}

/// Returns the JSON of a valid object.
pub(crate) fn foo(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": version.to_string()}})
}

/// Returns the JSON of an object that [`Foo`] cannot decode.
pub(crate) fn bad_foo(name: &str, version: u32) -> Value {
    let mut bad = foo(name, version);
    bad["spec"] = json!({"replicas": "hunter2"});
    bad
}

pub(crate) fn list(version: u32, items: &[Value]) -> Value {
    json!({"kind": "FooList", "metadata": {"resourceVersion": version.to_string()}, "items": items})
}

/// Returns a page that is not the last one.
pub(crate) fn page(version: u32, next: &str, items: &[Value]) -> Value {
    let mut page = list(version, items);
    page["metadata"]["continue"] = next.into();
    page
}

pub(crate) fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": format!("it is {reason}")})
}

/// Lets every task run until all of them wait. In paused time this is instant.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// The fake apiserver, which passes each request to the test.
pub(crate) struct Server {
    calls: mpsc::UnboundedReceiver<Call>,
    /// Calls that arrived while the test waited for others.
    waiting: VecDeque<Call>,
}

/// A request that waits for its response.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) accept: Option<String>,
    pub(crate) at: Instant,
    reply: oneshot::Sender<Response<BodyStream>>,
}

impl Server {
    pub(crate) fn start() -> (Client, Self) {
        let (tx, calls) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (reply, answer) = oneshot::channel();
            let _ = tx.send(Call::new(&request, reply));
            async move { answer.await.map_err(|_| BoxError::from("connection refused")) }
        });
        let waiting = VecDeque::new();
        (Client::new(service, "default"), Self { calls, waiting })
    }

    /// Returns the next request.
    pub(crate) async fn call(&mut self) -> Call {
        if let Some(call) = self.waiting.pop_front() {
            return call;
        }
        let call = timeout(Duration::from_hours(1), self.calls.recv()).await;
        call.expect("no request for an hour").expect("the client exists")
    }

    /// Returns the next request for this path, and keeps requests for other paths for later calls.
    pub(crate) async fn call_for(&mut self, path: &str) -> Call {
        if let Some(position) = self.waiting.iter().position(|call| call.path == path) {
            return self.waiting.remove(position).expect("the position was just found");
        }
        let mut others = std::mem::take(&mut self.waiting);
        loop {
            let call = self.call().await;
            if call.path == path {
                self.waiting = others;
                return call;
            }
            others.push_back(call);
        }
    }

    pub(crate) async fn expect_list(&mut self) -> Call {
        let call = self.call().await;
        assert!(!call.is_watch(), "expected a list, got {call:?}");
        call
    }

    pub(crate) async fn expect_watch(&mut self, version: u32) -> Call {
        let call = self.call().await;
        assert!(call.is_watch(), "expected a watch, got {call:?}");
        assert_eq!(call.query["resourceVersion"], version.to_string());
        call
    }

    /// Checks that no request arrives within `time`.
    pub(crate) async fn expect_silence(&mut self, time: Duration) {
        let call = timeout(time, self.call()).await;
        assert!(call.is_err(), "unexpected request: {call:?}");
    }
}

impl Call {
    fn new(request: &Request<kube::client::Body>, reply: oneshot::Sender<Response<BodyStream>>) -> Self {
        let query = request.uri().query().unwrap_or_default().split('&');
        let query = query.filter_map(|pair| pair.split_once('='));
        let accept = request.headers().get(header::ACCEPT);
        Self {
            path: request.uri().path().to_owned(),
            query: query.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            accept: accept.and_then(|value| value.to_str().ok()).map(ToOwned::to_owned),
            at: Instant::now(),
            reply,
        }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|value| value == "true")
    }

    /// Returns whether the client has stopped waiting for the response.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Responds with JSON. The status code is that of the body if it is a Status, else 200.
    pub(crate) fn answer(self, body: &Value) {
        let code = body["code"]
            .as_u64()
            .map_or(200, |code| u16::try_from(code).expect("a status code"));
        self.answer_text(code, &body.to_string());
    }

    pub(crate) fn answer_text(self, code: u16, body: &str) {
        let stream = self.open(code);
        stream.text(body);
    }

    /// Breaks the connection before a response.
    pub(crate) fn refuse(self) {
        drop(self.reply);
    }

    /// Sends the head of a response. Dropping the returned handle ends the body.
    pub(crate) fn open(self, code: u16) -> ResponseBody {
        let (tx, rx) = mpsc::unbounded_channel();
        let response = Response::builder().status(code).body(BodyStream(rx));
        let _ = self.reply.send(response.expect("a valid status code"));
        ResponseBody(tx)
    }

    /// Responds to a watch request with an open stream.
    pub(crate) fn watch(self) -> ResponseBody {
        assert!(self.is_watch(), "{self:?}");
        self.open(200)
    }
}

/// The server side of a response body.
pub(crate) struct ResponseBody(mpsc::UnboundedSender<Result<Bytes, BoxError>>);

impl ResponseBody {
    pub(crate) fn text(&self, text: &str) {
        let _ = self.0.send(Ok(Bytes::from(text.to_owned())));
    }

    pub(crate) fn event(&self, type_: &str, object: &Value) {
        self.text(&format!("{}\n", json!({"type": type_, "object": object})));
    }

    pub(crate) fn bookmark(&self, version: u32) {
        self.event(
            "BOOKMARK",
            &json!({"metadata": {"resourceVersion": version.to_string()}}),
        );
    }

    /// Breaks the connection in the middle of the body.
    pub(crate) fn cut(self) {
        let _ = self.0.send(Err("connection reset by peer".into()));
    }

    /// Ends the body without an error.
    pub(crate) fn end(self) {
        drop(self);
    }

    /// Returns whether the client has stopped reading.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }
}

#[derive(Debug)]
pub(crate) struct BodyStream(mpsc::UnboundedReceiver<Result<Bytes, BoxError>>);

impl Body for BodyStream {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let data = self.0.poll_recv(cx);
        data.map(|data| data.map(|data| data.map(Frame::data)))
    }
}
