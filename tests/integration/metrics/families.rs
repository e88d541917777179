//! The families on which dashboards and alerts depend: their names, types, labels and buckets. And
//! the reference of all families.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result, ensure};
use portreeve_testing::eventually;

use crate::{
    access::{account_token, rule},
    fixtures::{
        LIMIT,
        admin::{Credentials, Metrics},
        daemon::{ALL_CONTROLLERS, Daemon, LONG_LEASE, PROMPT_NAMESPACES},
        definitions::plane_with_definitions,
        metric_family::Family,
    },
    registry::{PROFILES, PendingWork, watched},
};

/// 10 ns to 10 s.
const QUEUE: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0];
const REQUEST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const SIZE: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
const EVENT: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const REVIEW: &[f64] = &[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
const RECONCILE: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// The families of Kubernetes' components, Prometheus' client libraries and controller-runtime, and
/// those of ours on which alerts depend, without those of single controllers. docs/metrics.md says
/// which others do not apply.
const FAMILIES: &[Family] = &[
    Family::gauge("workqueue_depth", "name"),
    Family::counter("workqueue_adds_total", "name"),
    Family::counter("workqueue_retries_total", "name"),
    Family::histogram("workqueue_queue_duration_seconds", "name", QUEUE),
    Family::histogram("workqueue_work_duration_seconds", "name", QUEUE),
    Family::gauge("workqueue_unfinished_work_seconds", "name"),
    Family::gauge("workqueue_longest_running_processor_seconds", "name"),
    Family::gauge("leader_election_master_status", "name"),
    Family::counter("leader_election_slowpath_total", "name"),
    Family::counter("rest_client_requests_total", "code,host,method"),
    Family::histogram("rest_client_request_duration_seconds", "host,verb", REQUEST),
    Family::histogram("rest_client_request_size_bytes", "host,verb", SIZE),
    Family::histogram("rest_client_response_size_bytes", "host,verb", SIZE),
    Family::histogram("rest_client_rate_limiter_duration_seconds", "host,verb", REQUEST),
    Family::gauge("running_managed_controllers", "manager,name"),
    Family::histogram(
        "informer_processing_latency_seconds",
        "group,name,resource,version",
        EVENT,
    ),
    Family::gauge("informer_store_resource_version", "group,name,resource,version"),
    Family::gauge("kubernetes_feature_enabled", "name,stage"),
    Family::gauge("kubernetes_healthcheck", "name,type"),
    Family::counter("kubernetes_healthchecks_total", "name,status,type"),
    Family::counter("apiserver_delegated_authn_request_total", "code"),
    Family::histogram("apiserver_delegated_authn_request_duration_seconds", "code", REVIEW),
    Family::counter("apiserver_delegated_authz_request_total", "code"),
    Family::histogram("apiserver_delegated_authz_request_duration_seconds", "code", REVIEW),
    Family::counter("authentication_attempts", "result"),
    Family::counter("authentication_token_cache_request_total", "status"),
    Family::counter("authentication_token_cache_fetch_total", "status"),
    Family::gauge("authentication_token_cache_active_fetch_count", "status"),
    Family::counter("authorization_attempts_total", "result"),
    Family::counter("process_cpu_seconds_total", ""),
    Family::gauge("process_max_fds", ""),
    Family::gauge("process_open_fds", ""),
    Family::gauge("process_resident_memory_bytes", ""),
    Family::gauge("process_start_time_seconds", ""),
    Family::gauge("process_virtual_memory_bytes", ""),
    Family::gauge("process_virtual_memory_max_bytes", ""),
    Family::counter("process_network_receive_bytes_total", ""),
    Family::counter("process_network_transmit_bytes_total", ""),
    Family::counter("controller_runtime_reconcile_total", "controller,result"),
    Family::counter("controller_runtime_reconcile_errors_total", "controller"),
    Family::counter("controller_runtime_terminal_reconcile_errors_total", "controller"),
    Family::counter("controller_runtime_reconcile_panics_total", "controller"),
    Family::histogram("controller_runtime_reconcile_time_seconds", "controller", RECONCILE),
    Family::gauge("controller_runtime_max_concurrent_reconciles", "controller"),
    Family::gauge("controller_runtime_active_workers", "controller"),
    Family::gauge("portreeve_build_info", "git_commit,rustc_version,version"),
    Family::counter("portreeve_fenced_writes_total", "controller,fence"),
    Family::gauge("portreeve_informer_last_contact_age_seconds", "resource"),
    Family::counter("portreeve_informer_relists_total", "reason,resource"),
    Family::counter("portreeve_informer_watch_restarts_total", "reason,resource"),
    Family::counter("portreeve_leader_election_failures_total", "name,operation"),
    Family::gauge("portreeve_leader_election_last_renewal_age_seconds", "name"),
    Family::gauge("portreeve_retry_budget_tokens", "name"),
];

/// A family in a scrape.
#[derive(Debug, Default)]
struct Scraped {
    kind: String,
    labels: BTreeSet<String>,
    buckets: Vec<f64>,
}

/// Reads a scrape in Prometheus' text format. Every series of a family has the same labels, except
/// that only buckets have `le`.
fn read(text: &str) -> Result<BTreeMap<String, Scraped>> {
    let mut families: BTreeMap<String, Scraped> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').context("a type without a name")?;
            name.clone_into(&mut current);
            let kind = kind.to_owned();
            families.entry(current.clone()).or_insert(Scraped {
                kind,
                ..Scraped::default()
            });
        }
        if line.starts_with('#') {
            continue;
        }
        let family = families.get_mut(&current).context("a series without a type")?;
        let labels = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}'));
        for label in labels.map(|(labels, _)| labels.split("\",")).into_iter().flatten() {
            let (name, value) = label.split_once("=\"").with_context(|| line.to_owned())?;
            if name == "le" {
                let bound: f64 = value.trim_end_matches('"').parse()?;
                if bound.is_finite() && !family.buckets.contains(&bound) {
                    family.buckets.push(bound);
                }
            } else {
                family.labels.insert(name.to_owned());
            }
        }
    }
    Ok(families)
}

