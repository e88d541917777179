//! CronTabs that are all due at one time, and whose Jobs a quota rejects.
//!
//! The full size is 10,000 CronTabs with the default limit of retries. It also measures how late
//! other schedules start, before the storm and during it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::{batch::v1::Job, core::v1::ResourceQuota};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use portreeve_crontab::api::RUN_NOW;
use portreeve_testing::{ControlPlane, PooledPlane, eventually};
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::is_full_size;
use crate::{
    audit::{AuditLog, Event, policy},
    fixtures::{
        LIMIT,
        admin::Metrics,
        clock::OffsetClock,
        in_process::InProcess,
        namespace::NamespaceFixture,
        schedules::{Kind, minutes, next_minute},
    },
};

/// The number of clients that create objects.
const CLIENTS: usize = 16;
/// The number of other schedules that are due at the same time in the full size.
const OTHERS: usize = 100;
/// The time limit of the setup in the full size.
const SETUP_LIMIT: Duration = Duration::from_mins(10);

/// The size of a storm.
struct Size {
    crontabs: usize,
    flags: &'static [&'static str],
    /// The limit of writes per second, 1.5 times the retries per second that the flags allow.
    writes_per_second: usize,
    /// How long writes are counted.
    window: Duration,
}

const SMALL: Size = Size {
    crontabs: 60,
    flags: &["--retry-qps=2", "--retry-burst=5"],
    writes_per_second: 3,
    window: Duration::from_secs(10),
};

const FULL: Size = Size {
    crontabs: 10_000,
    flags: &[],
    writes_per_second: 15,
    window: Duration::from_secs(140),
};

struct Storm {
    // The fields are dropped in this order.
    daemon: InProcess,
    clock: OffsetClock,
    /// The namespace whose Jobs the quota rejects.
    refused: NamespaceFixture,
    /// A namespace without a quota.
    other: NamespaceFixture,
    log: AuditLog,
    /// The time at which the CronTabs are due.
    due: Timestamp,
    _plane: PooledPlane,
}

impl Storm {
    /// Starts a daemon with CronTabs that are due in half a day.
    async fn start(size: &Size) -> Result<Self> {
        let plane = ControlPlane::builder().audit_policy(policy::WRITES).pooled().await?;
        let clock = OffsetClock::new();
        let mut flags = vec!["--controllers=crontab", "--install-crds"];
        flags.extend(size.flags);
        let system_clock = Arc::new(clock.clone());
        let storm = Self {
            daemon: InProcess::start_as(plane.kubeconfig(), system_clock, portreeve_cli::CONTROLLERS, &flags).await?,
            clock,
            refused: NamespaceFixture::new(&plane, "refused").await?,
            other: NamespaceFixture::new(&plane, "other").await?,
            log: AuditLog::of(&plane)?,
            due: next_minute(Timestamp::now(), 1) + minutes(12 * 60),
            _plane: plane,
        };
        storm.reject_jobs().await?;
        storm.create(&storm.refused, "tab", storm.due, size.crontabs).await?;
        Ok(storm)
    }

    /// Creates CronTabs that are due at a time, once a day.
    async fn create(&self, fixture: &NamespaceFixture, prefix: &str, due: Timestamp, count: usize) -> Result<()> {
        let due = due.to_zoned(TimeZone::UTC);
        let schedule = &*format!("{} {} * * *", due.minute(), due.hour());
        let creations = (0..count).map(|number| async move {
            let name = format!("{prefix}-{number}");
            Kind::CronTab
                .create(&fixture.namespace, &name, schedule, &json!({}))
                .await
        });
        let created = stream::iter(creations).buffer_unordered(CLIENTS);
        created.try_for_each(|_| async { Ok(()) }).await
    }

    /// Makes the apiserver reject all Jobs in the namespace `refused`.
    async fn reject_jobs(&self) -> Result<()> {
        let quota = json!({"metadata": {"name": "no-jobs"}, "spec": {"hard": {"count/jobs.batch": "0"}}});
        self.quotas()
            .create(&PostParams::default(), &serde_json::from_value(quota)?)
            .await?;
        set_used(&self.quotas(), 0).await?;
        let jobs: Api<Job> = self.refused.namespace.api();
        let job = json!({"metadata": {"name": "probe"}, "spec": {"template": {"spec": {
            "containers": [{"name": "main", "image": "example.com/main:1"}], "restartPolicy": "Never"}}}});
        let (job, dry_run) = (
            serde_json::from_value(job)?,
            PostParams {
                dry_run: true,
                ..PostParams::default()
            },
        );
        eventually(LIMIT, "the quota to reject Jobs", || async {
            ensure!(jobs.create(&dry_run, &job).await.is_err(), "a Job was accepted");
            anyhow::Ok(())
        })
        .await
    }

