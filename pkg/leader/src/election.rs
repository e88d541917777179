//! The handles to the elections of a process: state, fence and release.

use std::{
    sync::{Arc, atomic::AtomicU32},
    thread,
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use parking_lot::Mutex;
use portreeve_client::Connection;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::{
    LeaseFence, Metrics, WallClock, boot_clock,
    candidate::{Candidate, CandidateSet},
    elector::ElectionTimings,
    guard::LeaseCache,
    health::HealthError,
    heartbeat::{self, Heartbeat},
    leadership::{CandidateCommand, LeadershipState, Shared},
};

/// The component in the user agent.
const COMPONENT: &str = "leader-election";
/// The timeout for writing the last Events.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the thread may take to end once it has been stopped.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// A leader's health check fails this long after its lease expired, as in kube-controller-manager.
const HEALTH_GRACE: Duration = Duration::from_secs(20);

/// The configuration of all elections of a process.
pub struct Settings {
    /// How to reach the apiserver. Its rate limit does not apply here.
    pub client: portreeve_client::Args,
    /// The `name/version` of the program, for the user agent.
    pub agent: String,
    /// The program's name: the field manager of Leases and the reporting controller of Events.
    pub program: &'static str,
    /// The identity of this process's candidates.
    pub identity: String,
    /// The namespace of the Leases.
    pub namespace: String,
    /// The names of the Leases.
    pub leases: Vec<String>,
    /// The election timings.
    pub times: ElectionTimings,
    /// The wall clock.
    pub wall: WallClock,
    /// The heartbeat of the runtime that runs the controllers. All candidates give up when that
    /// runtime has run no task for the renew deadline.
    pub worker: Heartbeat,
    /// The metrics of requests.
    pub requests: portreeve_client::Metrics,
    /// Records every request.
    pub outage: portreeve_client::Outage,
    /// The metrics of elections.
    pub metrics: Metrics,
}

/// The reasons why elections cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The thread could not be started.
    #[error("failed to start the leader election thread")]
    Thread(#[source] std::io::Error),
    /// The thread's runtime could not be started.
    #[error("failed to start the leader election runtime")]
    Runtime(#[source] std::io::Error),
    /// The connection to the apiserver could not be set up.
    #[error("failed to set up the leader election connection")]
    Connection(#[source] portreeve_client::Error),
    /// The thread ended before it was ready.
    #[error("the leader election thread ended before it was ready")]
    Ended,
}

/// A handle to one candidate. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    lease: Arc<str>,
    times: ElectionTimings,
    shared: Arc<Shared>,
}

impl Election {
    /// Returns the Lease as `namespace/name`.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// Returns the namespace and the name of the Lease.
    pub fn key(&self) -> (&str, &str) {
        self.lease.split_once('/').unwrap_or(("", &self.lease))
    }

    /// Subscribes to the last known Lease. A standby receives it too, a leader before
    /// [`Election::wait_until_leading`] returns. Renewals do not notify receivers.
    pub fn lease_snapshots(&self) -> watch::Receiver<Lease> {
        self.shared.cache.lease_snapshots()
    }

    /// Subscribes to the number of times that the Lease's resourceVersion was seen to decrease, as
    /// after a restore of etcd from a backup.
    pub fn version_decreases(&self) -> watch::Receiver<u64> {
        self.shared.cache.decreases()
    }

    /// Records the response to a write by another part of this process, for the next renewal.
    pub fn record_write(&self, lease: Lease) {
        self.shared.cache.record_write(lease);
    }

    /// Returns the fence that checks the writes covered by this election.
    pub fn fence(&self) -> LeaseFence {
        self.shared.fence.clone()
    }

    /// Returns the current state of the election.
    pub fn leadership(&self) -> LeadershipState {
        self.shared.leadership.borrow().clone()
    }

    /// Starts to compete for the Lease. Call it once the process is ready to lead.
    pub fn start_competing(&self) {
        self.command(CandidateCommand::Run, |command| command == CandidateCommand::Hold);
    }

    /// Waits until this process leads. Never returns if the candidacy has ended.
    pub async fn wait_until_leading(&self) {
        self.wait_for(|leadership| *leadership == LeadershipState::Leading)
            .await;
    }

    /// Waits until the state is [`LeadershipState::Lost`], and returns the reason.
    pub async fn wait_until_lost(&self) -> String {
        match self
            .wait_for(|leadership| matches!(leadership, LeadershipState::Lost(_)))
            .await
        {
            LeadershipState::Lost(reason) => reason,
            other => format!("{other:?}"),
        }
    }

    /// Ends the candidacy, and releases the Lease if held. Call it only when all writes have ended.
    pub async fn release(&self) {
        self.command(CandidateCommand::Release, |command| !command.ends());
        self.wait_for(|leadership| matches!(leadership, LeadershipState::Lost(_) | LeadershipState::Released))
            .await;
    }

    fn command(&self, new: CandidateCommand, applies_to: impl Fn(CandidateCommand) -> bool) {
        self.shared.commands.send_if_modified(|command| {
            let applies = applies_to(*command);
            if applies {
                *command = new;
            }
            applies
        });
    }

    /// Returns the election state for the readiness endpoint.
    ///
    /// # Errors
    ///
    /// Returns an error when this candidate could not lead: when it cannot read or write the Lease,
    /// or when the thread of the elections hangs. An outage of the apiserver is no exception.
    pub fn readiness(&self) -> Result<String, HealthError> {
        let limit = self.times.access_limit();
        // Earlier than the check of the access, which fails as well when the thread hangs.
        self.check_thread(limit.saturating_sub(heartbeat::INTERVAL))?;
        let leadership = self.leadership();
        if matches!(leadership, LeadershipState::Standby { .. } | LeadershipState::Leading) {
            let is_leading = leadership == LeadershipState::Leading;
            let access = self.shared.access.lock().check(is_leading, limit, boot_clock::now());
            let lease = &self.lease;
            access.map_err(|reason| HealthError::NoAccess {
                lease: Arc::clone(lease),
                reason,
            })?;
        }
        self.health()
    }

    /// Returns the election state for the health endpoint.
    ///
    /// # Errors
    ///
    /// Returns an error when a restart helps: when the thread of the elections has run no task, or
    /// a leader has not renewed, for longer than the lease duration plus 20 s.
    pub fn health(&self) -> Result<String, HealthError> {
        self.check_thread(self.times.lease_duration + HEALTH_GRACE)?;
        match self.leadership() {
            LeadershipState::Standby { holder: Some(holder) } => {
                Ok(format!("standby, {holder} holds Lease {}", self.lease))
            }
            LeadershipState::Standby { holder: None } => {
                Ok(format!("standby, no known holder of Lease {}", self.lease))
            }
            LeadershipState::Released => Ok(format!("released Lease {}", self.lease)),
            LeadershipState::Lost(reason) => Ok(format!("lost Lease {}, shutting down: {reason}", self.lease)),
            LeadershipState::Leading => {
                let limit = self.times.lease_duration.saturating_sub(self.times.renew_deadline) + HEALTH_GRACE;
                match self.shared.fence.closed_since(boot_clock::now()) {
                    Some(overdue) if overdue > limit => Err(HealthError::NotRenewed {
                        lease: Arc::clone(&self.lease),
                        overdue,
                    }),
                    _ => Ok(format!("leading, holds Lease {}", self.lease)),
                }
            }
        }
    }

    fn check_thread(&self, limit: Duration) -> Result<(), HealthError> {
        let silence = self.shared.thread.silence();
        if silence <= limit {
            return Ok(());
        }
        Err(HealthError::Stuck { silence, limit })
    }

    async fn wait_for(&self, wanted: impl FnMut(&LeadershipState) -> bool) -> LeadershipState {
        let mut leadership = self.shared.leadership.subscribe();
        let found = leadership
            .wait_for(wanted)
            .await
            .ok()
            .map(|leadership| leadership.clone());
        match found {
            Some(leadership) => leadership,
            // The sender is part of `self`, so this branch is unreachable.
            None => std::future::pending().await,
        }
    }
}

/// All elections of a process, and their thread. Dropping it ends them without releasing a Lease.
pub struct Elections {
    elections: Vec<Election>,
    ended: oneshot::Receiver<()>,
}

impl Elections {
    /// Starts one candidate per Lease, which only watches until [`Election::start_competing`].
    ///
    /// # Errors
    ///
    /// See [`Error`]. An unreachable apiserver is not an error: candidates keep retrying.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let heartbeat = Heartbeat::default();
        let shared = || Shared {
            fence: LeaseFence::new(settings.times.renew_deadline),
            leadership: watch::Sender::new(LeadershipState::Standby { holder: None }),
            commands: watch::Sender::new(CandidateCommand::Hold),
            cache: LeaseCache::new(settings.identity.clone(), settings.times.lease_duration),
            access: Mutex::default(),
            thread: heartbeat.clone(),
        };
        let elections: Vec<_> = settings
            .leases
            .iter()
            .map(|name| Election {
                lease: format!("{}/{name}", settings.namespace).into(),
                times: settings.times,
                shared: Arc::new(shared()),
            })
            .collect();
        let (ready, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = Thread {
            elections: elections.clone(),
            _end: end,
        };
        let builder = thread::Builder::new().name("leader-election".to_owned());
        builder
            .spawn(move || run_thread(&settings, &thread.elections, &heartbeat, ready))
            .map_err(Error::Thread)?;
        // From here on, dropping `elections` ends the thread, even while this function waits.
        let elections = Self { elections, ended };
        started.await.unwrap_or(Err(Error::Ended))?;
        Ok(elections)
    }

    /// Returns one election per Lease, in the order of the settings.
    pub fn all(&self) -> &[Election] {
        &self.elections
    }

    /// Ends all candidacies, and waits up to two seconds for the thread and the last Events.
    pub async fn end(mut self) {
        self.give_up();
        if tokio::time::timeout(END_TIMEOUT, &mut self.ended).await.is_err() {
            tracing::debug!("timed out waiting for leader election to end");
        }
    }

    fn give_up(&self) {
        for election in &self.elections {
            election.command(CandidateCommand::GiveUp, |command| !command.ends());
        }
    }
}

impl Drop for Elections {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A drop guard that closes the fences and wakes all waiters when the thread ends, even by a panic.
struct Thread {
    elections: Vec<Election>,
    /// Its drop signals that the thread has ended.
    _end: oneshot::Sender<()>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        for election in &self.elections {
            election.shared.fence.set(None);
            election.shared.leadership.send_if_modified(|leadership| {
                let runs = matches!(leadership, LeadershipState::Standby { .. } | LeadershipState::Leading);
                if runs {
                    *leadership = LeadershipState::Lost("leader election ended".to_owned());
                }
                runs
            });
        }
    }
}

fn run_thread(
    settings: &Settings,
    elections: &[Election],
    heartbeat: &Heartbeat,
    ready: oneshot::Sender<Result<(), Error>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        // Credential files are compared every few seconds. A thread that waits for the next time
        // takes memory.
        .thread_keep_alive(Duration::from_millis(100))
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(Error::Runtime(error)));
            return;
        }
    };
    runtime.block_on(async {
        let (connection, client) = match connect(settings).await {
            Ok(connected) => connected,
            Err(error) => {
                let _ = ready.send(Err(Error::Connection(error)));
                return;
            }
        };
        // `Elections::start` may have been dropped in the meantime.
        if ready.send(Ok(())).is_err() {
            return;
        }
        tokio::select! {
            () = heartbeat.beat() => {}
            never = settings.worker.monitor(settings.times.renew_deadline) => match never {},
            () = run_candidates(settings, &client, elections) => {}
            never = connection.reload_credentials(COMPONENT) => match never {},
        }
    });
    runtime.shutdown_timeout(FLUSH_TIMEOUT);
}

