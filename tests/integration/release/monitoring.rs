//! deploy/monitoring: its manifests, its alert rules and its dashboard, with a real Prometheus.

mod alerts;
mod dashboard;
mod environment;
mod faults;
mod manifests;
mod prometheus;
mod scrape;
mod tools;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::fixtures::repository::root;

/// Returns a file of deploy/monitoring.
fn source(name: &str) -> Result<String> {
    let path = root().join("deploy/monitoring").join(name);
    std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
}

/// Returns the alert rules.
fn rules() -> Result<Vec<Value>> {
    let file: Value = serde_saphyr::from_str(&source("rules.yaml")?)?;
    let groups = file["groups"].as_array().context("the file has no groups")?;
    let rules = groups.iter().filter_map(|group| group["rules"].as_array());
    Ok(rules.flatten().cloned().collect())
}

/// Returns the text of a field.
fn text<'a>(object: &'a Value, pointer: &str) -> Result<&'a str> {
    let field = object.pointer(pointer).and_then(Value::as_str);
    field.with_context(|| format!("{pointer} is missing in {object}"))
}
