//! A rolling update from the version before CronTab v2, and back to it, under load.

mod load;
mod replicas;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{ListParams, PatchParams},
};
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};

use self::{
    load::Load,
    replicas::{Replicas, Version},
};
use crate::{
    audit::{AuditLog, effects, policy},
    fixtures::{
        LIMIT,
        conversion::{CronTabs, v1, v2},
        daemon::{administer, printed_by},
        manifests,
    },
    scale::is_full_size,
};

/// The annotation with the time of a run.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
const EVERY_MINUTE: &str = "* * * * *";
/// The apiserver converts the objects of a page one by one, and the load takes all processors.
const PAGES: &str = "--page-size=50";
/// How long the runs of the next minute may take.
const NEXT_MINUTE: Duration = Duration::from_secs(90);

/// Returns the numbers of CronTabs that run every minute, and of those whose runs are requested.
fn size() -> (usize, usize) {
    if is_full_size() { (300, 20) } else { (20, 4) }
}

/// Updates replicas of the former version to this one, migrates the CronTabs to v2, and goes back.
#[tokio::test]
async fn an_update_and_a_rollback_lose_and_repeat_no_run_and_reject_no_write() -> Result<()> {
    let (scheduled, requested) = size();
    let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
    apply_definition(&plane, Version::Former).await?;
    let mut replicas = Replicas::start(&plane, Version::Former).await?;
    let namespace = plane.namespace("update").await?;
    let crontabs = CronTabs::of(&namespace);
    let scheduled = create(&crontabs, "scheduled", scheduled, json!({"schedule": EVERY_MINUTE})).await?;
    let requested = create(&crontabs, "requested", requested, json!({"suspend": true})).await?;
    let began = Timestamp::now();
    let load = Load::start(&crontabs, requested);

    replicas.update(&plane, Version::Current, true).await?;
    apply_definition(&plane, Version::Current).await?;
    enable(&plane, &replicas).await?;
    load.use_v2(true).await;
    administer(&plane, &["migrate", "--switch-delay=0s", PAGES]).await?;
    replicas
        .wait_for_line(&["reading objects in their stored version", "v2"])
        .await?;
    let several = run_several_schedules(&crontabs, &namespace).await?;

    // v1 cannot express several schedules.
    crontabs.delete(&CRONTABS_V2, &several).await?;
    load.use_v2(false).await;
    administer(&plane, &["migrate", "--to=v1", "--switch-delay=0s", PAGES]).await?;
    administer(&plane, &["conversion", "disable"]).await?;
    replicas.update(&plane, Version::Former, false).await?;
    let last = Minute::of(Timestamp::now()).next();
    wait_for_runs(&namespace, &scheduled, last).await?;
    let summary = load.finish().await?;

    ensure!(summary.failures.is_empty(), "{:#?}", summary.failures);
    let jobs = Jobs::of(&namespace).await?;
    for (name, requests) in &summary.requests {
        ensure!(*requests > 0, "no run of {name} was requested");
        let runs = jobs.0.get(name).map_or(0, Vec::len);
        ensure!(
            runs == *requests,
            "{requests} runs of {name} were requested, {runs} started"
        );
    }
    for name in &scheduled {
        jobs.ensure_every_minute(name, Minute::of(began).next(), last)?;
    }
    effects::check(&AuditLog::of(&plane)?.events_containing(r#""resource":"jobs""#, 0)?)
}

/// Applies the definition that a version prints.
async fn apply_definition(plane: &ControlPlane, version: Version) -> Result<()> {
    let printed = printed_by(version.program()?, &["crds", "--controllers=crontab"])?;
    let client = plane.client()?;
    for document in manifests::documents(&printed)? {
        manifests::apply(&client, &document, None, &PatchParams::apply("test").force()).await?;
    }
    let crontabs = CronTabs {
        client,
        namespace: "default".to_owned(),
    };
    eventually(LIMIT, "CronTabs to be served", async || crontabs.list(&CRONTABS).await).await?;
    Ok(())
}

/// Serves v2 by the webhooks of the replicas.
async fn enable(plane: &ControlPlane, replicas: &Replicas) -> Result<()> {
    let ca = plane.folder().join("conversion-ca.crt");
    std::fs::write(&ca, plane.authority().pem())?;
    let (url, ca) = (
        format!("--url={}", replicas.url()),
        format!("--ca-file={}", ca.display()),
    );
    administer(plane, &["conversion", "enable", &url, &ca]).await?;
    Ok(())
}

/// Creates CronTabs of v1, waits until they are observed, and returns their names.
async fn create(crontabs: &CronTabs, prefix: &str, count: usize, fields: Value) -> Result<Vec<String>> {
    let names: Vec<_> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
    for name in &names {
        crontabs.create(&CRONTABS, &v1(name, fields.clone())).await?;
    }
    for name in &names {
        eventually(LIMIT, &format!("{name} to be observed"), || async {
            let status = crontabs.get(&CRONTABS, name).await?["status"].take();
            ensure!(status["observedGeneration"].is_u64(), "{status}");
            anyhow::Ok(())
        })
        .await?;
    }
    Ok(names)
}

/// Creates a CronTab with two schedules that are due in the next minute, and waits for both runs.
async fn run_several_schedules(crontabs: &CronTabs, namespace: &Namespace) -> Result<String> {
    let name = "several".to_owned();
    let schedules = ["default", "other"].map(|name| json!({"name": name, "schedule": EVERY_MINUTE}));
    crontabs
        .create(&CRONTABS_V2, &v2(&name, json!({"schedules": schedules})))
        .await?;
    eventually(NEXT_MINUTE, "the runs of both schedules", || async {
        let runs = Jobs::of(namespace).await?.0.remove(&name).unwrap_or_default();
        ensure!(runs.len() >= 2, "{runs:?}");
        anyhow::Ok(())
    })
    .await?;
    Ok(name)
}

/// Waits until every one of these CronTabs has started its run of a minute.
async fn wait_for_runs(namespace: &Namespace, names: &[String], minute: Minute) -> Result<()> {
    eventually(NEXT_MINUTE, "the runs of the next minute", || async {
        let jobs = Jobs::of(namespace).await?;
        for name in names {
            let minutes = jobs.minutes(name);
            ensure!(
                minutes.contains(&minute),
                "{name} ran in {minutes:?}, not in {minute:?}"
            );
        }
        anyhow::Ok(())
    })
    .await
}

/// A number of minutes since 1970.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Minute(i64);

impl Minute {
    fn of(time: Timestamp) -> Self {
        Self(time.as_second() / 60)
    }

    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The times at which the runs of each CronTab were due. A requested run has none.
struct Jobs(BTreeMap<String, Vec<Option<Timestamp>>>);

impl Jobs {
    async fn of(namespace: &Namespace) -> Result<Self> {
        let jobs: Api<Job> = namespace.api();
        let mut runs: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for job in jobs.list(&ListParams::default()).await? {
            let crontab = job.labels().get("stable.example.com/crontab");
            let crontab = crontab.context("a Job has no CronTab")?.clone();
            let due = job.annotations().get(SCHEDULED).map(|time| time.parse());
            runs.entry(crontab).or_default().push(due.transpose()?);
        }
        Ok(Self(runs))
    }

    /// Returns the minutes in which a CronTab ran, the earliest first.
    fn minutes(&self, name: &str) -> Vec<Minute> {
        let times = self.0.get(name).into_iter().flatten().flatten();
        let mut minutes: Vec<_> = times.map(|time| Minute::of(*time)).collect();
        minutes.sort_unstable();
        minutes
    }

    /// Fails unless a CronTab has run exactly once in each of these minutes.
    fn ensure_every_minute(&self, name: &str, first: Minute, last: Minute) -> Result<()> {
        let mut found = self.minutes(name);
        found.retain(|minute| (first..=last).contains(minute));
        let expected: Vec<_> = (first.0..=last.0).map(Minute).collect();
        ensure!(found == expected, "{name} ran in {found:?}, not {expected:?}");
        Ok(())
    }
}
