//! Requests to etcd, over its JSON gateway.

use std::collections::BTreeMap;
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

/// What all keys of the apiserver begin with.
const REGISTRY: &str = "/registry/";
/// The number of operations that etcd accepts in one transaction.
const MOST_OPERATIONS: usize = 128;

/// A key and its value, which is empty where only keys are read.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// The revision that wrote it.
    pub(crate) revision: i64,
}

impl Stored {
    fn decode(mut found: Value) -> Result<Self> {
        let mut bytes = |name: &str| match found[name].take() {
            Value::Null => Ok(Vec::new()),
            text => serde_json::from_value::<ByteString>(text).map(|bytes| bytes.0),
        };
        Ok(Self {
            key: bytes("key")?,
            value: bytes("value")?,
            revision: revision(&found["mod_revision"])?,
        })
    }
}

fn key_value(key: &[u8], value: &[u8]) -> Value {
    let [key, value] = [key, value].map(|bytes| ByteString(bytes.into()));
    json!({"key": key, "value": value})
}

fn revision(value: &Value) -> Result<i64> {
    let text = value.as_str().context("etcd's response contains no revision")?;
    text.parse()
        .with_context(|| format!("failed to parse etcd's revision {text:?}"))
}

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
        let current = revision(&response["header"]["revision"])?;
        self.call(
            Method::POST,
            "/v3/kv/compaction",
            Some(json!({"revision": current.to_string(), "physical": true})),
        )
        .await?;
        Ok(current)
    }

    /// Returns the values of the keys that begin with `prefix`, in the order of the keys.
    pub(crate) async fn values(&self, prefix: &str) -> Result<Vec<Vec<u8>>> {
        let found = self.range(prefix, false).await?;
        Ok(found.into_iter().map(|stored| stored.value).collect())
    }

    /// Returns all that the apiserver has stored.
    pub(crate) async fn entries(&self) -> Result<Vec<Stored>> {
        self.range(REGISTRY, false).await
    }

    /// Returns all keys of the apiserver, and the revision that wrote each.
    pub(crate) async fn revisions(&self) -> Result<BTreeMap<Vec<u8>, i64>> {
        let found = self.range(REGISTRY, true).await?;
        Ok(found.into_iter().map(|stored| (stored.key, stored.revision)).collect())
    }

    /// Writes a value, and returns the revision.
    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<i64> {
        let response = self
            .call(Method::POST, "/v3/kv/put", Some(key_value(key, value)))
            .await?;
        revision(&response["header"]["revision"])
    }

    /// Removes a key, if it exists.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<()> {
        let body = json!({"key": ByteString(key.into())});
        self.call(Method::POST, "/v3/kv/deleterange", Some(body))
            .await
            .map(drop)
    }

    /// Writes values at once, before the apiserver starts.
    pub(crate) async fn load(&self, entries: &[Stored]) -> Result<()> {
        for batch in entries.chunks(MOST_OPERATIONS) {
            let operations = batch
                .iter()
                .map(|stored| json!({"requestPut": key_value(&stored.key, &stored.value)}));
            let body = json!({"success": operations.collect::<Vec<_>>()});
            self.call(Method::POST, "/v3/kv/txn", Some(body)).await?;
        }
        Ok(())
    }

    async fn range(&self, prefix: &str, keys_only: bool) -> Result<Vec<Stored>> {
        // The first key that does not begin with the prefix. No key contains its last byte, 255.
        let end = [prefix.as_bytes(), &[u8::MAX]].concat();
        let [key, end] = [prefix.into(), end].map(ByteString);
        let body = json!({"key": key, "range_end": end, "keys_only": keys_only});
        let mut response = self.call(Method::POST, "/v3/kv/range", Some(body)).await?;
        let Value::Array(found) = response["kvs"].take() else {
            return Ok(Vec::new());
        };
        found.into_iter().map(Stored::decode).collect()
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
