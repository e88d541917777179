//! Many schedules that are due in the same minute: the delay of each Job. Many schedules of which
//! none is due: memory, CPU time, and scrapes of the metrics. An outage.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, TryStreamExt, stream};
use http::Request;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::Client;
use portreeve_testing::eventually;
use serde_json::Value as Json;
use tokio::time::sleep;

use crate::audit::{POLL_INTERVAL, Tail};
use crate::controller::{Controller, START_LIMIT};
use crate::objects::{CRON_JOB, CRON_TAB, Created, JOB, Kind, api, create_all, create_far_schedules};
use crate::objects::{object, post, schedule, write_status};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value, number, percentile};
use crate::tables::{Scenario, Subject};

/// The planned time between the creation of the last schedule and the minute in which all are due.
const LEAD: SignedDuration = SignedDuration::from_secs(20);
/// The time that is planned for the creation of each schedule.
const LEAD_PER_SCHEDULE: SignedDuration = SignedDuration::from_millis(20);
/// The time that must be left when all schedules are created; otherwise the measurement fails.
const MIN_LEAD: SignedDuration = SignedDuration::from_secs(5);
/// The number of scrapes whose CPU time is measured.
const SCRAPES: u16 = 200;
/// How long before that minute the earlier run of each schedule was due, in the scenario
/// `due-again`.
const PERIOD: SignedDuration = SignedDuration::from_hours(24);
/// How long after that minute the last Job may be created. kube-controller-manager's default rate
/// limit delays its requests by minutes.
const LIMIT: Duration = Duration::from_mins(10);
/// The window in which CPU time is measured while nothing happens.
pub(crate) const WINDOW: Duration = Duration::from_mins(2);
/// How long the apiserver stays down.
const OUTAGE: Duration = Duration::from_secs(7);
/// How long an outage lasts before a CronJob becomes due.
const OUTAGE_LEAD: SignedDuration = SignedDuration::from_secs(1);

/// Measures the delays.
pub(crate) async fn measure_due(run: &Run<'_>) -> Result<Vec<Value>> {
    let subject = run.step.subject;
    let mut delays = if subject.is_floor() {
        let (planned, owners) = create_schedules(run).await?;
        // The bare client parses no schedule, so it starts at the next full second.
        let due = next_multiple(Timestamp::now(), SignedDuration::ZERO, 1);
        let jobs = jobs(subject, "run", due, owners);
        sleep_until(due).await;
        write_jobs(run, jobs, None).await?;
        delays(run, due, &earlier_suffix(planned)).await?
    } else {
        let controller = Controller::start(run, None).await?;
        let (due, _) = controller.guard(create_schedules(run)).await?;
        wait_for_probe(&controller, &run.client, kind(subject), "probe").await?;
        if run.step.row.scenario == Scenario::DueAgain {
            controller.idle(run).await?;
        }
        check_lead(due)?;
        controller.guard(delays(run, due, &earlier_suffix(due))).await?
    };
    delays.sort_by(f64::total_cmp);
    let within = delays.iter().filter(|delay| **delay < 60.0).count();
    let of = |percent| percentile(&delays, percent).context("there are no delays");
    Ok(vec![
        Unit::Seconds.of("p99", of(99)?),
        Unit::Seconds.of("max", of(100)?),
        Unit::Count.of("made within the minute", number(within)),
    ])
}

/// Creates the schedules, due in the next minute that leaves enough time, and in the scenario
/// `due-again` a Job of each that is still active.
async fn create_schedules(run: &Run<'_>) -> Result<(Timestamp, Vec<Created>)> {
    let (kind, count) = (kind(run.step.subject), run.count());
    let lead = LEAD + LEAD_PER_SCHEDULE * i32::try_from(count).context("too many schedules")?;
    let due = next_multiple(Timestamp::now(), lead, 60);
    let daily = daily(due);
    let schedules = (0..count).map(|index| schedule(kind, &format!("schedule-{index:05}"), &daily));
    let created = create_all(&api(&run.client, kind), schedules).await?;
    if run.step.row.scenario == Scenario::DueAgain {
        let jobs = jobs(run.step.subject, &earlier_suffix(due), due - PERIOD, created.clone());
        // The controller of CronTabs writes their statuses.
        write_jobs(run, jobs, (kind == CRON_JOB).then_some(due - PERIOD)).await?;
    }
    Ok((due, created))
}

/// Returns how the names of the Jobs of the earlier runs end.
fn earlier_suffix(due: Timestamp) -> String {
    ((due - PERIOD).as_second() / 60).to_string()
}

