//! A real Prometheus, and its HTTP API.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use http::{Request, StatusCode};
use kube::{Config, client::Body};
use portreeve_testing::{ControlPlane, Process, eventually, free_port};
use serde_json::{Value, json};

use super::tools;
use crate::fixtures::{LIMIT, admin::send};

/// The number of ports to try: another process can take a port between the check and the start.
const PORT_ATTEMPTS: usize = 5;

/// A running Prometheus. It is killed when this handle is dropped or the test binary ends.
pub(super) struct Prometheus {
    _process: Process,
    port: u16,
}

impl Prometheus {
    /// Starts Prometheus with these jobs and rule files, and waits until it serves its API. It
    /// scrapes every second.
    pub(super) async fn start(plane: &ControlPlane, jobs: &[Value], rule_files: &[PathBuf]) -> Result<Self> {
        let config = plane.folder().join("prometheus.yml");
        let text = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": rule_files,
            "scrape_configs": jobs,
        });
        fs::write(&config, text.to_string())?;
        let config = format!("--config.file={}", config.display());
        let storage = format!("--storage.tsdb.path={}", plane.folder().join("prometheus").display());
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port()?;
            let address = format!("--web.listen-address=127.0.0.1:{port}");
            let program = tools::folder()?.join("prometheus");
            let process = plane.spawn("prometheus", &program, &[&config, &storage, &address], &[])?;
            let is_ready = |line: &str| line.contains("Server is ready to receive web requests");
            match process.wait_for_log(LIMIT, is_ready).await {
                Ok(_) => {
                    return Ok(Self {
                        _process: process,
                        port,
                    });
                }
                Err(_) if process.log_tail().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("found no free port for Prometheus in {PORT_ATTEMPTS} attempts");
    }

    /// Returns the field `data` of a response of the API.
    pub(super) async fn get(&self, path: &str) -> Result<Value> {
        let config = Config::new(format!("http://127.0.0.1:{}/", self.port).parse()?);
        let request = Request::get(format!("/api/v1/{path}")).body(Body::empty())?;
        let response = send(config, request).await?;
        let body: Value = serde_json::from_slice(response.body())?;
        ensure!(response.status() == StatusCode::OK, "{path}: {body}");
        Ok(body["data"].clone())
    }

    /// Returns the current result of a query: one value for each combination of labels.
    pub(super) async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let data = self.get(&format!("query?query={}", encoded(query))).await?;
        let result = data["result"].as_array();
        Ok(result.with_context(|| format!("{query}: {data}"))?.clone())
    }

    /// Waits until every query has a result.
    pub(super) async fn wait_for_data(&self, queries: &[String]) -> Result<()> {
        eventually(LIMIT, "data of every query", || async {
            let mut empty = Vec::new();
            for query in queries {
                if self.query(query).await?.is_empty() {
                    empty.push(query);
                }
            }
            ensure!(empty.is_empty(), "no data of {empty:#?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until a query has exactly one result, with this value.
    pub(super) async fn wait_for_value(&self, query: &str, expected: &str) -> Result<()> {
        eventually(LIMIT, &format!("{query} to be {expected}"), || async {
            let result = self.query(query).await?;
            let values: Vec<_> = result.iter().map(|series| &series["value"][1]).collect();
            ensure!(values == [expected], "{values:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until the scrapes of a job fail, and returns the error.
    pub(super) async fn wait_for_scrape_error(&self, job: &str) -> Result<String> {
        eventually(LIMIT, &format!("an error of the job {job}"), || async {
            let data = self.get("targets?state=active").await?;
            let targets = data["activeTargets"].as_array().into_iter().flatten();
            let mut errors = targets.filter(|target| target["labels"]["job"] == job);
            let target = errors.next().context("the job has no target")?;
            let error = target["lastError"].as_str().filter(|error| !error.is_empty());
            anyhow::Ok(error.with_context(|| target.to_string())?.to_owned())
        })
        .await
    }
}

/// Encodes text for the query of a URL.
pub(super) fn encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}
