//! A real Prometheus scrapes three replicas over verified TLS, with the rights that
//! deploy/monitoring grants.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Result, ensure};
use portreeve_testing::eventually;
use serde_json::json;

use super::{
    dashboard,
    environment::{Environment, SERVER_NAME, documented_scrape_config},
    manifests::component,
    prometheus::{Prometheus, encoded},
    rules, text, tools,
};
use crate::fixtures::{LIMIT, admin::Credentials, repository::root};

/// The metrics with the matchers and the labels on which kubernetes-mixin's dashboard and alerts
/// for kube-controller-manager rely, without the Go runtime's. A label that does not exist is
/// empty.
const MIXIN: &[(&str, &str)] = &[
    ("up", r#"instance!="""#),
    ("workqueue_adds_total", r#"instance!="",name!="""#),
    ("workqueue_depth", r#"instance!="",name!="""#),
    (
        "workqueue_queue_duration_seconds_bucket",
        r#"instance!="",name!="",le!="""#,
    ),
    ("rest_client_requests_total", r#"instance!="",code=~"2..""#),
    ("rest_client_requests_total", r#"instance!="",code=~"4..""#),
    (
        "rest_client_request_duration_seconds_bucket",
        r#"instance!="",verb="POST",le!="""#,
    ),
    (
        "rest_client_request_duration_seconds_bucket",
        r#"instance!="",verb="GET",le!="""#,
    ),
    ("process_resident_memory_bytes", r#"instance!="""#),
    ("process_cpu_seconds_total", r#"instance!="""#),
];

/// The complaints of `promtool check metrics` about names that Kubernetes' components have as well.
/// Another name would break the dashboards that know them.
const KUBERNETES_NAMES: &[&str] = &[
    "authentication_attempts counter metrics should have \"_total\" suffix",
    "authentication_token_cache_active_fetch_count non-histogram and non-summary metrics should not have \"_count\" suffix",
];

/// Returns the selectors of a query, such as `up{job="portreeve"}`.
fn selectors(query: &str) -> Vec<String> {
    let mut selectors = Vec::new();
    for (start, _) in query.match_indices('{') {
        let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let name = query[..start].rsplit(|character| !is_name(character)).next();
        let matchers = query[start..].split_inclusive('}').next();
        selectors.extend(name.zip(matchers).map(|(name, matchers)| format!("{name}{matchers}")));
    }
    selectors
}

#[test]
fn promtool_accepts_the_documented_scrape_config_which_agrees_with_the_service_monitor() -> Result<()> {
    let mut job = documented_scrape_config()?;
    // Debian's Prometheus is built without it.
    let discovery = job.as_object_mut().and_then(|job| job.remove("kubernetes_sd_configs"));
    ensure!(discovery == Some(json!([{"role": "endpointslice", "namespaces": {"names": ["portreeve-system"]}}])));
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("prometheus.yml");
    fs::write(&config, json!({"scrape_configs": [job]}).to_string())?;
    let args = ["check", "config", "--syntax-only", "prometheus.yml"];
    let (is_accepted, printed) = tools::promtool(&args, folder.path(), "")?;
    ensure!(is_accepted, "{printed}");
    let monitor = component()?["ServiceMonitor portreeve"]["spec"]["endpoints"][0].clone();
    ensure!(job["job_name"] == "portreeve" && job["scheme"] == monitor["scheme"]);
    ensure!(job["tls_config"]["server_name"] == SERVER_NAME && monitor["tlsConfig"]["serverName"] == SERVER_NAME);
    ensure!(job["authorization"]["credentials_file"] == monitor["bearerTokenFile"]);
    Ok(())
}

#[tokio::test]
async fn prometheus_scrapes_three_replicas_and_has_data_for_every_alert_and_panel() -> Result<()> {
    let environment = Environment::start(&[]).await?;
    let failing = environment.failing_jobs()?;
    let mut jobs = vec![environment.documented_job()?];
    jobs.extend(failing.iter().map(|(job, _)| job.clone()));
    let rule_file = root().canonicalize()?.join("deploy/monitoring/rules.yaml");
    let prometheus = Prometheus::start(&environment.plane, &jobs, &[rule_file]).await?;
    environment.work().await?;

    prometheus
        .wait_for_value(r#"sum(up{job="portreeve"} == 1)"#, "3")
        .await?;
    prometheus
        .wait_for_value(r#"sum(leader_election_master_status{job="portreeve"})"#, "1")
        .await?;
    for (job, expected) in &failing {
        let error = prometheus.wait_for_scrape_error(text(job, "/job_name")?).await?;
        ensure!(error.contains(expected), "{job}: {error}");
        let page = include_str!("../../../../docs/monitoring.md");
        ensure!(
            page.contains(&format!("{expected} ")),
            "docs/monitoring.md does not explain {expected}"
        );
    }
    ensure_rules_work(&prometheus).await?;
    ensure_dashboard_works(&prometheus).await?;
    ensure_mixin_works(&prometheus).await?;
    let scrapes = ensure_scraper_reads_only_metrics(&environment).await?;
    ensure_only_kubernetes_names_are_unusual(&scrapes)
}

/// Waits until Prometheus has evaluated every rule without an error, and has data for each of their
/// selectors.
async fn ensure_rules_work(prometheus: &Prometheus) -> Result<()> {
    let rules = rules()?;
    eventually(LIMIT, "every rule to be evaluated", || async {
        let data = prometheus.get("rules").await?;
        let groups = data["groups"].as_array().into_iter().flatten();
        let evaluated: Vec<_> = groups.filter_map(|group| group["rules"].as_array()).flatten().collect();
        ensure!(evaluated.len() == rules.len(), "{data}");
        let unhealthy: Vec<_> = evaluated.iter().filter(|rule| rule["health"] != "ok").collect();
        ensure!(unhealthy.is_empty(), "{unhealthy:?}");
        anyhow::Ok(())
    })
    .await?;
    let mut found = Vec::new();
    for rule in &rules {
        let selectors = selectors(text(rule, "/expr")?);
        ensure!(!selectors.is_empty(), "{rule:#}");
        found.extend(selectors);
    }
    prometheus.wait_for_data(&found).await
}

/// Waits until every query of the dashboard returns data.
async fn ensure_dashboard_works(prometheus: &Prometheus) -> Result<()> {
    prometheus.wait_for_data(&dashboard::queries()?).await?;
    for (selector, label) in dashboard::variables()? {
        let path = format!("label/{label}/values?match[]={}", encoded(&selector));
        let values = prometheus.get(&path).await?;
        let is_filled = values.as_array().is_some_and(|values| !values.is_empty());
        ensure!(is_filled, "{selector} {label}: {values}");
    }
    Ok(())
}

/// Waits until everything exists that kubernetes-mixin uses.
async fn ensure_mixin_works(prometheus: &Prometheus) -> Result<()> {
    let query = |(metric, matchers): &(&str, &str)| format!(r#"{metric}{{job="portreeve",{matchers}}}"#);
    let queries: Vec<_> = MIXIN.iter().map(query).collect();
    prometheus.wait_for_data(&queries).await
}

/// Ensures that the account of Prometheus may read metrics and nothing else. Returns the metrics of
/// each replica.
async fn ensure_scraper_reads_only_metrics(environment: &Environment) -> Result<Vec<String>> {
    let scraper = Credentials::Token(environment.token.clone());
    let mut metrics = Vec::new();
    for replica in &environment.replicas {
        for (path, expected) in [("/metrics/slis", 200), ("/configz", 403), ("/debug/controllers", 403)] {
            let (status, text) = replica.admin.get_as(path, &scraper).await?;
            ensure!(status.as_u16() == expected, "{path}: {status}: {text}");
        }
        let (status, text) = replica.admin.get_as("/metrics", &scraper).await?;
        ensure!(status.is_success(), "{status}: {text}");
        metrics.push(text);
    }
    Ok(metrics)
}

/// Ensures that promtool complains only about names that Kubernetes has.
fn ensure_only_kubernetes_names_are_unusual(scrapes: &[String]) -> Result<()> {
    let mut complaints = BTreeSet::new();
    for scrape in scrapes {
        let (_, printed) = tools::promtool(&["check", "metrics"], Path::new("."), scrape)?;
        complaints.extend(printed.lines().map(str::to_owned));
    }
    let expected: BTreeSet<_> = KUBERNETES_NAMES.iter().copied().map(str::to_owned).collect();
    ensure!(complaints == expected, "{complaints:#?}");
    Ok(())
}
