//! The executable with the real clock: Kubernetes' e2e test.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use portreeve_testing::ControlPlane;
use serde_json::json;

use super::environment::{CONTROLLERS, seconds};
use crate::fixtures::{daemon::Daemon, jobs::Jobs, namespace::NamespaceFixture, rbac::restricted_kubeconfig};

const FINALIZER: &str = "example.com/a-dummy-finalizer";

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
    let metrics = daemon.admin.metrics().await?;
    let lag = |part: &str| {
        let name = format!("ttl_after_finished_controller_job_deletion_duration_seconds_{part}");
        metrics.sum(&name, &[])
    };
    ensure!(
        (lag("count") - 1.0).abs() < f64::EPSILON && lag("sum") >= 0.0,
        "{}",
        metrics.0
    );

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
