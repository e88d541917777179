//! What a process sees of its elections: how each stands, its fence, and the way to release it.

use std::{
    sync::{Arc, atomic::AtomicU32},
    thread,
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use portreeve_client::Connection;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::{
    LeaseFence, LeaseSnapshot, Metrics, WallClock, boot_clock,
    candidate::{Candidate, CandidateSet},
    elector::ElectionTimings,
    guard::LeaseCache,
};

/// How long the last Events may take at the end.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// How long the thread may take to end once it is told to.
const END_LIMIT: Duration = Duration::from_secs(2);
/// A leader whose last good renewal is this much older than the lease duration fails its health check, as in kube-controller-manager.
const HEALTH_GRACE: Duration = Duration::from_secs(20);

/// How an election stands for this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LeadershipState {
    /// Another leads, or nobody yet.
    Standby {
        /// Who holds the Lease, as far as is known.
        holder: Option<String>,
    },
    /// This process leads.
    Leading,
    /// It led, and never will again.
    Lost(String),
    /// It takes no part any more, and holds nothing.
    Released,
}

/// What a candidate is told to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CandidateCommand {
    /// Look, and acquire nothing yet.
    Hold,
    Run,
    /// End, and release what is held.
    Release,
    /// End as you are: what is held expires.
    GiveUp,
}

impl CandidateCommand {
    pub(crate) fn ends(self) -> bool {
        matches!(self, Self::Release | Self::GiveUp)
    }
}

/// What a candidate and its handle share.
pub(crate) struct Shared {
    pub(crate) fence: LeaseFence,
    pub(crate) leadership: watch::Sender<LeadershipState>,
    pub(crate) commands: watch::Sender<CandidateCommand>,
    pub(crate) cache: LeaseCache,
}

/// What elections need.
pub struct Settings {
    /// How to reach the apiserver. Its rate limit does not hold here.
    pub client: portreeve_client::Args,
    /// `name/version` of the program, for the user agent.
    pub agent: String,
    /// The program's name: field manager of Leases, reporter of Events.
    pub program: &'static str,
    /// What the candidates of this process are called.
    pub identity: String,
    /// The namespace of the Leases.
    pub namespace: String,
    /// The names of the Leases.
    pub leases: Vec<String>,
    /// The times that they go by.
    pub times: ElectionTimings,
    /// The time of day.
    pub wall: WallClock,
    /// Where requests are counted.
    pub requests: portreeve_client::Metrics,
    /// Where leaders are counted.
    pub metrics: Metrics,
}

