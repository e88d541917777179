//! The HTTPS endpoints of a daemon: health and metrics.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Config, client::Body};
use portreeve_testing::eventually;
use tokio::time::timeout;

use super::{LIMIT, RETRY_LIMIT};

/// The flag that serves /metrics without authorization.
pub(crate) const OPEN: &str = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/readyz/*,/metrics";

/// A client for the endpoints of a daemon on 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admin {
    pub(crate) port: u16,
}

impl Admin {
    /// Returns the status and the body of a response. The certificate is self-signed, so it is not
    /// verified.
    pub(crate) async fn get(&self, path: &str) -> Result<(StatusCode, String)> {
        let url = format!("https://127.0.0.1:{}/", self.port);
        let mut config = Config::new(url.parse()?);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        let client = Client::try_from(config).context("failed to build a client")?;
        let request = Request::get(path).body(Body::empty())?;
        let response = async {
            let response = client.send(request).await.context("failed to get a response")?;
            let status = response.status();
            let body = response
                .into_body()
                .collect()
                .await
                .context("failed to read the body")?
                .to_bytes();
            Ok((status, String::from_utf8(body.to_vec())?))
        };
        timeout(LIMIT, response).await.with_context(|| format!("GET {path}"))?
    }

    /// Waits until /readyz returns 200.
    pub(crate) async fn wait_until_ready(&self) -> Result<()> {
        eventually(RETRY_LIMIT, "/readyz to return 200", || async {
            let (status, text) = self.get("/readyz?verbose").await?;
            ensure!(status == StatusCode::OK, "{status}: {text}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until /readyz?verbose satisfies `is_wanted`, and returns its status and body.
    pub(crate) async fn wait_until_readyz(
        &self,
        what: &str,
        is_wanted: impl Fn(StatusCode, &str) -> bool,
    ) -> Result<(StatusCode, String)> {
        eventually(RETRY_LIMIT, what, || async {
            let (status, text) = self.get("/readyz?verbose").await?;
            ensure!(is_wanted(status, &text), "{status}: {text}");
            anyhow::Ok((status, text))
        })
        .await
    }

    pub(crate) async fn metrics(&self) -> Result<Metrics> {
        let (status, text) = self.get("/metrics").await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        Ok(Metrics(text))
    }
}

/// The metrics of one scrape.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// Returns the sum over the series of `name` with all of these labels, each as `label="value"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let samples = self.0.lines().filter(|line| !line.starts_with('#'));
        let series = samples.filter_map(|line| line.rsplit_once(' '));
        let matching = series.filter(|(series, _)| {
            let series_name = series.split('{').next().unwrap_or_default();
            series_name == name && labels.iter().all(|label| series.contains(label))
        });
        matching.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }

    /// Returns the names of all metric families.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        let types = self.0.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next()).collect()
    }
}
