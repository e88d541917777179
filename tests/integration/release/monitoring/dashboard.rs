//! The dashboard: its queries and its variables.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{source, text};

/// Returns the dashboard.
fn dashboard() -> Result<Value> {
    Ok(serde_json::from_str(&source("dashboard.json")?)?)
}

/// Returns the panels that are not titles of rows.
fn panels(dashboard: &Value) -> Result<Vec<&Value>> {
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    Ok(panels.iter().filter(|panel| panel["type"] != "row").collect())
}

/// Returns the queries of all panels, with the variables replaced by the values that Grafana gives
/// them for all replicas of the job `portreeve`.
pub(super) fn queries() -> Result<Vec<String>> {
    let dashboard = dashboard()?;
    let mut queries = Vec::new();
    for panel in panels(&dashboard)? {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(with_values(text(target, "/expr")?));
        }
    }
    Ok(queries)
}

/// Returns the metric, as a selector, and the label of each variable that is filled by a query.
pub(super) fn variables() -> Result<Vec<(String, String)>> {
    let dashboard = dashboard()?;
    let list = dashboard["templating"]["list"].as_array();
    let list = list.context("the dashboard has no variables")?.iter();
    let filled = list.filter(|variable| variable["type"] == "query");
    filled
        .map(|variable| {
            let query = text(variable, "/query/query")?;
            let arguments = query
                .strip_prefix("label_values(")
                .and_then(|rest| rest.strip_suffix(')'));
            let (selector, label) = arguments
                .and_then(|both| both.rsplit_once(", "))
                .context(query.to_owned())?;
            Ok((with_values(selector), label.to_owned()))
        })
        .collect()
}

fn with_values(query: &str) -> String {
    query
        .replace("$job", "portreeve")
        .replace("$instance", ".+")
        .replace("$__rate_interval", "1m")
}

#[test]
fn each_panel_has_a_title_a_description_a_unit_and_a_place_of_its_own() -> Result<()> {
    let dashboard = dashboard()?;
    let mut cells = std::collections::BTreeSet::new();
    let all = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let mut ids: Vec<_> = all.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    ids.sort_unstable();
    ids.dedup();
    ensure!(ids.len() == all.len(), "panels share an id");
    for panel in panels(&dashboard)? {
        let title = text(panel, "/title")?;
        for field in ["/description", "/fieldConfig/defaults/unit"] {
            ensure!(!text(panel, field)?.is_empty(), "{title} has no {field}");
        }
        ensure!(panel["datasource"]["uid"] == "${datasource}", "{title}");
        let place = |side: &str| panel["gridPos"][side].as_u64().context("a panel has no place");
        for x in place("x")?..place("x")? + place("w")? {
            for y in place("y")?..place("y")? + place("h")? {
                ensure!(
                    x < 24 && cells.insert((x, y)),
                    "{title} overlaps another panel or the edge"
                );
            }
        }
    }
    Ok(())
}