/// Elections cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no thread for it.
    #[error("failed to start the thread of leader election")]
    Thread(#[source] std::io::Error),
    /// The thread has no runtime.
    #[error("failed to start the runtime of leader election")]
    Runtime(#[source] std::io::Error),
    /// There is no connection.
    #[error("failed to set up the connection of leader election")]
    Connection(#[source] portreeve_client::Error),
    /// The thread ended before it had begun.
    #[error("the thread of leader election ended")]
    Ended,
}

/// One candidate, seen from the rest of the process. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    lease: Arc<str>,
    times: ElectionTimings,
    shared: Arc<Shared>,
}

impl Election {
    /// The Lease, as `namespace/name`.
    pub fn lease(&self) -> &str {
        &self.lease
    }

    /// The namespace and the name of the Lease.
    pub fn key(&self) -> (&str, &str) {
        self.lease.split_once('/').unwrap_or(("", &self.lease))
    }

    /// The Lease's annotations, now and on each change but renewals. Known before [`Election::wait_until_leading`], on a standby too.
    pub fn lease_snapshots(&self) -> watch::Receiver<LeaseSnapshot> {
        self.shared.cache.lease_snapshots()
    }

    /// Takes in the answer to a write by somebody else in this process: the next renewal relies on it.
    pub fn record_write(&self, lease: Lease) {
        self.shared.cache.record_write(lease);
    }

    /// What stands before the writes of those whom this election is about.
    pub fn fence(&self) -> LeaseFence {
        self.shared.fence.clone()
    }

    /// How it stands now.
    pub fn leadership(&self) -> LeadershipState {
        self.shared.leadership.borrow().clone()
    }

    /// Begins to compete: for those who can do at once what a leader has to do.
    pub fn start_competing(&self) {
        self.command(CandidateCommand::Run, |command| command == CandidateCommand::Hold);
    }

    /// Waits until this process leads. Never returns if it has led already and lost: see [`Election::wait_until_lost`].
    pub async fn wait_until_leading(&self) {
        self.wait_for(|leadership| *leadership == LeadershipState::Leading)
            .await;
    }

    /// Waits until this process has lost, if it led or not, and says why.
    pub async fn wait_until_lost(&self) -> String {
        match self
            .wait_for(|leadership| matches!(leadership, LeadershipState::Lost(_)))
            .await
        {
            LeadershipState::Lost(reason) => reason,
            other => format!("{other:?}"),
        }
    }

    /// Ends the candidacy, and releases the Lease if it is held: for those who write no more and have nothing under way.
    pub async fn release(&self) {
        self.command(CandidateCommand::Release, |command| !command.ends());
        self.wait_for(|leadership| matches!(leadership, LeadershipState::Lost(_) | LeadershipState::Released))
            .await;
    }

    fn command(&self, new: CandidateCommand, is_due: impl Fn(CandidateCommand) -> bool) {
        self.shared.commands.send_if_modified(|command| {
            let due = is_due(*command);
            if due {
                *command = new;
            }
            due
        });
    }

    /// What `/healthz` says of it.
    ///
    /// # Errors
    ///
    /// Fails when this process leads though it has not renewed for 20 s longer than the lease duration: a thread is stuck.
    pub fn health(&self) -> Result<String, String> {
        match self.leadership() {
            LeadershipState::Standby { holder: Some(holder) } => {
                Ok(format!("standby, {holder} leads by {}", self.lease))
            }
            LeadershipState::Standby { holder: None } => {
                Ok(format!("standby, nobody is known to lead by {}", self.lease))
            }
            LeadershipState::Released => Ok(format!("{} is released", self.lease)),
            LeadershipState::Lost(reason) => Ok(format!("{} is lost, the process ends: {reason}", self.lease)),
            LeadershipState::Leading => {
                let limit = self.times.lease_duration.saturating_sub(self.times.renew_deadline) + HEALTH_GRACE;
                match self.shared.fence.closed_since(boot_clock::now()) {
                    Some(closed) if closed > limit => Err(format!(
                        "failed election to renew leadership on lease {}: the last renewal should have come {} s ago",
                        self.lease,
                        closed.as_secs()
                    )),
                    _ => Ok(format!("leading by {}", self.lease)),
                }
            }
        }
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
            // The sender lives in what this borrows from.
            None => std::future::pending().await,
        }
    }
}

/// All elections of a process, and their thread. Dropped, it ends them without releasing anything.
pub struct Elections {
    elections: Vec<Election>,
    ended: oneshot::Receiver<()>,
}