#[tokio::test]
async fn families_of_kubernetes_have_the_same_types_labels_and_buckets() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let system = plane.namespace("families-system").await?;
    let work = PendingWork::create(&plane, "families").await?;
    // The durations of the rate limiter exist only with a limit.
    let flags = [
        &*ALL_CONTROLLERS,
        "--install-crds",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
    ];
    let flags: Vec<_> = flags.into_iter().chain(PROMPT_NAMESPACES).chain(LONG_LEASE).collect();
    let daemon = Daemon::start_closed(&plane, plane.kubeconfig(), "families", &flags).await?;
    let scraper = account_token(&plane, &system, "scraper", vec![rule(&["/metrics"])]).await?;
    daemon.admin.wait_until_ready().await?;
    let done = work.wait_until_done().await;
    done.with_context(|| daemon.process.log_tail())?;

    let own = || PROFILES.iter().flat_map(|profile| profile.families);
    let (families, metrics) = eventually(LIMIT, "a scrape after the work of every controller", || async {
        let (_, text) = daemon.admin.get_as("/metrics", &scraper).await?;
        let metrics = Metrics(text);
        for histogram in own().filter(|family| family.kind == "histogram") {
            let count = metrics.sum(&format!("{}_count", histogram.name), &[]);
            ensure!(count > 0.0, "{} has no observations", histogram.name);
        }
        Ok((read(&metrics.0)?, metrics))
    })
    .await?;
    for expected in FAMILIES.iter().chain(own()) {
        let name = expected.name;
        let family = families.get(name).with_context(|| format!("{name} is missing"))?;
        ensure!(family.kind == expected.kind, "{name} is a {}", family.kind);
        let found = family.labels.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        ensure!(found == expected.labels, "{name} has the labels {found}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= b * 1e-9;
        ensure!(
            family.buckets.len() == expected.buckets.len() && family.buckets.iter().zip(expected.buckets).all(near),
            "{name} has the buckets {:?}",
            family.buckets
        );
    }
    ensure_watches(&metrics)?;
    ensure_documented(&families)?;
    let (status, _) = daemon.admin.get_as("/metrics", &Credentials::None).await?;
    ensure!(status == 403, "{status}");
    Ok(())
}

/// Ensures that each watch of an informer has series, and that those of the garbage collector have
/// none.
fn ensure_watches(metrics: &Metrics) -> Result<()> {
    let mut expected = watched();
    expected.insert("customresourcedefinitions");
    for name in [
        "portreeve_informer_last_contact_age_seconds",
        "portreeve_informer_relists_total",
        "portreeve_informer_watch_restarts_total",
    ] {
        let watches = metrics.values(name, "resource");
        let plurals: BTreeSet<_> = watches.iter().filter_map(|watch| watch.split('.').next()).collect();
        ensure!(plurals == expected, "{name}: {plurals:?}");
    }
    for watch in metrics.values("portreeve_informer_relists_total", "resource") {
        let labels = [&*format!("resource=\"{watch}\""), r#"reason="term""#];
        let relists = metrics.sum("portreeve_informer_relists_total", &labels);
        // The watch of the definitions belongs to no group.
        let expected = f64::from(u8::from(!watch.starts_with("customresourcedefinitions")));
        ensure!((relists - expected).abs() < f64::EPSILON, "{watch}: {relists}");
    }
    let collected = metrics.values("gc_monitor_synced", "gvr");
    ensure!(collected.len() > 40, "{collected:?}");
    Ok(())
}

/// Ensures that docs/metrics.md has the type and the labels of each family.
fn ensure_documented(families: &BTreeMap<String, Scraped>) -> Result<()> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = fs::read_to_string(page).context("failed to read docs/metrics.md")?;
    for (name, family) in families {
        let start = format!("| `{name}` | ");
        let row = page.lines().find_map(|line| line.strip_prefix(&start));
        let row = row.with_context(|| format!("docs/metrics.md does not mention {name}"))?;
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let expected = format!("{} | {} | ", family.kind, labels.join(", "));
        ensure!(
            row.starts_with(&expected),
            "docs/metrics.md: {name} is {row}, not {expected}"
        );
    }
    Ok(())
}
