//! `portreeve testenv`, beside kube-controller-manager with the same controllers: the start and the
//! end, memory, the time until `/settled` answers, and the Go tests of `hack/testenv`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::WatchParams;
use portreeve_testing::{Process, Signal, Testenv, server_binary};
use tempfile::tempdir;

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{object, post, resource};
use crate::options::{Options, Step};
use crate::run::Run;
use crate::statistics::{Spread, Unit, Value};
use crate::usage::settled;
use crate::watch::Watch;

/// The number of requests to `/settled`, of which the median counts.
const REQUESTS: usize = 20;
/// The tests that either program passes; the others are about the helper.
const TESTS: &str =
    "-run=^Test(Cascade|ForegroundDeletion|Orphan|Namespace|JobTTL|PersistentVolumeClaim|ServiceAccount)$";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testenv/test");
/// The time limit of the Go tests. The first run compiles them.
const GO_LIMIT: Duration = Duration::from_mins(30);

/// Measures the start with one namespace that has no `ServiceAccount` yet, and memory.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    const NAMESPACE: &str = "bench";
    let namespaces = Api::all_with(run.client.clone(), &resource(("v1", "Namespace")));
    post(&namespaces, object("namespace", &[("name", &NAMESPACE)])).await?;
    run.idle(None).await?;
    let accounts = Api::namespaced_with(run.client.clone(), NAMESPACE, &resource(("v1", "ServiceAccount")));
    let first = Watch::start(&accounts, WatchParams::default()).await?;
    let first = first.until_all(START_LIMIT, 1, |_| true);
    let started = Instant::now();
    if run.step.subject.is_peer() {
        let controller = Controller::spawn(run, None)?;
        let took = controller.guard(first.last(started)).await?;
        let memory = controller.at_rest(run, started).await?;
        return Ok(vec![Unit::Seconds.of("start to first ServiceAccount", took), memory]);
    }
    let mut testenv = Testenv::launch(&run.options.daemon, run.plane.kubeconfig(), &[])?;
    let took = first.last(started).await?;
    testenv.wait_until_ready().await?;
    let mut values = vec![
        Unit::Seconds.of("start to first ServiceAccount", took),
        Unit::Seconds.of("start to ready", testenv.ready_after()?.as_secs_f64()),
        Unit::Seconds.of("answer of /settled", settle(&testenv).await?),
        settled(testenv.pid(), started + run.options.rest()).await?,
    ];
    let signalled = Instant::now();
    testenv.signal(Signal::TERM)?;
    testenv.ended().await?;
    values.push(Unit::Seconds.of("SIGTERM to end", signalled.elapsed().as_secs_f64()));
    Ok(values)
}

/// Returns the median of the seconds until `/settled` answers, each over a new connection.
async fn settle(testenv: &Testenv) -> Result<f64> {
    testenv.settled().await?;
    let mut seconds = Vec::new();
    for _ in 0..REQUESTS {
        let asked = Instant::now();
        testenv.settled().await?;
        seconds.push(asked.elapsed().as_secs_f64());
    }
    let spread = Spread::of(seconds).context("nothing was measured")?;
    Ok(spread.median)
}

/// Measures the Go tests, which start a control plane of envtest.
pub(crate) async fn measure_go(options: &Options, step: &Step) -> Result<Vec<Value>> {
    let folder = tempdir().context("failed to create a temporary folder")?;
    let daemon = options.daemon.canonicalize();
    let daemon = daemon.with_context(|| format!("failed to find {}", options.daemon.display()))?;
    let daemon = daemon.to_string_lossy();
    let manager = if step.subject.is_peer() {
        server_binary("kube-controller-manager")?
    } else {
        PathBuf::default()
    };
    let manager = manager.to_string_lossy();
    let envs = [
        ("TEST_ASSET_PORTREEVE", &*daemon),
        ("TEST_ASSET_KUBE_CONTROLLER_MANAGER", &*manager),
    ];
    let log = folder.path().join("log");
    let tests = Process::spawn("go test", Path::new(SCRIPT), [TESTS], &envs, &log)?;
    let status = tests.wait(GO_LIMIT).await?;
    ensure!(status.success(), "{SCRIPT} ended with {status}{}", tests.log_tail());
    // `go test` prints `ok`, the package and its seconds.
    let line = tests
        .wait_for_log(Duration::from_secs(1), |line| line.starts_with("ok "))
        .await?;
    let seconds = line
        .split_whitespace()
        .last()
        .and_then(|last| last.strip_suffix('s')?.parse().ok());
    let seconds = seconds.with_context(|| format!("no seconds in {line:?}"))?;
    Ok(vec![Unit::Seconds.of("the tests", seconds)])
}