impl Elections {
    /// Starts one candidate for each Lease, which looks on until [`Election::start_competing`].
    ///
    /// # Errors
    ///
    /// See [`Error`]. An apiserver that is away is no error: candidates try on.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let shared = || Shared {
            fence: LeaseFence::default(),
            leadership: watch::Sender::new(LeadershipState::Standby { holder: None }),
            commands: watch::Sender::new(CandidateCommand::Hold),
            cache: LeaseCache::new(settings.identity.clone(), settings.times.lease_duration),
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
        let named = thread::Builder::new().name("leader-election".to_owned());
        named
            .spawn(move || hold(&settings, &thread.elections, ready))
            .map_err(Error::Thread)?;
        // From here on a drop ends the thread, also while this waits.
        let elections = Self { elections, ended };
        started.await.unwrap_or(Err(Error::Ended))?;
        Ok(elections)
    }

    /// One for each Lease, in their order.
    pub fn all(&self) -> &[Election] {
        &self.elections
    }

    /// Ends every candidacy that was not released, and waits a moment for that and for the last Events.
    pub async fn end(mut self) {
        self.give_up();
        if tokio::time::timeout(END_LIMIT, &mut self.ended).await.is_err() {
            tracing::debug!("leader election is still waiting for an answer");
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

/// What the thread leaves behind when it ends, also by a panic: nobody waits for it in vain, and nothing is written any more.
struct Thread {
    elections: Vec<Election>,
    /// Dropped, it says that the thread has ended.
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

/// The body of the thread.
fn hold(settings: &Settings, elections: &[Election], ready: oneshot::Sender<Result<(), Error>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = ready.send(Err(Error::Runtime(error)));
            return;
        }
    };
    runtime.block_on(async {
        let client = match connect(settings).await {
            Ok(client) => client,
            Err(error) => {
                let _ = ready.send(Err(Error::Connection(error)));
                return;
            }
        };
        // Who started it may have been told to stop meanwhile.
        if ready.send(Ok(())).is_err() {
            return;
        }
        run_candidates(settings, &client, elections).await;
    });
    runtime.shutdown_timeout(FLUSH_LIMIT);
}

async fn connect(settings: &Settings) -> Result<kube::Client, portreeve_client::Error> {
    let mut client = settings.client.clone();
    // A renewal must not wait behind anything.
    client.kube_api_qps = 0.0;
    let connection = portreeve_client::Settings {
        program: settings.agent.clone(),
        call_limit: settings.times.renew_deadline,
        fence: Arc::new(portreeve_client::AlwaysOpen),
        metrics: settings.requests.clone(),
    };
    Connection::open(&client, connection).await?.client("leader-election")
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
            metrics: settings.metrics.clone(),
            shared: Arc::clone(&election.shared),
            candidates: Arc::clone(&candidates),
            tasks: tasks.clone(),
        };
        candidate.run()
    });
    futures::future::join_all(runs).await;
    tasks.close();
    if tokio::time::timeout(FLUSH_LIMIT, tasks.wait()).await.is_err() {
        tracing::debug!("an event on a lease was not written in time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(leadership: LeadershipState) -> Election {
        Election {
            lease: "n/lease".into(),
            times: ElectionTimings {
                lease_duration: Duration::from_secs(15),
                renew_deadline: Duration::from_secs(10),
                retry_period: Duration::from_secs(2),
            },
            shared: Arc::new(Shared {
                fence: LeaseFence::default(),
                leadership: watch::Sender::new(leadership),
                commands: watch::Sender::new(CandidateCommand::Run),
                cache: LeaseCache::new("me".to_owned(), Duration::from_secs(15)),
            }),
        }
    }

    #[test]
    fn a_leader_is_stuck_when_it_has_not_renewed_for_twenty_seconds_more_than_the_lease() {
        let election = election(LeadershipState::Leading);
        // The fence closes 10 s after the last good renewal, so this is a second before and after 35 s.
        for (closed, healthy) in [(24, true), (26, false)] {
            let deadline = boot_clock::now().saturating_sub(Duration::from_secs(closed));
            election.shared.fence.set(Some(deadline));
            let health = election.health();
            assert_eq!(health.is_ok(), healthy, "{health:?}");
        }
        let failure = election.health().unwrap_err();
        assert!(
            failure.contains("failed election to renew leadership on lease n/lease"),
            "{failure}"
        );
    }

    #[test]
    fn a_standby_is_healthy_and_says_who_leads() {
        let holder = Some("other_1".to_owned());
        let health = election(LeadershipState::Standby { holder }).health();
        assert_eq!(health.as_deref(), Ok("standby, other_1 leads by n/lease"));
    }

    #[tokio::test]
    async fn who_waits_is_told_when_the_thread_ends_without_a_word() {
        let election = election(LeadershipState::Leading);
        let (end, _) = oneshot::channel();
        drop(Thread {
            elections: vec![election.clone()],
            _end: end,
        });
        assert_eq!(election.wait_until_lost().await, "leader election ended");
        assert!(portreeve_client::Fence::admit(&election.fence()).is_err());
        election.release().await;
    }
}
