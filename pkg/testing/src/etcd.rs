//! Requests to etcd, over its JSON gateway.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::time::timeout;

/// The time limit of one request. Compacting a test's revisions takes milliseconds.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// An etcd endpoint. Each request opens a new connection, so any runtime may use it.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    url: String,
}

impl Etcd {
    pub(crate) fn new(url: String) -> Self {
        Self { url }
    }

    pub(crate) async fn health(&self) -> Result<()> {
        self.call(Method::GET, "/health", None).await.map(drop)
    }

    /// Drops every revision before the current one, also on disk, and returns the current one.
    pub(crate) async fn compact(&self) -> Result<i64> {
        // Every response includes the revision, so any key will do. The key of this request, a zero
        // byte, does not exist.
        let response = self
            .call(Method::POST, "/v3/kv/range", Some(json!({"key": "AA=="})))
            .await?;
        let revision = response["header"]["revision"]
            .as_str()
            .context("etcd's response contains no revision")?;
        self.call(
            Method::POST,
            "/v3/kv/compaction",
            Some(json!({"revision": revision, "physical": true})),
        )
        .await?;
        revision
            .parse()
            .with_context(|| format!("failed to parse etcd's revision {revision:?}"))
    }

    /// Writes a value.
    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<()> {
        let [key, value] = [key, value].map(|text| ByteString(text.into()));
        let body = json!({"key": key, "value": value});
        self.call(Method::POST, "/v3/kv/put", Some(body)).await.map(drop)
    }

    /// Returns the values of the keys that begin with `prefix`, in the order of the keys.
    pub(crate) async fn values(&self, prefix: &str) -> Result<Vec<Vec<u8>>> {
        // The first key that does not begin with the prefix. No key contains its last byte, 255.
        let end = [prefix.as_bytes(), &[u8::MAX]].concat();
        let [key, end] = [prefix.into(), end].map(ByteString);
        let body = json!({"key": key, "range_end": end});
        let response = self.call(Method::POST, "/v3/kv/range", Some(body)).await?;
        let found = response["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let decode = |found: &Value| {
            let value: ByteString = serde_json::from_value(found["value"].clone())?;
            anyhow::Ok(value.0)
        };
        found.iter().map(decode).collect()
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(
                body.map(|body| Bytes::from(body.to_string())).unwrap_or_default(),
            ))
            .context("failed to build a request to etcd")?;
        let exchange = async {
            let response = client.request(request).await.context("failed to reach etcd")?;
            let status = response.status();
            let body = response
                .into_body()
                .collect()
                .await
                .context("failed to read etcd's response")?
                .to_bytes();
            ensure!(
                status.is_success(),
                "etcd responded to {path} with {status}: {}",
                String::from_utf8_lossy(&body)
            );
            serde_json::from_slice(&body).with_context(|| format!("failed to parse etcd's response to {path}"))
        };
        timeout(REQUEST_LIMIT, exchange)
            .await
            .with_context(|| format!("etcd did not respond to {path} within {REQUEST_LIMIT:?}"))?
    }
}