/// Returns a schedule that is due at this minute of every day.
fn daily(due: Timestamp) -> String {
    let due = due.to_zoned(TimeZone::UTC);
    format!("{} {} * * *", due.minute(), due.hour())
}

/// Returns the first multiple of `granularity` seconds that is at least `lead` after `now`.
fn next_multiple(now: Timestamp, lead: SignedDuration, granularity: i64) -> Timestamp {
    let before = now.as_second() + lead.as_secs();
    Timestamp::from_second((before.div_euclid(granularity) + 1) * granularity).unwrap_or(Timestamp::MAX)
}

fn check_lead(due: Timestamp) -> Result<()> {
    let left = due.duration_since(Timestamp::now());
    ensure!(
        left >= MIN_LEAD,
        "only {left} were left before the schedules are due: run the measurement on an idle machine"
    );
    Ok(())
}

/// Waits until a time of the wall clock, which all processes of a machine share.
async fn sleep_until(instant: Timestamp) {
    while let Ok(left) = Duration::try_from(instant.duration_since(Timestamp::now()))
        && !left.is_zero()
    {
        sleep(left).await;
    }
}

/// Returns the Jobs of the schedules, as a controller creates them. Their names end with `suffix`.
fn jobs(subject: Subject, suffix: &str, due: Timestamp, owners: Vec<Created>) -> Vec<(Json, Created)> {
    let (version, kind) = kind(subject);
    let job = |owner: Created| {
        let (name, uid, job) = (&owner.name, &owner.uid, format!("{}-{suffix}", owner.name));
        let job = object(
            "job",
            &[
                ("job", &job),
                ("name", name),
                ("uid", uid),
                ("due", &due),
                ("version", &version),
                ("kind", &kind),
            ],
        );
        (job, owner)
    };
    owners.into_iter().map(job).collect()
}

/// Creates Jobs. With `recorded`, writes this `lastScheduleTime` into the status of each CronJob.
async fn write_jobs(run: &Run<'_>, work: Vec<(Json, Created)>, recorded: Option<Timestamp>) -> Result<()> {
    let (jobs, cronjobs) = &(api(&run.client, JOB), api(&run.client, CRON_JOB));
    let write = |(job, Created { name, .. }): (Json, Created)| async move {
        let job = post(jobs, job).await?;
        if let Some(due) = recorded {
            let ids: &[(&str, &dyn Display)] = &[("job", &job.name), ("job-uid", &job.uid), ("due", &due)];
            let status = object("cronjob-status", ids);
            write_status(cronjobs, &name, &status).await?;
        }
        anyhow::Ok(())
    };
    let work = stream::iter(work.into_iter().map(Ok));
    work.try_for_each_concurrent(usize::from(run.concurrency()), write)
        .await
}

/// Waits for every Job whose name does not end with `earlier`, and returns the delays in seconds.
async fn delays(run: &Run<'_>, due: Timestamp, earlier: &str) -> Result<Vec<f64>> {
    let log = run.plane.audit_log().context("the control plane has no audit log")?;
    sleep_until(due).await;
    let (mut tail, mut made, started) = (Tail::of(log), BTreeMap::new(), Instant::now());
    let count = run.count();
    while made.len() < count {
        let created = made.len();
        ensure!(started.elapsed() < LIMIT, "only {created} of {count} Jobs exist");
        sleep(POLL_INTERVAL).await;
        let mut creations = tail.creations()?;
        creations.retain(|creation| !creation.job.ends_with(earlier));
        made.extend(creations.into_iter().map(|creation| (creation.job, creation.at)));
    }
    ensure!(made.len() == count, "there are more Jobs than schedules");
    let delay = |(job, at): (String, Timestamp)| {
        let delay = at.duration_since(due);
        ensure!(!delay.is_negative(), "{job} was created before it was due");
        Ok(delay.as_secs_f64())
    };
    made.into_iter().map(delay).collect()
}

