//! Checks that the health endpoints report failures, and that a busy daemon stays healthy.
//! `election::stuck` blocks the whole runtime.

mod stuck;
mod watches;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, CustomResourceExt, api::PostParams};
use portreeve_api::conditions::ConditionStatus;
use portreeve_foo::api::Foo;
use portreeve_testing::{ControlPlane, FaultProxy, Matcher, PooledPlane, Repeat, Signal, eventually};
use serde_json::json;

use self::stuck::{HANGING, HANGING_BARRIER, HANGING_MAP, START_WORKER, UNATTENDED};
use crate::{
    controllers::in_namespace,
    fixtures::{
        LIMIT, admission_gate::AdmissionGate, daemon::Daemon, definitions::plane_with_definitions,
        in_process::InProcess, namespace::NamespaceFixture,
    },
};

async fn create_map(plane: &ControlPlane, namespace: &str, name: &str) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(plane.client()?, namespace);
    let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    maps.create(&PostParams::default(), &map).await?;
    Ok(())
}

// The hanging worker blocks a thread of the runtime; the other threads have to serve requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hanging_worker_fails_liveness_until_it_continues() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("hanging").await?;
    let flags = [&*in_namespace(namespace.name()), "--controller-stuck-timeout=2s"];
    let daemon = InProcess::start(plane, HANGING, &flags).await?;
    let began = Instant::now();
    create_map(plane, namespace.name(), HANGING_MAP).await?;
    let item = format!(
        "item {}/{HANGING_MAP} of queue Hanging has made no progress for",
        namespace.name()
    );
    let words = [&*item, "--controller-stuck-timeout"];
    daemon
        .admin
        .wait_until_failing("/livez", "hanging-controller", &words)
        .await?;
    ensure!(
        began.elapsed() > Duration::from_secs(2),
        "livez failed before --controller-stuck-timeout"
    );
    // Progress of the other worker must not hide the hanging one.
    create_map(plane, namespace.name(), "another").await?;
    let results = "controller_runtime_reconcile_total";
    daemon
        .wait_for_metric(results, &[r#"controller="moving-controller""#], 2.0)
        .await?;
    let failed = daemon.admin.failing("/livez").await?;
    ensure!(
        failed.len() == 1 && failed[0].contains("hanging-controller"),
        "{failed:?}"
    );
    ensure!(daemon.admin.failing("/healthz").await?.len() == 1);
    daemon.admin.ensure_passing("/readyz").await?;
    HANGING_BARRIER.open();
    daemon.admin.wait_until_passing("/livez").await?;
    daemon.admin.ensure_passing("/healthz").await?;
    daemon.stop().await
}

#[tokio::test]
async fn an_unattended_queue_fails_liveness_until_a_worker_takes_an_item() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let began = Instant::now();
    let daemon = InProcess::start(plane, UNATTENDED, &["--queue-stuck-timeout=2s"]).await?;
    let words = [
        "queue Unattended has 1 items due",
        "no worker takes items",
        "--queue-stuck-timeout",
    ];
    daemon
        .admin
        .wait_until_failing("/livez", "unattended-controller", &words)
        .await?;
    ensure!(
        began.elapsed() > Duration::from_secs(2),
        "livez failed before --queue-stuck-timeout"
    );
    daemon.admin.ensure_passing("/readyz").await?;
    START_WORKER.notify_one();
    daemon.admin.wait_until_passing("/livez").await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_hanging_call_fails_liveness_by_item_except_during_shutdown() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let flags = ["--install-crds", "--controller-stuck-timeout=2s"];
    let daemon = Daemon::start(&plane, "hanging-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "hanging").await?;
    let gate = AdmissionGate::close(&plane, &fixture).await?;
    fixture.create_foo("web", "web", 1).await?;
    let write = gate.hold().await?;
    let item = format!("item {}/web of queue foo", fixture.name());
    daemon
        .admin
        .wait_until_failing("/livez", "foo-controller", &[&item])
        .await?;
    daemon.admin.ensure_passing("/readyz").await?;
    // The kubelet must not kill a daemon for a slow item while the daemon shuts down.
    daemon.process.signal(Signal::TERM)?;
    daemon.wait_for_line(&["stopping"]).await?;
    let (status, text) = daemon.admin.get("/livez?verbose").await?;
    ensure!(status == StatusCode::OK, "{text}");
    ensure!(text.contains("[+]foo-controller ok: stopping: item"), "{text}");
    drop(write);
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}: {}", daemon.process.log_tail());
    Ok(())
}