    fn quotas(&self) -> Api<ResourceQuota> {
        self.refused.namespace.api()
    }

    async fn wait_for(&self, limit: Duration, what: &str, check: impl Fn(&Metrics) -> Result<()>) -> Result<()> {
        eventually(limit, what, || async { check(&self.daemon.admin.metrics().await?) }).await
    }

    /// Waits until the controller has processed every event of `crontabs` CronTabs.
    async fn wait_until_idle(&self, crontabs: usize) -> Result<()> {
        let limit = if is_full_size() { SETUP_LIMIT } else { LIMIT };
        self.wait_for(limit, "an idle controller", |metrics| {
            let objects = metrics.sum("portreeve_informer_objects", &[r#"resource="crontabs."#]);
            ensure!(count(objects) == crontabs, "{objects} CronTabs are known");
            let depth = metrics.sum("workqueue_depth", &[]);
            let active = metrics.sum("controller_runtime_active_workers", &[]);
            ensure!(depth + active == 0.0, "{depth} CronTabs wait, {active} are reconciled");
            Ok(())
        })
        .await
    }

    /// Returns the daemon's writes in the namespace `refused` since a time.
    fn writes_since(&self, start: Timestamp) -> Result<Vec<Event>> {
        let mut writes = self.log.events_containing(self.refused.name(), 0)?;
        writes.retain(|write| {
            write.is_of_daemon()
                && write.namespace() == self.refused.name()
                && write.request_received_timestamp >= start
        });
        Ok(writes)
    }

    /// Waits until each CronTab has a status and an event that report the rejection.
    async fn wait_until_reported(&self, crontabs: usize, start: Timestamp) -> Result<()> {
        eventually(LIMIT, "the rejections to be reported", || async {
            let writes = self.writes_since(start)?;
            let patches = writes
                .iter()
                .filter(|write| write.verb == "patch" && write.resource() == "crontabs");
            let reported: BTreeSet<_> = patches.map(Event::object).collect();
            let events = writes.iter().filter(|write| write.resource() == "events").count();
            ensure!(
                reported.len() == crontabs && events >= crontabs,
                "{} reported, {events} events",
                reported.len()
            );
            anyhow::Ok(())
        })
        .await
    }

    /// Counts writes for the window of this size, and checks that there are some, but not too many.
    /// Events do not count: they are queued, so a slow apiserver gets those of earlier retries.
    async fn check_writes(&self, size: &Size) -> Result<()> {
        let start = Timestamp::now();
        sleep(size.window).await;
        let mut writes = self.writes_since(start)?;
        writes.retain(|write| write.resource() != "events");
        let seconds = usize::try_from(size.window.as_secs())?;
        let (found, allowed) = (writes.len(), size.writes_per_second * seconds);
        ensure!(found <= allowed, "{found} writes in {seconds} s");
        ensure!(found >= allowed / 4, "only {found} retries in {seconds} s");
        Ok(())
    }

    /// Checks that the endpoints show the storm, and that it fails no check.
    async fn check_endpoints(&self) -> Result<()> {
        let (status, text) = self.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        let line = text.lines().find(|line| line.contains("retries/crontab"));
        let line = line.with_context(|| text.clone())?;
        ensure!(line.contains("failed items wait longer for a retry"), "{line}");
        self.daemon.admin.ensure_passing("/livez").await
    }

    /// Removes the quota, and waits until `jobs` Jobs were created in total.
    async fn recover(&self, jobs: usize) -> Result<()> {
        self.quotas().delete("no-jobs", &DeleteParams::default()).await?;
        self.wait_for(LIMIT, &format!("{jobs} Jobs"), |metrics| {
            let created = metrics.sum("crontab_controller_job_creation_skew_duration_seconds_count", &[]);
            ensure!(count(created) == jobs, "{created} were created");
            Ok(())
        })
        .await?;
        self.wait_for(LIMIT, "no retry to be held back", |metrics| {
            let held = metrics.sum("workqueue_held_retries", &[]);
            ensure!(held == 0.0, "{held} are held back");
            Ok(())
        })
        .await?;
        let (_, text) = self.daemon.admin.get("/readyz?verbose").await?;
        ensure!(text.contains("[+]retries/crontab ok"), "{text}");
        Ok(())
    }

    /// Returns how long after its due time each Job of the CronTabs `prefix` was created, sorted.
    /// `started` is the present time at which the clock showed `due`.
    fn delays(&self, prefix: &str, started: Timestamp) -> Result<Vec<SignedDuration>> {
        let writes = self.log.events_containing(self.other.name(), 0)?;
        let created = writes.iter().filter(|write| {
            let name = write.object_ref.as_ref().map_or("", |object| &*object.name);
            write.resource() == "jobs" && write.is_success() && name.starts_with(prefix)
        });
        let mut delays: Vec<_> = created
            .map(|write| write.stage_timestamp.duration_since(started))
            .collect();
        delays.sort_unstable();
        Ok(delays)
    }
}

/// Returns a number of objects that a metric shows.
fn count(value: f64) -> usize {
    format!("{value}").parse().unwrap_or(usize::MAX)
}

/// Sets the usage that the message of a rejection contains.
async fn set_used(quotas: &Api<ResourceQuota>, jobs: u64) -> Result<()> {
    let (hard, used) = (
        json!({"count/jobs.batch": "0"}),
        json!({"count/jobs.batch": jobs.to_string()}),
    );
    let status: Value = json!({"status": {"hard": hard, "used": used}});
    quotas
        .patch_status("no-jobs", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Changes the usage of the quota, and so the message of its rejections, until the result is
/// dropped.
fn change_messages(quotas: Api<ResourceQuota>) -> JoinSet<Result<()>> {
    let mut task = JoinSet::new();
    task.spawn(async move {
        for jobs in 1.. {
            set_used(&quotas, jobs).await?;
            sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    });
    task
}

#[tokio::test]
async fn rejected_retries_are_limited_and_made_up_once_the_quota_is_gone() -> Result<()> {
    if is_full_size() {
        return full_storm().await;
    }
    let storm = Storm::start(&SMALL).await?;
    storm.wait_until_idle(SMALL.crontabs).await?;
    let messages = change_messages(storm.quotas());
    let start = Timestamp::now();
    storm.clock.set(storm.due);
    storm.wait_until_reported(SMALL.crontabs, start).await?;
    storm.check_writes(&SMALL).await?;
    storm.check_endpoints().await?;
    // A new schedule is not held back.
    storm.create(&storm.other, "new", storm.due + minutes(60), 1).await?;
    let run_now = Patch::Merge(json!({"metadata": {"annotations": {RUN_NOW: "1"}}}));
    let others = Kind::CronTab.objects(&storm.other.namespace);
    // A value that is set before the first status starts no run.
    eventually(LIMIT, "a status of the new schedule", || async {
        let status = others.get("new-0").await?.data["status"].take();
        ensure!(status["observedGeneration"].is_i64(), "the status is {status}");
        anyhow::Ok(())
    })
    .await?;
    others.patch("new-0", &PatchParams::default(), &run_now).await?;
    let jobs: Api<Job> = storm.other.namespace.api();
    eventually(LIMIT, "the requested run", || async {
        ensure!(
            !jobs.list(&ListParams::default()).await?.items.is_empty(),
            "no Job exists"
        );
        anyhow::Ok(())
    })
    .await?;
    drop(messages);
    storm.recover(SMALL.crontabs).await?;
    storm.daemon.stop().await
}

async fn full_storm() -> Result<()> {
    let storm = Storm::start(&FULL).await?;
    let batches = [("calm", -1), ("first", 2), ("second", 3)];
    for (prefix, minute) in batches {
        storm
            .create(&storm.other, prefix, storm.due + minutes(minute), OTHERS)
            .await?;
    }
    storm.wait_until_idle(FULL.crontabs + OTHERS * batches.len()).await?;
    // The clock is set only once, because that also reconciles the CronTabs that wait for a retry.
    let lead = SignedDuration::from_secs(120);
    let start = Timestamp::now() + lead;
    storm.clock.set(storm.due - lead);
    let due = Instant::now() + lead.unsigned_abs();
    sleep_until(due + Duration::from_mins(1)).await;
    storm.check_writes(&FULL).await?;
    storm.check_endpoints().await?;
    let mut worst = Vec::new();
    for (prefix, minute) in batches {
        let delays = storm.delays(prefix, start + minutes(minute))?;
        ensure!(delays.len() == OTHERS, "{} Jobs of {prefix} were created", delays.len());
        worst.push(delays[OTHERS * 99 / 100 - 1]);
    }
    storm.recover(FULL.crontabs + OTHERS * batches.len()).await?;
    let during = worst[1].max(worst[2]);
    ensure!(
        during <= worst[0] * 3 / 2,
        "the p99 is {during:#} instead of {:#}",
        worst[0]
    );
    storm.daemon.stop().await
}