/// Measures how soon a Job exists after an outage in which a CronJob becomes due.
pub(crate) async fn measure_outage(run: &Run<'_>) -> Result<Vec<Value>> {
    create_far_schedules(&run.client, CRON_JOB, run.count()).await?;
    let controller = Controller::start(run, None).await?;
    wait_for_probe(&controller, &run.client, CRON_JOB, "probe").await?;
    let (apiserver, cronjobs) = (run.plane.apiserver(), api(&run.client, CRON_JOB));
    let log = run.plane.audit_log().context("the control plane has no audit log")?;
    let mut tail = Tail::of(log);
    let due = next_multiple(Timestamp::now(), MIN_LEAD, 60);
    post(&cronjobs, schedule(CRON_JOB, "work", &daily(due))).await?;
    sleep_until(due - OUTAGE_LEAD).await;
    apiserver.kill().await?;
    sleep(OUTAGE).await;
    apiserver.start().await?;
    let ready = Timestamp::now();
    let created = eventually(LIMIT, "a Job after the outage", || {
        let created = tail.creations().map(|creations| creations.into_iter().next());
        std::future::ready(created.and_then(|created| created.context("no Job was created")))
    });
    let created = controller.guard(created).await?;
    let took = created.at.duration_since(ready).as_secs_f64();
    Ok(vec![Unit::Seconds.of("ready to Job", took)])
}

/// Measures a controller of schedules of which none is due: its memory, its CPU time, and scrapes
/// of its metrics, one after another over one connection. The schedules exist before it starts, as
/// after a restart.
pub(crate) async fn measure_idle(run: &Run<'_>) -> Result<Vec<Value>> {
    create_far_schedules(&run.client, CRON_JOB, run.count()).await?;
    let controller = Controller::start(run, None).await?;
    wait_for_probe(&controller, &run.client, CRON_JOB, "probe").await?;
    let memory = controller.at_rest(run, Instant::now()).await?;
    log(format!("  measuring CPU time for {WINDOW:?}"));
    let before = controller.cpu_time()?;
    controller.guard(sleep(WINDOW).map(Ok)).await?;
    let used = controller.cpu_time()?.since(&before);
    let client = controller.listener()?;
    let scrape = async || {
        let text = client.request_text(Request::get("/metrics").body(Vec::new())?).await;
        text.context("failed to scrape")
    };
    // The first scrape opens the connection.
    scrape().await?;
    let before = controller.cpu_time()?;
    for _ in 0..SCRAPES {
        controller.guard(scrape()).await?;
    }
    let scrapes = controller.cpu_time()?.since(&before);
    Ok(vec![
        memory,
        Unit::Seconds.of("CPU time an hour at that rate", used * 3600.0 / WINDOW.as_secs_f64()),
        Unit::Seconds.of("CPU time of a scrape", scrapes / f64::from(SCRAPES)),
    ])
}

/// Returns the kind of schedule that a subject works on.
fn kind(subject: Subject) -> Kind<'static> {
    match subject {
        Subject::PortreeveCrontab => CRON_TAB,
        _ => CRON_JOB,
    }
}

/// Waits until a controller of schedules has reconciled a new object. By then the controller has
/// observed all earlier objects, because watches and work queues keep their order.
pub(crate) async fn wait_for_probe(controller: &Controller, client: &Client, kind: Kind<'_>, name: &str) -> Result<()> {
    let api = api(client, kind);
    let mut probe = schedule(kind, name, "0 0 1 1 *");
    // A suspended CronJob causes no work later.
    probe["spec"]["suspend"] = Json::Bool(true);
    post(&api, probe).await?;
    if kind == CRON_JOB {
        // Every cronjob-controller removes a Job that does not exist from the status, even if the
        // CronJob is suspended.
        write_status(&api, name, &object("probe-status", &[])).await?;
    }
    let reconciled = || async {
        let status = api.get(name).await?.data["status"].take();
        let is_reconciled = match kind {
            CRON_JOB => status["active"].as_array().is_none_or(Vec::is_empty),
            _ => status["observedGeneration"].is_i64(),
        };
        ensure!(is_reconciled, "the controller has not changed the status {status}");
        Ok(())
    };
    let what = "the controller to work on the probe";
    controller.guard(eventually(START_LIMIT, what, reconciled)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_multiple_leaves_the_lead() {
        let next = |now: &str, granularity| {
            let (now, lead) = (now.parse().unwrap(), SignedDuration::from_secs(20));
            next_multiple(now, lead, granularity).to_string()
        };
        for (now, granularity, expected) in [
            ("2026-11-21T15:00:39.5Z", 60, "2026-11-21T15:01:00Z"),
            ("2026-11-21T15:00:40.5Z", 60, "2026-11-21T15:02:00Z"),
            ("2026-11-21T23:59:50Z", 60, "2026-11-22T00:01:00Z"),
            ("2026-11-21T15:00:41.5Z", 1, "2026-11-21T15:01:02Z"),
        ] {
            assert_eq!(next(now, granularity), expected, "{now}");
        }
    }
}