#[tokio::test]
async fn an_idle_standby_stays_healthy() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let flags = [
        "--leader-elect=true",
        "--install-crds",
        "--controller-stuck-timeout=1s",
        "--queue-stuck-timeout=1s",
    ];
    let leader = Daemon::start(&plane, "leading-daemon", &flags[..2]).await?;
    leader.wait_for_line(&["starting workers", "foo-controller"]).await?;
    let standby = Daemon::start(&plane, "standing-by", &flags).await?;
    standby.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "standby").await?;
    let began = Instant::now();
    for number in 0.. {
        fixture.ready_foo(&format!("web-{number}"), 1).await?;
        standby.admin.ensure_passing("/livez").await?;
        standby.admin.ensure_passing("/readyz").await?;
        if began.elapsed() > Duration::from_secs(4) {
            break;
        }
    }
    Ok(())
}

/// The stuck timeouts of a test without a stuck item. They are much longer than a step takes on a
/// loaded machine, and shorter than the pause of the test.
const STUCK_TIMEOUT: Duration = Duration::from_secs(8);
const STUCK_TIMEOUT_FLAGS: [&str; 2] = ["--controller-stuck-timeout=8s", "--queue-stuck-timeout=8s"];

/// A daemon with a long queue, behind a proxy that delays each write, on a control plane of its
/// own.
struct BusyDaemon {
    daemon: Daemon,
    fixture: NamespaceFixture,
    _proxy: FaultProxy,
    _plane: PooledPlane,
}

impl BusyDaemon {
    /// Creates the Foos before the daemon starts, so that all are due at once.
    async fn start(name: &str, foos: usize) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let crds = Api::all(plane.client()?);
        crds.create(&PostParams::default(), &Foo::crd()).await?;
        let fixture = NamespaceFixture::new(&plane, "busy").await?;
        eventually(LIMIT, "Foos to be served", || fixture.create_foo("web-0", "web-0", 1)).await?;
        let names = (1..foos).map(|number| format!("web-{number}"));
        let requests = names.map(|name| {
            let fixture = fixture.clone();
            async move { fixture.create_foo(&name, &name, 1).await }
        });
        let created: Vec<_> = stream::iter(requests).buffer_unordered(16).try_collect().await?;
        ensure!(created.len() + 1 == foos);
        let proxy = FaultProxy::start(&plane).await?;
        let late = Duration::from_millis(300);
        proxy.delay_responses(Matcher::writes(), late, Repeat::UntilHealed);
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), name)?;
        let daemon = Daemon::start_as(&plane, &kubeconfig, name, &STUCK_TIMEOUT_FLAGS).await?;
        daemon.admin.wait_until_ready().await?;
        Ok(Self {
            daemon,
            fixture,
            _proxy: proxy,
            _plane: plane,
        })
    }

    /// Returns the number of Foos that are due and that no worker has taken.
    async fn due(&self) -> Result<f64> {
        let metrics = self.daemon.admin.metrics().await?;
        Ok(metrics.sum("workqueue_depth", &[r#"name="foo""#]))
    }
}

#[tokio::test]
async fn a_daemon_paused_for_longer_than_its_limits_recovers_and_stays_healthy() -> Result<()> {
    let foos = 60;
    let busy = BusyDaemon::start("frozen-daemon", foos).await?;
    let BusyDaemon { daemon, fixture, .. } = &busy;
    eventually(LIMIT, "running reconciles", || async {
        let metrics = daemon.admin.metrics().await?;
        let running = metrics.sum("controller_runtime_active_workers", &[]);
        ensure!(running > 0.0 && busy.due().await? > 0.0, "{running} workers are active");
        anyhow::Ok(())
    })
    .await?;
    daemon.process.pause()?;
    let paused = Instant::now();
    eventually(LIMIT, "the pause to be longer than the limits", || async {
        (paused.elapsed() > STUCK_TIMEOUT + Duration::from_secs(2)).then_some(())
    })
    .await?;
    daemon.process.resume()?;
    for endpoint in ["/livez", "/readyz"] {
        daemon.admin.wait_until_passing(endpoint).await?;
    }
    while busy.due().await? > 0.0 {
        daemon.admin.ensure_passing("/livez").await?;
    }
    for number in 0..foos {
        fixture
            .wait_for_condition(&format!("web-{number}"), "Ready", ConditionStatus::True)
            .await?;
    }
    for endpoint in ["/livez", "/readyz"] {
        daemon.admin.ensure_passing(endpoint).await?;
    }
    Ok(())
}
