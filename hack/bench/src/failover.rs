//! Two replicas of which one leads: the times of takeovers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{DynamicObject, WatchParams};
use portreeve_testing::Signal;
use serde_json::json;
use tokio::time::sleep;

use crate::audit::{POLL_INTERVAL, Tail};
use crate::controller::{Account, Controller, LEASE};
use crate::objects::{CRON_JOB, api, create_far_schedules, far_schedule, post, resource, schedule, write_status};
use crate::run::Run;
use crate::schedules::wait_for_probe;
use crate::statistics::{Unit, Value};
use crate::tables::{Scenario, Subject};
use crate::watch::{Watch, within};

/// The namespace of the Lease and the service accounts. The apiserver's default `FlowSchema`s give
/// requests from it the priority of controller managers.
const NAMESPACE: &str = "kube-system";
/// The default retry period, at which a leader renews its Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// The number of renewals after which a Lease counts as steady. By then the standby has observed
/// the Lease too.
const STEADY_RENEWALS: u32 = 3;
/// How long an election, or several renewals of the Lease, may take.
const STEADY_LIMIT: Duration = Duration::from_secs(30);
/// How long a standby may take to take over, three times the lease duration.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(45);
/// How long the old leader may take to exit after its standby has created a Job.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Between one and one and a half years, so that a yearly schedule that is due in half a year has
/// missed exactly one run.
const MORE_THAN_A_YEAR: SignedDuration = SignedDuration::from_hours(400 * 24);

/// One replica, which is killed when this handle is dropped.
struct Replica {
    account: Account,
    controller: Controller,
}

impl Replica {
    async fn start(run: &Run<'_>, name: &'static str) -> Result<Self> {
        let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let everything = serde_json::from_value(everything).context("failed to build a rule")?;
        let kubeconfig = run.plane.service_account_kubeconfig(NAMESPACE, name, everything);
        let kubeconfig = kubeconfig.await?;
        let account = Account { name, kubeconfig };
        let controller = Controller::start(run, Some(&account)).await?;
        Ok(Self { account, controller })
    }
}

/// The two replicas, by their current roles.
struct Replicas {
    leader: Replica,
    standby: Replica,
}

impl Replicas {
    /// Starts one replica, waits until it leads, and then starts the other.
    async fn start(run: &Run<'_>) -> Result<Self> {
        let mut lease = Lease::watch(run).await?;
        let leader = Replica::start(run, "replica-a").await?;
        let held = within(STEADY_LIMIT, "a leader", lease.next());
        leader.controller.guard(held).await?;
        wait_for_probe(&leader.controller, &run.client, CRON_JOB, "probe").await?;
        let standby = Replica::start(run, "replica-b").await?;
        Ok(Self { leader, standby })
    }

    /// Runs `work`, and fails when one of the replicas exits before `work` is done.
    async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (leader, standby) = (&self.leader.controller, &self.standby.controller);
        leader.guard(standby.guard(work)).await
    }
}

/// Measures several takeovers, with fewer when the standby has to wait until the Lease expires.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    let (subject, is_crash) = (run.step.subject, run.step.row.scenario == Scenario::Crash);
    let turns = if is_crash || subject == Subject::Peer { 2 } else { 7 };
    create_far_schedules(&run.client, CRON_JOB, run.count()).await?;
    let mut replicas = Replicas::start(run).await?;
    let log = run.plane.audit_log().context("the control plane has no audit log")?;
    let mut failover = Failover {
        run,
        cronjobs: api(&run.client, CRON_JOB),
        log: Tail::of(log),
    };
    let total = u32::from(run.options.rounds(run.step.row)) * turns;
    let mut values = Vec::new();
    for turn in 0..turns {
        // The signals are spread evenly over the time between two renewals.
        let number = u32::from(run.step.round - 1) * turns + turn;
        let phase = RETRY_PERIOD * (2 * number + 1) / (2 * total);
        values.extend(Box::pin(failover.turn(&replicas, is_crash, phase)).await?);
        let Replicas { leader, standby } = replicas;
        let status = leader.controller.process.wait(END_LIMIT).await?;
        let is_clean = status.success() || is_crash || subject.is_peer();
        ensure!(is_clean, "the leader exited with {status} after SIGTERM");
        let controller = Controller::start(run, Some(&leader.account)).await?;
        let account = leader.account;
        let (leader, standby) = (standby, Replica { account, controller });
        replicas = Replicas { leader, standby };
    }
    Ok(values)
}

/// The takeovers of a measurement.
struct Failover<'a> {
    run: &'a Run<'a>,
    cronjobs: Api<DynamicObject>,
    log: Tail,
}