async fn connect(settings: &Settings) -> Result<(Connection, kube::Client), portreeve_client::Error> {
    let mut client = settings.client.clone();
    // A renewal must never wait for the rate limiter.
    client.kube_api_qps = 0.0;
    let connection = portreeve_client::Settings {
        program: settings.agent.clone(),
        call_limit: settings.times.request_timeout(),
        fence: Arc::new(portreeve_client::AlwaysOpen),
        metrics: settings.requests.clone(),
        outage: settings.outage.clone(),
    };
    let connection = Connection::open(&client, connection).await?;
    let client = connection.client(COMPONENT)?;
    Ok((connection, client))
}

async fn run_candidates(settings: &Settings, client: &kube::Client, elections: &[Election]) {
    let tasks = TaskTracker::new();
    let candidates = Arc::new(CandidateSet {
        leading: AtomicU32::new(0),
        acquire_permit: Semaphore::new(1),
    });
    let runs = elections.iter().zip(&settings.leases).map(|(election, name)| {
        let candidate = Candidate {
            namespace: settings.namespace.clone(),
            name: name.clone(),
            identity: settings.identity.clone(),
            program: settings.program,
            times: settings.times,
            client: client.clone(),
            wall: Arc::clone(&settings.wall),
            worker: settings.worker.clone(),
            metrics: settings.metrics.clone(),
            shared: Arc::clone(&election.shared),
            candidates: Arc::clone(&candidates),
            tasks: tasks.clone(),
        };
        candidate.run()
    });
    futures::future::join_all(runs).await;
    tasks.close();
    if tokio::time::timeout(FLUSH_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::debug!("timed out writing the last events on leases");
    }
}

#[cfg(test)]
mod tests;
