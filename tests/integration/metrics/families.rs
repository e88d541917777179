//! The families on which dashboards and alerts depend: their names, types, labels and buckets. And
//! the reference of all families.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{
    access::{account_token, rule},
    fixtures::{
        LIMIT,
        admin::{Credentials, Metrics},
        daemon::{ALL_CONTROLLERS, Daemon, LONG_LEASE},
        definitions::plane_with_definitions,
        dynamic_client::{DynamicClient, Policy},
        jobs::Jobs,
        namespace::NamespaceFixture,
        object_builder::config_map,
        schedules::Kind,
    },
};

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";
/// The type of a metric, its labels, and the buckets of a histogram.
type Row = (&'static str, &'static str, &'static str, &'static [f64]);

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
/// Powers of two.
const SKEW: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
const TTL: &[f64] = &[
    0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
];
const SYNC: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
const REVIEW: &[f64] = &[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
const RECONCILE: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// The families of Kubernetes' components, Prometheus' client libraries and controller-runtime, and
/// those of ours on which alerts depend, with their labels in alphabetical order. docs/metrics.md
/// says which others do not apply.
const FAMILIES: &[Row] = &[
    ("workqueue_depth", GAUGE, "name", &[]),
    ("workqueue_adds_total", COUNTER, "name", &[]),
    ("workqueue_retries_total", COUNTER, "name", &[]),
    ("workqueue_queue_duration_seconds", HISTOGRAM, "name", QUEUE),
    ("workqueue_work_duration_seconds", HISTOGRAM, "name", QUEUE),
    ("workqueue_unfinished_work_seconds", GAUGE, "name", &[]),
    ("workqueue_longest_running_processor_seconds", GAUGE, "name", &[]),
    ("leader_election_master_status", GAUGE, "name", &[]),
    ("leader_election_slowpath_total", COUNTER, "name", &[]),
    ("rest_client_requests_total", COUNTER, "code,host,method", &[]),
    ("rest_client_request_duration_seconds", HISTOGRAM, "host,verb", REQUEST),
    ("rest_client_request_size_bytes", HISTOGRAM, "host,verb", SIZE),
    ("rest_client_response_size_bytes", HISTOGRAM, "host,verb", SIZE),
    (
        "rest_client_rate_limiter_duration_seconds",
        HISTOGRAM,
        "host,verb",
        REQUEST,
    ),
    ("running_managed_controllers", GAUGE, "manager,name", &[]),
    (
        "informer_processing_latency_seconds",
        HISTOGRAM,
        "group,name,resource,version",
        EVENT,
    ),
    (
        "informer_store_resource_version",
        GAUGE,
        "group,name,resource,version",
        &[],
    ),
    (
        "garbagecollector_controller_resources_sync_error_total",
        COUNTER,
        "",
        &[],
    ),
    (
        "cronjob_controller_job_creation_skew_duration_seconds",
        HISTOGRAM,
        "",
        SKEW,
    ),
    (
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        HISTOGRAM,
        "",
        TTL,
    ),
    ("root_ca_cert_publisher_sync_total", COUNTER, "code", &[]),
    ("root_ca_cert_publisher_sync_duration_seconds", HISTOGRAM, "code", SYNC),
    ("kubernetes_feature_enabled", GAUGE, "name,stage", &[]),
    ("kubernetes_healthcheck", GAUGE, "name,type", &[]),
    ("kubernetes_healthchecks_total", COUNTER, "name,status,type", &[]),
    ("apiserver_delegated_authn_request_total", COUNTER, "code", &[]),
    (
        "apiserver_delegated_authn_request_duration_seconds",
        HISTOGRAM,
        "code",
        REVIEW,
    ),
    ("apiserver_delegated_authz_request_total", COUNTER, "code", &[]),
    (
        "apiserver_delegated_authz_request_duration_seconds",
        HISTOGRAM,
        "code",
        REVIEW,
    ),
    ("authentication_attempts", COUNTER, "result", &[]),
    ("authentication_token_cache_request_total", COUNTER, "status", &[]),
    ("authentication_token_cache_fetch_total", COUNTER, "status", &[]),
    ("authentication_token_cache_active_fetch_count", GAUGE, "status", &[]),
    ("authorization_attempts_total", COUNTER, "result", &[]),
    ("process_cpu_seconds_total", COUNTER, "", &[]),
    ("process_max_fds", GAUGE, "", &[]),
    ("process_open_fds", GAUGE, "", &[]),
    ("process_resident_memory_bytes", GAUGE, "", &[]),
    ("process_start_time_seconds", GAUGE, "", &[]),
    ("process_virtual_memory_bytes", GAUGE, "", &[]),
    ("process_virtual_memory_max_bytes", GAUGE, "", &[]),
    ("process_network_receive_bytes_total", COUNTER, "", &[]),
    ("process_network_transmit_bytes_total", COUNTER, "", &[]),
    ("controller_runtime_reconcile_total", COUNTER, "controller,result", &[]),
    ("controller_runtime_reconcile_errors_total", COUNTER, "controller", &[]),
    (
        "controller_runtime_terminal_reconcile_errors_total",
        COUNTER,
        "controller",
        &[],
    ),
    ("controller_runtime_reconcile_panics_total", COUNTER, "controller", &[]),
    (
        "controller_runtime_reconcile_time_seconds",
        HISTOGRAM,
        "controller",
        RECONCILE,
    ),
    ("controller_runtime_max_concurrent_reconciles", GAUGE, "controller", &[]),
    ("controller_runtime_active_workers", GAUGE, "controller", &[]),
    ("gc_breaker_tripped", GAUGE, "", &[]),
    ("namespace_controller_oldest_terminating_seconds", GAUGE, "", &[]),
    ("namespace_controller_stuck_namespaces", GAUGE, "", &[]),
    ("namespace_controller_terminating_namespaces", GAUGE, "", &[]),
    ("portreeve_build_info", GAUGE, "git_commit,rustc_version,version", &[]),
    ("portreeve_fenced_writes_total", COUNTER, "controller,fence", &[]),
    ("portreeve_informer_last_contact_age_seconds", GAUGE, "resource", &[]),
    ("portreeve_informer_relists_total", COUNTER, "reason,resource", &[]),
    (
        "portreeve_informer_watch_restarts_total",
        COUNTER,
        "reason,resource",
        &[],
    ),
    (
        "portreeve_leader_election_failures_total",
        COUNTER,
        "name,operation",
        &[],
    ),
    ("portreeve_leader_election_last_renewal_age_seconds", GAUGE, "name", &[]),
    ("portreeve_retry_budget_tokens", GAUGE, "name", &[]),
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

/// Gives every controller something to do, and waits until it is done.
async fn work(plane: &ControlPlane) -> Result<()> {
    let fixture = NamespaceFixture::new(plane, "families").await?;
    fixture.ready_foo("web", 1).await?;
    for kind in Kind::BOTH {
        kind.create(&fixture.namespace, kind.name(), "@every 1s", &json!({}))
            .await?;
    }
    let jobs = Jobs::of(&fixture);
    jobs.create("finished", json!({"ttlSecondsAfterFinished": 0})).await?;
    jobs.end("finished", Timestamp::now(), true).await?;
    let objects = DynamicClient::of(&fixture.namespace);
    let owner = objects.create(config_map("owner")).await?;
    let dependent = objects.create(config_map("dependent").owned_by(&owner)).await?;
    objects.delete(&owner, Policy::Background).await?;
    objects.wait_until_gone(&dependent).await
}

#[tokio::test]
async fn families_of_kubernetes_have_the_same_types_labels_and_buckets() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let system = plane.namespace("families-system").await?;
    // The durations of the rate limiter exist only with a limit.
    let flags = [
        &*ALL_CONTROLLERS,
        "--install-crds",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
    ];
    let flags: Vec<_> = flags.into_iter().chain(LONG_LEASE).collect();
    let daemon = Daemon::start_closed(&plane, plane.kubeconfig(), "families", &flags).await?;
    let scraper = account_token(&plane, &system, "scraper", vec![rule(&["/metrics"])]).await?;
    daemon.admin.wait_until_ready().await?;
    work(&plane).await?;

    let (families, metrics) = eventually(LIMIT, "a scrape after the work of every controller", || async {
        let (_, text) = daemon.admin.get_as("/metrics", &scraper).await?;
        for done in [
            "cronjob_controller_job_creation_skew_duration_seconds_count",
            r#"workqueue_adds_total{name="crontab"}"#,
            "ttl_after_finished_controller_job_deletion_duration_seconds_count",
            "gc_cascade_duration_seconds_count",
        ] {
            let is_zero = text.lines().any(|line| line == format!("{done} 0"));
            ensure!(!is_zero && text.contains(done), "{done}: {text}");
        }
        Ok((read(&text)?, Metrics(text)))
    })
    .await?;
    for (name, kind, labels, buckets) in FAMILIES {
        let family = families.get(*name).with_context(|| format!("{name} is missing"))?;
        ensure!(family.kind == *kind, "{name} is a {}", family.kind);
        let found = family.labels.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        ensure!(found == *labels, "{name} has the labels {found}");
        let near = |(a, b): (&f64, &f64)| (a - b).abs() <= b * 1e-9;
        ensure!(
            family.buckets.len() == buckets.len() && family.buckets.iter().zip(*buckets).all(near),
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
    for name in [
        "portreeve_informer_last_contact_age_seconds",
        "portreeve_informer_relists_total",
        "portreeve_informer_watch_restarts_total",
    ] {
        let watches = metrics.values(name, "resource");
        let plurals: Vec<_> = watches.iter().filter_map(|watch| watch.split('.').next()).collect();
        let expected = [
            "clusterroles",
            "configmaps",
            "cronjobs",
            "crontabs",
            "customresourcedefinitions",
            "deployments",
            "foos",
            "jobs",
            "namespaces",
            "persistentvolumeclaims",
            "persistentvolumes",
            "pods",
            "serviceaccounts",
        ];
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
