//! The executable with the real clock. It is killed while it starts the Jobs of many schedules that
//! are due in the same minute.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use portreeve_testing::{Fault, FaultProxy, Matcher, Repeat, Signal, eventually};
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    daemon::Daemon,
    definitions::plane_with_definitions,
    namespace::NamespaceFixture,
    schedules::{Kind, next_minute},
};

/// The number of schedules of each kind.
const SCHEDULES: usize = 20;
/// The delay of each Job creation, so that the last Job is created seconds after the first.
const JOB_DELAY: Duration = Duration::from_millis(50);
/// The number of Job creations after which the daemon is killed.
const JOBS_BEFORE_KILL: u64 = 10;
/// The maximum time until the schedules are due: a minute and the head start.
const TIME_UNTIL_DUE: Duration = Duration::from_secs(75);
/// The minimum number of seconds between the start of the creation of the schedules and their due
/// time.
const HEAD_START: i64 = 15;

/// The flags of a daemon that creates Jobs one after the other.
const SEQUENTIAL: [&str; 4] = [
    "--install-crds",
    "--controllers=crontab,cronjob",
    "--concurrent-crontab-syncs=1",
    "--concurrent-cron-job-syncs=1",
];

#[tokio::test]
async fn a_daemon_killed_between_jobs_creates_the_rest_and_none_twice() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let creations = proxy.fault(
        Matcher::any().method("POST").resource("jobs"),
        Fault::DelayRequest(JOB_DELAY),
        Repeat::UntilHealed,
    );
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "mortal-scheduler")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "mortal-scheduler", &SEQUENTIAL).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "killed").await?;
    let slot = next_minute(Timestamp::now() + Duration::from_secs(HEAD_START.unsigned_abs()), 1);
    let all: Vec<(Kind, String)> = Kind::BOTH
        .into_iter()
        .flat_map(|kind| (0..SCHEDULES).map(move |number| (kind, format!("{}-{number}", kind.name()))))
        .collect();
    // The schedules run once an hour, so none is due again during the test.
    let minute = slot.as_second() / 60 % 60;
    try_join_all(all.iter().map(|(kind, name)| create(&fixture, *kind, name, minute))).await?;
    ensure!(
        Timestamp::now() < slot,
        "creating the schedules took longer than the head start"
    );

    let jobs: Api<Job> = fixture.namespace.api();
    creations
        .wait_for_applied(JOBS_BEFORE_KILL, TIME_UNTIL_DUE + LIMIT)
        .await?;
    daemon.process.signal(Signal::KILL)?;
    daemon.process.wait(LIMIT).await?;
    let created = jobs.list(&ListParams::default()).await?.items;
    ensure!(
        !created.is_empty() && created.len() < all.len(),
        "the kill interrupted nothing"
    );

    let daemon = Daemon::start(&plane, "mortal-scheduler", &SEQUENTIAL).await?;
    let mut expected: Vec<_> = all.iter().map(|(kind, name)| kind.job_of(name, slot)).collect();
    expected.sort();
    let now = eventually(LIMIT, "the other Jobs", || async {
        let now = jobs.list(&ListParams::default()).await?.items;
        let mut names: Vec<_> = now.iter().map(ResourceExt::name_any).collect();
        names.sort();
        ensure!(names == expected, "{} Jobs", names.len());
        anyhow::Ok(now)
    })
    .await?;
    for before in &created {
        let same = now
            .iter()
            .find(|job| job.name_any() == before.name_any())
            .context("a Job is gone")?;
        ensure!(same.uid() == before.uid(), "{} was recreated", before.name_any());
    }
    let log = daemon.log()?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

async fn create(fixture: &NamespaceFixture, kind: Kind, name: &str, minute: i64) -> Result<()> {
    let manifest = kind.manifest(name, &format!("{minute} * * * *"), &json!({}));
    let path = kind.resource().collection_path(Some(fixture.name()));
    let request = kube::core::request::Request::new(path);
    let request = request.create(&PostParams::default(), serde_json::to_vec(&manifest)?)?;
    let created = fixture.namespace.client().request::<serde_json::Value>(request).await;
    created.with_context(|| format!("failed to create {name}"))?;
    Ok(())
}
