//! The metric names that dashboards and alerts for Kubernetes already use.

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, eventually};

use crate::fixtures::{
    LIMIT,
    daemon::{ALL_CONTROLLERS, Daemon},
    shared_daemon,
};

#[tokio::test]
async fn metrics_use_the_names_of_kubernetes() -> Result<()> {
    let daemon = shared_daemon::daemon().await?;
    let fixture = shared_daemon::fixture("metrics").await?;
    fixture.ready_foo("web", 1).await?;
    let metrics = daemon.admin.metrics().await?;
    let names = metrics.names();
    for name in [
        "controller_runtime_active_workers",
        "controller_runtime_max_concurrent_reconciles",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_reconcile_total",
        "portreeve_events_dropped_total",
        "portreeve_informer_objects",
        "portreeve_informer_synced",
        "portreeve_log_lines_dropped_total",
        "portreeve_tasks",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "rest_client_request_duration_seconds",
        "rest_client_requests_total",
        "running_managed_controllers",
        "workqueue_adds_total",
        "workqueue_depth",
        "workqueue_held_retries",
        "workqueue_longest_running_processor_seconds",
        "workqueue_queue_duration_seconds",
        "workqueue_retries_total",
        "workqueue_unfinished_work_seconds",
        "workqueue_work_duration_seconds",
    ] {
        ensure!(names.contains(name), "{name} is not among {names:#?}");
    }
    let foos = r#"resource="foos.v1alpha1.samplecontroller.k8s.io""#;
    let controller = r#"controller="foo-controller""#;
    for (name, labels, least) in [
        ("controller_runtime_max_concurrent_reconciles", vec![controller], 5.0),
        (
            "controller_runtime_reconcile_total",
            vec![controller, r#"result="success""#],
            1.0,
        ),
        ("portreeve_informer_synced", vec![foos], 1.0),
        ("portreeve_informer_objects", vec![foos], 1.0),
        ("portreeve_tasks", vec![], 5.0),
        (
            "rest_client_requests_total",
            vec![r#"code="201""#, r#"method="POST""#],
            1.0,
        ),
        (
            "running_managed_controllers",
            vec![r#"name="foo-controller""#, r#"manager="portreeve""#],
            1.0,
        ),
        ("workqueue_adds_total", vec![r#"name="foo""#], 1.0),
    ] {
        let found = metrics.sum(name, &labels);
        ensure!(found >= least, "{name}{labels:?} is {found}");
    }
    Ok(())
}

#[tokio::test]
async fn the_former_names_of_queues_remain_behind_a_flag() -> Result<()> {
    let plane = ControlPlane::shared().await;
    for (flags, names) in [
        (vec![], ["cronjob", "crontab", "foo", "ttl_jobs_to_delete"]),
        (
            vec!["--use-deprecated-queue-names"],
            ["CronJobs", "CronTabs", "Foos", "ttl_jobs_to_delete"],
        ),
    ] {
        let flags = [&*ALL_CONTROLLERS, "--dry-run"].into_iter().chain(flags);
        let daemon = Daemon::start(plane, "queue-names", &flags.collect::<Vec<_>>()).await?;
        let queues = eventually(LIMIT, "the metrics of all queues", || async {
            let queues = daemon.admin.metrics().await?.values("workqueue_depth", "name");
            ensure!(queues.len() == 6, "{queues:?}");
            anyhow::Ok(queues)
        })
        .await?;
        let others = queues.iter().filter(|name| !name.starts_with("garbage_collector_"));
        ensure!(others.eq(names.iter()), "{queues:?}");
        let (_, text) = daemon.admin.get("/readyz?verbose").await?;
        ensure!(text.contains("retries/crontab"), "{text}");
    }
    Ok(())
}
