//! Many schedules that are due in the same minute: the delay of each Job.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use portreeve_testing::ControlPlane;
use tokio::time::sleep;

use crate::audit::{self, Tail};
use crate::bench::Bench;
use crate::controller::{Controller, Limits, Role, kind_of};
use crate::objects::{self, Created, Kind, NAMESPACE};
use crate::plan::Step;
use crate::rows::{Measure, Row, Sample, Subject, Task};
use crate::statistics::percentile;

/// The planned time between the creation of the last schedule and the minute in which all are due.
const LEAD: SignedDuration = SignedDuration::from_secs(10);
/// The time that is planned for the creation of each schedule.
const LEAD_PER_SCHEDULE: SignedDuration = SignedDuration::from_millis(20);
/// The time that must be left when all schedules are created; otherwise the measurement fails.
const MIN_LEAD: SignedDuration = SignedDuration::from_secs(5);
/// How long after that minute the last Job may be created. kube-controller-manager's default rate
/// limit delays its requests by minutes.
const LIMIT: Duration = Duration::from_mins(10);
/// How often the audit log is read. This does not affect the results, because the log contains the
/// times.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(20);

pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let Step {
        round: _,
        work,
        subject,
    } = *step;
    let row = work.row();
    let limits = match row {
        Row::DueDefault => Limits::Default,
        _ => Limits::Lifted(bench.concurrency),
    };
    let count = bench.options.count(row);
    let plane = ControlPlane::builder().audit_policy(audit::POLICY).start().await?;
    let run = DueRun {
        bench,
        plane: &plane,
        client: client(&plane)?,
        subject,
        count,
    };
    let delays = if subject.is_floor() {
        let concurrency = match limits {
            Limits::Lifted(concurrency) => concurrency,
            Limits::Default => bench.default_concurrency,
        };
        run.floor(concurrency).await?
    } else {
        let controller = Controller::start(
            Task::Schedules,
            subject,
            bench.daemon.as_ref(),
            &plane,
            Role::Alone(limits),
        )
        .await?;
        controller.guard(run.controller(&controller)).await?
    };
    samples(row, subject, &delays)
}

/// Returns a client without retries.
pub(crate) fn client(plane: &ControlPlane) -> Result<Client> {
    let mut config = plane.config()?;
    config.default_retry = false;
    Client::try_from(config).context("failed to build a client")
}

struct DueRun<'a> {
    bench: &'a Bench,
    plane: &'a ControlPlane,
    client: Client,
    subject: Subject,
    count: usize,
}

impl DueRun<'_> {
    async fn controller(&self, controller: &Controller) -> Result<Vec<f64>> {
        let (due, _) = self.schedules().await?;
        controller.has_caught_up(&self.client, "probe").await?;
        self.check_lead(due)?;
        self.delays(due).await
    }

    /// Creates the Jobs by the bare client.
    async fn floor(&self, concurrency: u16) -> Result<Vec<f64>> {
        let (due, owners) = self.schedules().await?;
        let writes = owners
            .iter()
            .map(|owner| Ok((owner, serde_json::from_value(owner.job(due))?)));
        let writes = writes.collect::<Result<Vec<(&Created, DynamicObject)>, serde_json::Error>>();
        let writes = writes.context("failed to create the Jobs")?;
        self.check_lead(due)?;
        let gvk = GroupVersionKind::gvk("batch", "v1", "Job");
        let jobs: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), NAMESPACE, &ApiResource::from_gvk(&gvk));
        let owners = Kind::CronJob.api(&self.client);
        let write = |(owner, job): (&Created, DynamicObject)| {
            let (jobs, owners) = (jobs.clone(), owners.clone());
            let status = (self.subject == Subject::FloorStatus).then(|| owner.clone());
            async move {
                let job = jobs.create(&PostParams::default(), &job).await?;
                if let Some(owner) = status {
                    let status = owner.status(due, &job.metadata.uid.unwrap_or_default());
                    owners
                        .patch_status(&owner.name, &PatchParams::default(), &Patch::Merge(status))
                        .await?;
                }
                Ok::<(), kube::Error>(())
            }
        };
        until(due).await;
        let writes = stream::iter(writes).map(Ok);
        writes
            .try_for_each_concurrent(usize::from(concurrency), write)
            .await
            .context("failed to write what a controller writes")?;
        self.delays(due).await
    }

    /// Creates the schedules, due in the next minute that leaves enough time.
    async fn schedules(&self) -> Result<(Timestamp, Vec<Created>)> {
        let each = i32::try_from(self.count).context("too many schedules")?;
        // The bare client parses no schedule, so it may start at any full second.
        let granularity = if self.subject.is_floor() { 1 } else { 60 };
        let due = next_multiple(Timestamp::now(), LEAD + LEAD_PER_SCHEDULE * each, granularity);
        let schedule = objects::once_at(due);
        let kind = kind_of(self.subject);
        let progress = &self.bench.progress;
        let created = objects::create(kind, &self.client, self.count, |_| schedule.clone(), progress).await?;
        Ok((due, created))
    }

    fn check_lead(&self, due: Timestamp) -> Result<()> {
        let left = due.duration_since(Timestamp::now());
        ensure!(
            left >= MIN_LEAD,
            "only {left} were left before they are due: this machine is too busy to measure on"
        );
        let count = self.count;
        self.bench
            .progress
            .log(format!("  {count} schedules are due in {} s", left.as_secs()));
        Ok(())
    }

    /// Waits for every Job and returns the delays in seconds, sorted.
    async fn delays(&self, due: Timestamp) -> Result<Vec<f64>> {
        let log = self.plane.audit_log().context("the control plane has no audit log")?;
        until(due).await;
        let mut tail = Tail::of(log);
        let mut made = BTreeMap::new();
        let started = Instant::now();
        let mut next_progress = PROGRESS_INTERVAL;
        while made.len() < self.count {
            let elapsed = started.elapsed();
            ensure!(
                elapsed < LIMIT,
                "only {} of {} Jobs were made in {LIMIT:?}",
                made.len(),
                self.count
            );
            if elapsed >= next_progress {
                next_progress += PROGRESS_INTERVAL;
                let progress = &self.bench.progress;
                progress.log(format!("  {} of {} Jobs are created", made.len(), self.count));
            }
            sleep(POLL_INTERVAL).await;
            made.extend(
                tail.creations()?
                    .into_iter()
                    .map(|creation| (creation.job, creation.at)),
            );
        }
        ensure!(
            made.len() == self.count,
            "{} Jobs were made of {} schedules",
            made.len(),
            self.count
        );
        let mut delays = Vec::with_capacity(made.len());
        for (job, at) in made {
            let delay = at.duration_since(due);
            ensure!(!delay.is_negative(), "{job} was created before it was due");
            delays.push(delay.as_secs_f64());
        }
        delays.sort_by(f64::total_cmp);
        Ok(delays)
    }
}

