//! Runs one candidate: performs the elector's actions and reports their results.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ObjectReference};
use kube::{Api, Client};
use kube_leader_election::{Error as LockError, LeaseLock, LeaseLockParams, LeaseLockResult};
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use portreeve_client::{ApiErrorKind, error_chain};
use prometheus::IntGauge;
use tokio::{
    sync::{Notify, Semaphore, watch},
    time::{sleep_until, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use crate::{
    Metrics, WallClock, boot_clock,
    elector::{
        AttemptResult, ElectionTimings, Elector, ElectorAction, ElectorEvent, LossReason, ObservedRecord, StepContext,
    },
    guard::{Attempt, Guard, LeaseCache, ME},
    heartbeat::Heartbeat,
    leadership::{CandidateCommand, LeadershipState, Shared},
    metrics::FailureCounters,
    review::review_access,
    watch::follow,
};

/// The timeout of a release, which takes one write, or a read and a second write if the Lease has
/// changed.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a candidate that shall end waits for the response to a write.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// The timeout for writing an Event. Events are best-effort.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);

/// All candidates of one process.
pub(crate) struct CandidateSet {
    /// The number of candidates that lead.
    pub(crate) leading: AtomicU32,
    /// Allows one candidate at a time to acquire, so that each knows how many Leases the process
    /// already holds.
    pub(crate) acquire_permit: Semaphore,
}

/// One candidate for one Lease.
pub(crate) struct Candidate {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) identity: String,
    pub(crate) program: &'static str,
    pub(crate) times: ElectionTimings,
    pub(crate) client: Client,
    pub(crate) wall: WallClock,
    pub(crate) worker: Heartbeat,
    pub(crate) metrics: Metrics,
    pub(crate) shared: Arc<Shared>,
    pub(crate) candidates: Arc<CandidateSet>,
    /// The tasks that write Events, so that no candidate waits for them.
    pub(crate) tasks: TaskTracker,
}

impl Candidate {
    /// Runs until the Lease is lost or the candidacy ends.
    pub(crate) async fn run(self) {
        tracing::info!(lease = %self.key(), identity = self.identity, "attempting to acquire the lease");
        let cache = self.shared.cache.clone();
        let lease_changed = Notify::new();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let guard = Guard {
            inner: self.client.clone(),
            cache: cache.clone(),
            fence: self.shared.fence.clone(),
            wall: Arc::clone(&self.wall),
            manager: self.program,
        };
        let parameters = LeaseLockParams {
            lease_name: self.name.clone(),
            holder_id: ME.to_owned(),
            lease_ttl: self.times.lease_duration,
        };
        let candidate_loop = CandidateLoop {
            lock: LeaseLock::new(Client::new(guard, self.namespace.clone()), &self.namespace, parameters),
            status: self.metrics.status(&self.name),
            failures: self.metrics.failures(&self.name),
            lease_changed: &lease_changed,
            cache: cache.clone(),
            candidate: &self,
        };
        candidate_loop.status.set(0);
        // A rate needs the series before the first slow path.
        self.metrics.slow_paths(&self.name);
        self.metrics
            .watch_renewals(&self.name, &self.shared, Shared::renewal_age);
        let pause = self.times.retry_period;
        let (client, access) = (self.client.clone(), &self.shared.access);
        tokio::select! {
            () = follow(leases, self.name.clone(), cache, &lease_changed, pause) => {}
            never = review_access(client, &self.namespace, &self.name, access, pause) => match never {},
            () = candidate_loop.run() => {}
            () = self.worker.wait_until_stuck() => candidate_loop.give_up(),
        }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

struct CandidateLoop<'a> {
    candidate: &'a Candidate,
    lock: LeaseLock,
    cache: LeaseCache,
    lease_changed: &'a Notify,
    status: IntGauge,
    failures: FailureCounters,
}

impl CandidateLoop<'_> {
    async fn run(&self) {
        let candidate = self.candidate;
        let mut commands = candidate.shared.commands.subscribe();
        let mut elector = Elector::new(candidate.times);
        let mut input = ElectorEvent::Tick;
        loop {
            let observed = self.cache.observed();
            let context = StepContext {
                now: boot_clock::now(),
                observed: observed.as_ref(),
                acquire_delay: self.acquire_delay(&elector),
                jitter: fastrand::f64(),
            };
            let step = elector.step(input, &candidate.identity, &context);
            candidate.shared.fence.set(elector.deadline());
            self.publish_holder(&elector, observed.as_ref());
            let command = *commands.borrow_and_update();
            input = match step {
                ElectorAction::Lost(loss) => return self.lost(loss),
                ElectorAction::Won => {
                    self.won();
                    ElectorEvent::Tick
                }
                _ if command.ends() => return self.leave(command, observed.as_ref()).await,
                ElectorAction::Attempt { .. } if command == CandidateCommand::Hold => {
                    // The sender is part of `self`, so `changed` cannot fail.
                    let _ = commands.changed().await;
                    ElectorEvent::Tick
                }
                ElectorAction::Attempt { live } => {
                    let mut ends = commands.clone();
                    tokio::select! {
                        biased;
                        input = self.take_turn(&elector, live, &mut commands) => input,
                        () = self.abandon_attempt(&elector, &mut ends) => ElectorEvent::Tick,
                    }
                }
                ElectorAction::Wait(until) => {
                    tokio::select! {
                        () = sleep_until(boot_clock::instant(until)) => ElectorEvent::Tick,
                        () = self.lease_changed.notified() => ElectorEvent::Tick,
                        () = candidate.shared.fence.renewal_needed() => ElectorEvent::RenewalNeeded,
                        // The sender is part of `self`, so `changed` cannot fail.
                        _ = commands.changed() => ElectorEvent::Tick,
                    }
                }
            };
        }
    }

    /// Returns how long to wait after the Lease becomes free, so that other processes can take it:
    /// one retry period for each Lease that this process already holds.
    fn acquire_delay(&self, elector: &Elector) -> Duration {
        if elector.deadline().is_some() {
            return Duration::ZERO;
        }
        let held = self.candidate.candidates.leading.load(Ordering::Relaxed);
        self.candidate.times.retry_period * held
    }

    /// Tries to acquire or renew. An attempt that may acquire the Lease waits for its turn, and is
    /// skipped if a command arrives first.
    async fn take_turn(
        &self,
        elector: &Elector,
        live: bool,
        commands: &mut watch::Receiver<CandidateCommand>,
    ) -> ElectorEvent {
        let leading = elector.deadline().is_some();
        if leading || !self.cache.may_be_free(self.acquire_delay(elector)) {
            return self.attempt(elector, live, leading).await;
        }
        tokio::select! {
            // The semaphore is never closed. The permit is held during the attempt.
            _permit = self.candidate.candidates.acquire_permit.acquire() => self.attempt(elector, live, true).await,
            _ = commands.changed() => ElectorEvent::Tick,
        }
    }

    /// Waits until a standby's attempt can be dropped because the candidacy ends. A write in flight
    /// gets some time for its response. Never returns for a leader, whose attempts end in time.
    async fn abandon_attempt(&self, elector: &Elector, commands: &mut watch::Receiver<CandidateCommand>) {
        if elector.deadline().is_some() || commands.wait_for(|command| command.ends()).await.is_err() {
            return std::future::pending().await;
        }
        if self.cache.last_write().is_some() {
            tokio::time::sleep(LAST_WRITE_TIMEOUT).await;
        }
    }

    /// Tries to acquire or renew. The client limits each request, and a leader's attempt ends at
    /// its deadline.
    async fn attempt(&self, elector: &Elector, live: bool, may_acquire: bool) -> ElectorEvent {
        let deadline = elector.deadline();
        let leading = deadline.is_some();
        let candidate = self.candidate;
        if leading && live {
            candidate.metrics.slow_paths(&candidate.name).inc();
        }
        self.cache.prepare(Attempt {
            live,
            leading,
            may_acquire,
            acquire_delay: self.acquire_delay(elector),
        });
        let began = boot_clock::now();
        let attempt = self.lock.try_acquire_or_renew();
        let ended = match deadline {
            Some(deadline) => timeout_at(boot_clock::instant(deadline), attempt).await.ok(),
            None => Some(attempt.await),
        };
        let (began, result) = match ended {
            Some(Ok(LeaseLockResult::Acquired(lease))) if holder(&lease) == Some(&*candidate.identity) => {
                let write = self.cache.last_write();
                let began = write.map_or(began, |write| write.began);
                let date = write.and_then(|write| write.date);
                candidate.shared.fence.renewed(began, date);
                (began, AttemptResult::Held)
            }
            Some(Ok(_)) => (began, AttemptResult::HeldByAnother),
            Some(Err(error)) => (began, self.classify_error(&error, leading)),
            None => (began, self.failed("no answer before the renew deadline", leading)),
        };
        if result != AttemptResult::Failed && candidate.shared.access.lock().record_answer(boot_clock::now()) {
            tracing::info!(lease = %candidate.key(), "reached the lease again");
        }
        ElectorEvent::Attempted { began, result }
    }

    /// Logs a failed attempt, and returns whether the Lease had changed or the outcome is unknown.
    fn classify_error(&self, error: &LockError, leading: bool) -> AttemptResult {
        let kind = match error {
            LockError::AcquireLease(source) | LockError::RenewLease(source) | LockError::CreateLease(source) => {
                Some(ApiErrorKind::of(source))
            }
            _ => None,
        };
        let is_create = matches!(error, LockError::CreateLease(_));
        let err = error_chain(error);
        match kind {
            Some(ApiErrorKind::Conflict | ApiErrorKind::AlreadyExists) => {}
            Some(ApiErrorKind::NotFound) if !is_create => {}
            _ => return self.failed(&err, leading),
        }
        tracing::debug!(lease = %self.candidate.key(), err, "found the lease changed since it was read");
        AttemptResult::Stale
    }

    /// Records a failed attempt. Logs a warning unless the last attempt failed in the same way.
    fn failed(&self, err: &str, leading: bool) -> AttemptResult {
        let lease = self.candidate.key();
        let is_new = self.candidate.shared.access.lock().record_failure(err);
        let failures = &self.failures;
        if leading { &failures.renew } else { &failures.acquire }.inc();
        match (is_new, leading) {
            (true, true) => tracing::warn!(lease, err, "failed to renew the lease"),
            (true, false) => tracing::warn!(lease, err, "failed to acquire the lease"),
            (false, _) => tracing::debug!(lease, err, "failed to acquire or renew the lease again"),
        }
        AttemptResult::Failed
    }

    /// Publishes a change of the observed holder while this candidate is a standby.
    fn publish_holder(&self, elector: &Elector, observed: Option<&ObservedRecord>) {
        if elector.deadline().is_some() {
            return;
        }
        let holder = observed.and_then(ObservedRecord::holder).map(str::to_owned);
        let leadership = &self.candidate.shared.leadership;
        leadership.send_if_modified(|leadership| match leadership {
            LeadershipState::Standby { holder: before } if *before != holder => {
                if let Some(holder) = &holder {
                    tracing::info!(lease = %self.candidate.key(), holder, "standing by");
                }
                *before = holder;
                true
            }
            _ => false,
        });
    }

    fn won(&self) {
        let candidate = self.candidate;
        tracing::info!(lease = %candidate.key(), identity = candidate.identity, "acquired the lease");
        self.status.set(1);
        candidate.candidates.leading.fetch_add(1, Ordering::Relaxed);
        candidate.shared.leadership.send_replace(LeadershipState::Leading);
        self.publish_event("became leader");
    }

    fn lost(&self, loss: LossReason) {
        let candidate = self.candidate;
        let observed = self.cache.observed();
        let holder = observed.as_ref().and_then(ObservedRecord::holder).unwrap_or("nobody");
        let reason = match loss {
            LossReason::NotRenewed => format!("the Lease was not renewed within {:?}", candidate.times.renew_deadline),
            LossReason::Taken => format!("{holder} holds the Lease"),
        };
        tracing::error!(lease = %candidate.key(), identity = candidate.identity, reason, "lost the lease");
        self.finish(LeadershipState::Lost(reason));
    }

    /// Ends the candidacy because the worker runtime is stuck. The Lease is not released but
    /// expires, because requests that the runtime has sent may still arrive.
    fn give_up(&self) {
        let candidate = self.candidate;
        candidate.shared.fence.set(None);
        let limit = candidate.times.renew_deadline;
        let reason = format!("no task of the worker runtime has run for {limit:?}");
        self.finish(LeadershipState::Lost(reason));
    }

    /// Publishes the final state.
    fn finish(&self, leadership: LeadershipState) {
        self.status.set(0);
        let before = self.candidate.shared.leadership.send_replace(leadership);
        if before == LeadershipState::Leading {
            self.candidate.candidates.leading.fetch_sub(1, Ordering::Relaxed);
            self.publish_event("stopped leading");
        }
    }

    /// Closes the fence, so that no more writes pass, and ends the candidacy as commanded.
    async fn leave(&self, command: CandidateCommand, observed: Option<&ObservedRecord>) {
        let candidate = self.candidate;
        candidate.shared.fence.set(None);
        // A write without a response may have acquired the Lease.
        let unknown = self.cache.last_write().is_some_and(|write| write.date.is_none());
        let holds = unknown || observed.and_then(ObservedRecord::holder) == Some(&*candidate.identity);
        if holds && command == CandidateCommand::Release {
            let lease = candidate.key();
            match timeout(RELEASE_TIMEOUT, self.step_down(unknown)).await {
                Ok(Err(LockError::ReleaseLockWhenNotLeading { .. })) if unknown => {}
                Ok(Ok(())) => tracing::info!(lease, identity = candidate.identity, "released the lease"),
                Ok(Err(error)) => tracing::warn!(
                    lease,
                    err = error_chain(&error),
                    "failed to release the lease; it will expire"
                ),
                Err(_) => tracing::warn!(lease, "timed out releasing the lease; it will expire"),
            }
        }
        self.finish(LeadershipState::Released);
    }

    /// Releases the Lease. Reads it and retries once if it has changed since it was last read.
    async fn step_down(&self, live: bool) -> Result<(), LockError> {
        let mut attempt = Attempt {
            live,
            leading: true,
            may_acquire: false,
            acquire_delay: Duration::ZERO,
        };
        self.cache.prepare(attempt);
        match self.lock.step_down().await {
            Err(LockError::ReleaseLease(source)) if ApiErrorKind::of(&source) == ApiErrorKind::Conflict => {
                attempt.live = true;
                self.cache.prepare(attempt);
                self.lock.step_down().await
            }
            done => done,
        }
    }

    /// Writes an Event on the Lease, as client-go does.
    fn publish_event(&self, what: &str) {
        let candidate = self.candidate;
        let reporter = Reporter {
            controller: candidate.program.to_owned(),
            instance: Some(candidate.identity.clone()),
        };
        let regarding = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            namespace: Some(candidate.namespace.clone()),
            name: Some(candidate.name.clone()),
            uid: self.cache.uid(),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(format!("{} {what}", candidate.identity)),
            action: "LeaderElection".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(candidate.client.clone(), reporter);
        candidate.tasks.spawn(async move {
            match timeout(EVENT_TIMEOUT, recorder.publish(&event, &regarding)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(err = error_chain(&error), "failed to write an event on the lease"),
                Err(_) => tracing::debug!("timed out writing an event on the lease"),
            }
        });
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}