impl Failover<'_> {
    /// Stops the leader `phase` after a renewal of its Lease, and returns the times of the
    /// takeover.
    async fn turn(&mut self, replicas: &Replicas, is_crash: bool, phase: Duration) -> Result<Vec<Value>> {
        let mut lease = Lease::watch(self.run).await?;
        let work = self.create_cronjob().await?;
        let holder = replicas.guard(lease.wait_until_steady()).await?;
        sleep(phase).await;
        let signalled = Timestamp::now();
        let signal = if is_crash { Signal::KILL } else { Signal::TERM };
        replicas.leader.controller.process.signal(signal)?;
        let takeover = async {
            // The CronJob becomes overdue right after the signal.
            let transition = within(TAKEOVER_LIMIT, "the standby to lead", lease.transition_from(&holder));
            let (times, ()) = tokio::try_join!(transition, self.make_overdue(&work))?;
            Ok((times, self.first_job(replicas, work, signalled).await?))
        };
        let ((held, renewed), job) = replicas.standby.controller.guard(takeover).await?;
        let since = |measure, from, to: Timestamp| Unit::Seconds.of(measure, to.duration_since(from).as_secs_f64());
        let mut values = vec![
            since("signal to Lease", signalled, held),
            since("signal to first Job", signalled, job),
        ];
        // The time since the last renewal matters only when the Lease is not released.
        if is_crash {
            values.push(since("last renewal to Lease", renewed, held));
            values.push(since("last renewal to first Job", renewed, job));
        }
        values.push(since("Lease to first Job", held, job));
        Ok(values)
    }

    /// Creates a CronJob that is due in half a year.
    async fn create_cronjob(&self) -> Result<String> {
        let name = format!("work-{}", Timestamp::now().as_millisecond());
        post(&self.cronjobs, schedule(CRON_JOB, &name, &far_schedule(0))).await?;
        Ok(name)
    }

    /// Writes a status with which a CronJob is overdue at once: the run of half a year ago counts
    /// as missed.
    async fn make_overdue(&self, work: &str) -> Result<()> {
        let last_run = Timestamp::now().as_second() - MORE_THAN_A_YEAR.as_secs();
        let last_run = Timestamp::from_second(last_run).context("the time is too early")?;
        write_status(&self.cronjobs, work, &json!({"status": {"lastScheduleTime": last_run}})).await
    }

    /// Returns when the standby created its first Job. If the old leader created the Job of `work`,
    /// another CronJob is created and made overdue.
    async fn first_job(&mut self, replicas: &Replicas, mut work: String, since: Timestamp) -> Result<Timestamp> {
        let standby = format!("system:serviceaccount:{NAMESPACE}:{}", replicas.standby.account.name);
        let started = Instant::now();
        while started.elapsed() < TAKEOVER_LIMIT {
            for made in self.log.creations()? {
                if made.user == standby && made.at >= since {
                    return Ok(made.at);
                }
                if made.job.starts_with(&format!("{work}-")) {
                    work = self.create_cronjob().await?;
                    self.make_overdue(&work).await?;
                }
            }
            sleep(POLL_INTERVAL).await;
        }
        bail!("the new leader created no Job of {work} within {TAKEOVER_LIMIT:?}")
    }
}

/// A watch of the Lease that the replicas share, which need not exist yet.
struct Lease {
    watch: Watch,
    /// The last renewal, by the holder's clock.
    renewed: Option<Timestamp>,
}

impl Lease {
    async fn watch(run: &Run<'_>) -> Result<Self> {
        let leases = resource(("coordination.k8s.io/v1", "Lease"));
        let leases = Api::namespaced_with(run.client.clone(), NAMESPACE, &leases);
        let only_this = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
        let watch = Watch::start(&leases, only_this).await?;
        Ok(Self { watch, renewed: None })
    }

    /// Waits for the next change with a holder, and returns the holder.
    async fn next(&mut self) -> Result<String> {
        loop {
            let lease = self.watch.next().await?.object;
            let spec = &lease.data["spec"];
            if let Some(holder) = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty()) {
                self.renewed = spec["renewTime"].as_str().and_then(|time| time.parse().ok());
                return Ok(holder.to_owned());
            }
        }
    }

    /// Waits until the holder has renewed the Lease several times, and returns the holder right
    /// after the last of these renewals.
    async fn wait_until_steady(&mut self) -> Result<String> {
        let renewals = async {
            let holder = self.next().await?;
            for _ in 0..STEADY_RENEWALS {
                let next = self.next().await?;
                ensure!(next == holder, "the Lease changed from {holder} to {next}");
            }
            Ok(holder)
        };
        within(STEADY_LIMIT, "the Lease to be renewed", renewals).await
    }

    /// Waits until the Lease has a holder other than `holder`. Returns the time of the change, and
    /// of the last renewal by `holder`.
    async fn transition_from(&mut self, holder: &str) -> Result<(Timestamp, Timestamp)> {
        loop {
            let last_renewal = self.renewed;
            if self.next().await? != holder {
                let held = Timestamp::now();
                return Ok((held, last_renewal.context("the former holder did not renew the Lease")?));
            }
        }
    }
}
