//! The executable with the real clock: Kubernetes' e2e test, a kill during the deletions, and a dry
//! run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use portreeve_testing::{ControlPlane, FaultProxy, Signal, eventually};
use serde_json::json;

use super::environment::{CONTROLLERS, seconds};
use crate::fixtures::{LIMIT, daemon::Daemon, jobs::Jobs, namespace::NamespaceFixture, rbac::restricted_kubeconfig};

const FINALIZER: &str = "example.com/a-dummy-finalizer";
const JOBS: usize = 200;
/// The delay of each request. Deletions are sequential, so all of them take ten seconds.
const DELETION_DELAY: Duration = Duration::from_millis(100);

/// Has the steps of "`TTLAfterFinished` job should be deleted once it finishes after TTL seconds"
/// in Kubernetes' e2e tests. The test does the work of the job controller and of the garbage
/// collector itself.
#[tokio::test]
async fn job_should_be_deleted_once_it_finishes_after_ttl_seconds() -> Result<()> {
    let ttl = 10;
    let plane = ControlPlane::pooled().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &[CONTROLLERS]).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "ttl", &[CONTROLLERS]).await?;
    daemon.admin.wait_until_ready().await?;
    let jobs = Jobs::of(&NamespaceFixture::new(&plane, "ttl").await?);
    let spec = json!({"ttlSecondsAfterFinished": ttl, "backoffLimit": 2, "completions": 1, "parallelism": 1});
    jobs.create_with("rand-non-local", spec, &[FINALIZER]).await?;
    jobs.end(
        "rand-non-local",
        Timestamp::from_second(Timestamp::now().as_second())?,
        true,
    )
    .await?;
    let job = jobs.wait_until_deleted("rand-non-local").await?;
    let expires = finish_time(&job).context("the Job has no finish time")? + seconds(ttl);
    let deleted = job
        .metadata
        .deletion_timestamp
        .as_ref()
        .context("the Job has no deletion timestamp")?
        .0;
    ensure!(
        deleted >= expires,
        "deleted at {deleted}, before it expires at {expires}"
    );
    // On an idle machine, the Job is deleted within a second. The limit allows for busy machines.
    println!("the Job expired at {expires} and was deleted at {deleted}");
    ensure!(
        deleted <= expires + seconds(5),
        "deleted at {deleted}, too long after it expired at {expires}"
    );
    let lag = daemon.admin.metrics().await?;
    let metric = |part: &str| {
        lag.sum(
            &format!("ttl_after_finished_controller_job_deletion_duration_seconds_{part}"),
            &[],
        )
    };
    println!("the deletion was {} ms late", 1000.0 * metric("sum"));
    ensure!((metric("count") - 1.0).abs() < f64::EPSILON && (0.0..5.0).contains(&metric("sum")));

    let finalizers: Vec<_> = job.finalizers().iter().filter(|name| *name != FINALIZER).collect();
    jobs.merge("rand-non-local", json!({"metadata": {"finalizers": finalizers}}))
        .await?;
    let left = jobs.0.get("rand-non-local").await?;
    ensure!(left.finalizers() == ["foregroundDeletion"], "{:?}", left.finalizers());
    jobs.merge("rand-non-local", json!({"metadata": {"finalizers": null}}))
        .await?;
    ensure!(
        jobs.0.get_opt("rand-non-local").await?.is_none(),
        "the Job still exists"
    );
    let forbidden = daemon
        .admin
        .metrics()
        .await?
        .sum("rest_client_requests_total", &[r#"code="403""#]);
    ensure!(forbidden == 0.0, "{forbidden} requests were refused");
    Ok(())
}

fn finish_time(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions
        .iter()
        .find(|found| ["Complete", "Failed"].contains(&&*found.type_) && found.status == "True");
    Some(end?.last_transition_time.as_ref()?.0)
}

#[tokio::test]
async fn a_daemon_killed_between_deletions_deletes_the_rest_and_none_too_early() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(&restricted_kubeconfig(&plane, &[CONTROLLERS]).await?, "portreeve")?;
    let flags = [CONTROLLERS, "--concurrent-ttl-after-finished-syncs=1"];
    let jobs = Jobs::of(&NamespaceFixture::new(&plane, "killed").await?);
    // Every second Job expires now, and the others in an hour.
    let now = Timestamp::from_second(Timestamp::now().as_second())?;
    let ttl = |number: usize| if number.is_multiple_of(2) { 0 } else { 3_600 };
    try_join_all((0..JOBS).map(async |number| {
        let name = format!("job-{number}");
        jobs.create(&name, json!({"ttlSecondsAfterFinished": ttl(number)}))
            .await?;
        jobs.end(&name, now, true).await
    }))
    .await?;
    proxy.slow(DELETION_DELAY);
    let daemon = Daemon::start_as(&plane, &kubeconfig, "killed-daemon", &flags).await?;
    eventually(LIMIT, "the first deletions", || async {
        let count = jobs.deleted().await?.len();
        ensure!(count >= 5, "{count}");
        anyhow::Ok(())
    })
    .await?;
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    proxy.heal();
    let before = jobs.deleted().await?;
    println!("killed with {} of {} Jobs deleted", before.len(), JOBS / 2);
    ensure!(before.len() < JOBS / 2, "the kill did not interrupt the deletions");

    let daemon = Daemon::start_as(&plane, &kubeconfig, "killed-daemon", &flags).await?;
    let after = eventually(LIMIT, "the other deletions", || async {
        let after = jobs.deleted().await?;
        ensure!(after.len() >= JOBS / 2, "{}", after.len());
        anyhow::Ok(after)
    })
    .await?;
    ensure!(
        after
            .iter()
            .all(|job| job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) == Some(0))
    );
    for job in &before {
        let same = after
            .iter()
            .find(|after| after.name_any() == job.name_any())
            .context("a Job that was being deleted before the kill is gone")?;
        ensure!(
            same.metadata.resource_version == job.metadata.resource_version,
            "{} was deleted twice",
            job.name_any()
        );
    }
    let log = daemon.log()?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_dry_run_logs_the_deletion_and_deletes_nothing() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let flags = [CONTROLLERS, "--dry-run"];
    let daemon = Daemon::start_as(
        &plane,
        &restricted_kubeconfig(&plane, &[CONTROLLERS]).await?,
        "dry-run",
        &flags,
    )
    .await?;
    let jobs = Jobs::of(&NamespaceFixture::new(&plane, "dry").await?);
    jobs.create("due", json!({"ttlSecondsAfterFinished": 0})).await?;
    jobs.end("due", Timestamp::from_second(Timestamp::now().as_second())?, true)
        .await?;
    daemon
        .wait_for_line(&["dry run: would do", "delete Job dry-", "/due"])
        .await?;
    jobs.ensure_kept(&["due"]).await
}
