//! The alert rules: promtool accepts them, and its unit tests show when each alert fires.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{rules, source, text, tools::promtool};
use crate::fixtures::repository::root;

#[test]
fn promtool_accepts_the_rules_and_their_unit_tests_pass() -> Result<()> {
    let folder = root().join("deploy/monitoring");
    for command in [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]] {
        let (is_accepted, printed) = promtool(&command, &folder, "")?;
        ensure!(is_accepted, "{command:?}: {printed}");
    }
    Ok(())
}

#[test]
fn promtool_accepts_the_expression_for_the_apiserver() -> Result<()> {
    let page = include_str!("../../../../docs/webhook-operation.md");
    let lines: Vec<_> = page.lines().filter(|line| line.ends_with(" > 0")).collect();
    ensure!(lines.len() == 1, "{lines:?}");
    let rules = lines.iter().map(|line| json!({"alert": "A", "expr": line}));
    let groups = json!({"groups": [{"name": "webhooks", "rules": rules.collect::<Vec<_>>()}]});
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("rules.yaml"), groups.to_string())?;
    let (is_accepted, printed) = promtool(&["check", "rules", "--lint=none", "rules.yaml"], folder.path(), "")?;
    ensure!(is_accepted, "{printed}");
    Ok(())
}

#[test]
fn each_alert_has_a_unit_test_that_fires_it_and_one_that_does_not() -> Result<()> {
    let file: Value = serde_saphyr::from_str(&source("rules_test.yaml")?)?;
    let tests = file["tests"].as_array().context("the file has no tests")?;
    let cases = tests.iter().filter_map(|test| test["alert_rule_test"].as_array());
    let (mut firing, mut quiet) = (BTreeSet::new(), BTreeSet::new());
    for case in cases.flatten() {
        let expected = case["exp_alerts"].as_array().context("a case expects nothing")?;
        let names = if expected.is_empty() { &mut quiet } else { &mut firing };
        names.insert(text(case, "/alertname")?);
    }
    for rule in rules()? {
        let name = text(&rule, "/alert")?;
        ensure!(firing.contains(name), "no unit test fires {name}");
        ensure!(quiet.contains(name), "no unit test shows that {name} does not fire");
    }
    Ok(())
}

#[test]
fn each_alert_says_what_is_wrong_and_where_the_remedy_is() -> Result<()> {
    let page = include_str!("../../../../docs/monitoring.md");
    let rules = rules()?;
    for rule in &rules {
        let name = text(rule, "/alert")?;
        ensure!(name.starts_with("Portreeve"), "{name}");
        for field in ["/for", "/annotations/summary", "/annotations/description"] {
            ensure!(!text(rule, field)?.is_empty(), "{name} has no {field}");
        }
        let severity = text(rule, "/labels/severity")?;
        ensure!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        let link = format!("docs/monitoring.md#{}", name.to_lowercase());
        ensure!(text(rule, "/annotations/runbook")? == link, "{rule:#}");
        let row = format!(
            "\n| [{name}](#{}) | {severity} | {} |\n",
            name.to_lowercase(),
            text(rule, "/for")?.replace('m', " min")
        );
        ensure!(page.contains(&row), "docs/monitoring.md has no row {row}");
        ensure!(
            page.contains(&format!("\n### {name}\n")),
            "docs/monitoring.md has no section {name}"
        );
    }
    let sections = page.lines().filter_map(|line| line.strip_prefix("### Portreeve"));
    ensure!(
        sections.count() == rules.len(),
        "docs/monitoring.md describes alerts that do not exist"
    );
    Ok(())
}