/// Returns the first multiple of `granularity` seconds that is at least `lead` after `now`.
fn next_multiple(now: Timestamp, lead: SignedDuration, granularity: i64) -> Timestamp {
    let before = now.as_second() + lead.as_secs();
    Timestamp::from_second((before.div_euclid(granularity) + 1) * granularity).unwrap_or(Timestamp::MAX)
}

/// Waits until a time of the wall clock, which all processes of a machine share.
async fn until(instant: Timestamp) {
    while let Ok(left) = Duration::try_from(instant.duration_since(Timestamp::now()))
        && !left.is_zero()
    {
        sleep(left).await;
    }
}

fn samples(row: Row, subject: Subject, delays: &[f64]) -> Result<Vec<Sample>> {
    let within = delays.iter().filter(|delay| **delay < 60.0).count();
    let within = f64::from(u32::try_from(within)?);
    let of = |percent| percentile(delays, percent).context("there are no delays");
    let values = [
        (Measure::Median, of(50)?),
        (Measure::P99, of(99)?),
        (Measure::Max, of(100)?),
        (Measure::WithinTheMinute, within),
    ];
    let sample = |(measure, value)| Sample {
        row,
        subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_multiple_leaves_the_lead() {
        let full = |now: &str, granularity| {
            let (now, lead) = (now.parse().unwrap(), SignedDuration::from_secs(20));
            next_multiple(now, lead, granularity).to_string()
        };
        for (now, granularity, expected) in [
            ("2026-11-21T15:00:00.5Z", 60, "2026-11-21T15:01:00Z"),
            ("2026-11-21T15:00:39.5Z", 60, "2026-11-21T15:01:00Z"),
            ("2026-11-21T15:00:40.5Z", 60, "2026-11-21T15:02:00Z"),
            ("2026-11-21T23:59:50Z", 60, "2026-11-22T00:01:00Z"),
            ("2026-11-21T15:00:39.5Z", 1, "2026-11-21T15:01:00Z"),
            ("2026-11-21T15:00:41.5Z", 1, "2026-11-21T15:01:02Z"),
        ] {
            assert_eq!(full(now, granularity), expected, "{now}");
        }
    }

    #[tokio::test]
    async fn waiting_for_a_past_instant_returns_at_once() {
        until(Timestamp::UNIX_EPOCH).await;
        let soon = Timestamp::now() + SignedDuration::from_millis(20);
        until(soon).await;
        assert!(Timestamp::now() >= soon);
    }

    #[test]
    fn delays_are_summarised_in_four_numbers() {
        let delays: Vec<f64> = (1..=100).map(f64::from).collect();
        let samples = samples(Row::Due, Subject::Peer, &delays).unwrap();
        let values: Vec<(&str, f64)> = samples.iter().map(|s| (s.measure.name(), s.value)).collect();
        let expected = [
            ("p50", 50.0),
            ("p99", 99.0),
            ("max", 100.0),
            ("made within the minute", 59.0),
        ];
        assert_eq!(values, expected);
    }
}
