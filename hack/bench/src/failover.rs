//! A leader that is terminated or killed: the times until the standby leads and until it creates a
//! Job.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::{Timestamp, Zoned, tz::TimeZone};
use kube::Client;
use kube::api::{Patch, PatchParams};
use portreeve_testing::{ControlPlane, Signal};
use tokio::time::sleep;

use crate::audit::{self, Tail};
use crate::bench::Bench;
use crate::lease::{Lease, LeaseTransition};
use crate::objects::{self, Kind, post};
use crate::plan::{Step, turns};
use crate::replicas::Replicas;
use crate::rows::{Measure, Row, Sample};

/// The default retry period, at which a leader renews its Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// How long several renewals of the Lease may take.
const STEADY_LIMIT: Duration = Duration::from_secs(30);
/// How long a standby may take to take over, three times the lease duration.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(45);
/// How long the old leader may take to exit after its standby has created a Job.
const END_LIMIT: Duration = Duration::from_secs(30);
/// How often the audit log is read. This does not affect the results, because the log contains the
/// times.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The times of one takeover.
#[derive(Clone, Copy, Debug)]
struct Takeover {
    signalled: Timestamp,
    transition: LeaseTransition,
    /// When the first Job of the new leader was created.
    job: Timestamp,
}

pub(crate) async fn measure(bench: &Bench, step: &Step, row: Row) -> Result<Vec<Sample>> {
    let plane = ControlPlane::builder().audit_policy(audit::POLICY).start().await?;
    let client = plane.client()?;
    let now = Zoned::now().with_time_zone(TimeZone::UTC);
    let schedule = |index| objects::far_from(&now, index);
    let count = bench.options.count(row);
    objects::create(Kind::CronJob, &client, count, schedule, &bench.progress).await?;
    let mut replicas = Replicas::start(bench, &plane, step.subject).await?;
    let log = plane.audit_log().context("the control plane has no audit log")?;
    let mut run = FailoverRun::new(client, &now, log);
    let turns = turns(row, step.subject);
    let total = u32::from(bench.options.rounds) * turns;
    let mut samples = Vec::new();
    for turn in 0..turns {
        // The signals are spread evenly over the time between two renewals.
        let number = u32::from(step.round - 1) * turns + turn;
        let phase = RETRY_PERIOD * (2 * number + 1) / (2 * total);
        let measured = run.turn(&replicas, signal(row), phase).await?;
        let status = replicas.leader.controller.ended(END_LIMIT).await?;
        let is_clean = status.success() || row == Row::Crash || step.subject.is_peer();
        ensure!(is_clean, "the leader exited with {status} after SIGTERM");
        samples.extend(values(row, &measured).map(|(measure, value)| Sample {
            row,
            subject: step.subject,
            measure,
            value,
        }));
        if turn + 1 < turns {
            replicas.swap().await?;
        }
    }
    Ok(samples)
}

fn signal(row: Row) -> Signal {
    match row {
        Row::Crash => Signal::KILL,
        _ => Signal::TERM,
    }
}

/// Returns the measures of a takeover, in seconds.
fn values(row: Row, turn: &Takeover) -> impl Iterator<Item = (Measure, f64)> {
    let Takeover {
        signalled,
        transition: LeaseTransition { at, last_renewal },
        job,
    } = *turn;
    let since = |from: Timestamp, to: Timestamp| to.duration_since(from).as_secs_f64();
    // The time since the last renewal matters only when the Lease is not released.
    let renewals = (row == Row::Crash).then_some([
        (Measure::RenewalToLease, since(last_renewal, at)),
        (Measure::RenewalToJob, since(last_renewal, job)),
    ]);
    let signals = [
        (Measure::SignalToLease, since(signalled, at)),
        (Measure::SignalToJob, since(signalled, job)),
    ];
    let after = (Measure::LeaseToJob, since(at, job));
    signals.into_iter().chain(renewals.into_iter().flatten()).chain([after])
}

