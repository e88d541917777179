//! The metrics of the daemon.

mod families;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, eventually};

use crate::fixtures::{
    LIMIT,
    daemon::{ALL_CONTROLLERS, Daemon},
    shared_daemon,
};

#[tokio::test]
async fn metrics_show_the_work_of_a_controller() -> Result<()> {
    let daemon = shared_daemon::daemon().await?;
    let fixture = shared_daemon::fixture("metrics").await?;
    fixture.ready_foo("web", 1).await?;
    let metrics = daemon.admin.metrics().await?;
    let foos = r#"resource="foos.v1alpha1.samplecontroller.k8s.io""#;
    let controller = r#"controller="foo-controller""#;
    let build = [
        r#"git_commit=""#,
        r#"rustc_version="1."#,
        concat!("version=\"", env!("CARGO_PKG_VERSION")),
    ];
    for (name, labels, least) in [
        ("portreeve_build_info", build.to_vec(), 1.0),
        (
            "kubernetes_feature_enabled",
            vec![r#"name="ComponentFlagz",stage="BETA""#],
            1.0,
        ),
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
async fn queues_have_the_names_of_kubernetes() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = Daemon::start(plane, "queue-names", &[&*ALL_CONTROLLERS, "--dry-run"]).await?;
    let queues = eventually(LIMIT, "the metrics of all queues", || async {
        let queues = daemon.admin.metrics().await?.values("workqueue_depth", "name");
        ensure!(queues.len() == 12, "{queues:?}");
        anyhow::Ok(queues)
    })
    .await?;
    let others = queues.iter().filter(|name| !name.starts_with("garbage_collector_"));
    let expected = [
        "ClusterRoleAggregator",
        "cronjob",
        "crontab",
        "foo",
        "namespace",
        "pvcprotection",
        "pvprotection",
        "root_ca_cert_publisher",
        "serviceaccount",
        "ttl_jobs_to_delete",
    ];
    ensure!(others.eq(expected.iter()), "{queues:?}");
    let (_, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(text.contains("retries/crontab"), "{text}");
    Ok(())
}