/// The CronJobs that show when a leader creates Jobs. Each becomes overdue once.
struct FailoverRun {
    client: Client,
    schedule: String,
    log: Tail,
    made: u32,
}

impl FailoverRun {
    fn new(client: Client, now: &Zoned, log: &Path) -> Self {
        Self {
            client,
            schedule: objects::far_from(now, 0),
            log: Tail::of(log),
            made: 0,
        }
    }

    /// Stops the leader `phase` after a renewal of its Lease, and returns the times of the
    /// takeover.
    async fn turn(&mut self, replicas: &Replicas<'_>, signal: Signal, phase: Duration) -> Result<Takeover> {
        let mut lease = Lease::watch(&self.client).await?;
        let work = self.create_cron_job().await?;
        let holder = replicas.guard(lease.wait_until_steady(STEADY_LIMIT)).await?;
        sleep(phase).await;
        let signalled = Timestamp::now();
        replicas.leader.controller.signal(signal)?;
        let takeover = async {
            // The CronJob becomes overdue right after the signal.
            let transition = lease.wait_for_transition_from(&holder, TAKEOVER_LIMIT);
            let (transition, ()) = tokio::try_join!(transition, self.make_overdue(&work))?;
            Ok((transition, self.first_job(replicas, work, signalled).await?))
        };
        let (transition, job) = replicas.standby.controller.guard(takeover).await?;
        Ok(Takeover {
            signalled,
            transition,
            job,
        })
    }

    /// Creates a CronJob that is due in half a year.
    async fn create_cron_job(&mut self) -> Result<String> {
        let name = format!("work-{}", self.made);
        self.made += 1;
        let api = Kind::CronJob.api(&self.client);
        post(&api, Kind::CronJob.object(&name, &self.schedule, false)).await?;
        Ok(name)
    }

    async fn make_overdue(&self, work: &str) -> Result<()> {
        let status = Patch::Merge(objects::overdue(Timestamp::now())?);
        let api = Kind::CronJob.api(&self.client);
        let patched = api.patch_status(work, &PatchParams::default(), &status).await;
        patched.with_context(|| format!("failed to make {work} overdue"))?;
        Ok(())
    }

    /// Returns when the standby created its first Job. If the old leader created the Job of `work`,
    /// another CronJob is created and made overdue.
    async fn first_job(&mut self, replicas: &Replicas<'_>, mut work: String, since: Timestamp) -> Result<Timestamp> {
        let standby = replicas.standby.user();
        let started = Instant::now();
        while started.elapsed() < TAKEOVER_LIMIT {
            for made in self.log.creations()? {
                if made.user == standby && made.at >= since {
                    return Ok(made.at);
                }
                if made.job.starts_with(&format!("{work}-")) {
                    work = self.create_cron_job().await?;
                    self.make_overdue(&work).await?;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("the new leader created no Job of {work} within {TAKEOVER_LIMIT:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_is_timed_from_the_signal_the_renewal_and_the_lease() {
        let at = |text: &str| format!("2026-11-21T15:00:{text}Z").parse::<Timestamp>().unwrap();
        let turn = Takeover {
            signalled: at("01"),
            transition: LeaseTransition {
                at: at("15.25"),
                last_renewal: at("00"),
            },
            job: at("15.5"),
        };
        let written = |row| {
            let values = values(row, &turn).map(|(measure, value)| format!("{}: {value}", measure.name()));
            values.collect::<Vec<_>>()
        };
        let handover = [
            "signal to Lease: 14.25",
            "signal to first Job: 14.5",
            "Lease to first Job: 0.25",
        ];
        assert_eq!(written(Row::Handover), handover);
        let crash = [
            "signal to Lease: 14.25",
            "signal to first Job: 14.5",
            "last renewal to Lease: 15.25",
            "last renewal to first Job: 15.5",
            "Lease to first Job: 0.25",
        ];
        assert_eq!(written(Row::Crash), crash);
    }
}
