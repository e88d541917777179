//! One candidate at work: performs what the elector says, and tells what became of it.

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
use portreeve_client::{Answer, chain};
use prometheus::IntGauge;
use tokio::{
    sync::{Notify, Semaphore, SemaphorePermit, watch},
    time::{sleep_until, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{
    Metrics, Standing, Wall, boot,
    election::{Order, Shared},
    elector::{Elector, Ending, Input, Loss, Sight, Step, Times, View},
    guard::{Attempt, Book, Guard, ME},
    watch::follow,
};

/// How long a hand-over may take: one read and one write.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// How long an Event may take. It is a hint for people.
const EVENT_LIMIT: Duration = Duration::from_secs(2);

/// All candidates of one process.
pub(crate) struct Crowd {
    /// How many of them lead.
    pub(crate) leading: AtomicU32,
    /// One at a time tries to acquire, and knows then how many Leases the process holds already.
    pub(crate) turn: Semaphore,
}

/// One candidate for one Lease.
pub(crate) struct Campaign {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) identity: String,
    pub(crate) program: &'static str,
    pub(crate) times: Times,
    pub(crate) client: Client,
    pub(crate) wall: Wall,
    pub(crate) metrics: Metrics,
    pub(crate) shared: Arc<Shared>,
    pub(crate) crowd: Arc<Crowd>,
    /// Where Events are written, so that nothing waits for them.
    pub(crate) tasks: TaskTracker,
}

impl Campaign {
    /// Runs until the Lease is lost, released or given up.
    pub(crate) async fn run(self) {
        tracing::info!(lease = %self.key(), identity = self.identity, "attempting to acquire the lease");
        let book = self.shared.book.clone();
        let news = Notify::new();
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let guard = Guard {
            inner: self.client.clone(),
            book: book.clone(),
            wall: Arc::clone(&self.wall),
            manager: self.program,
        };
        let parameters = LeaseLockParams {
            lease_name: self.name.clone(),
            holder_id: ME.to_owned(),
            lease_ttl: self.times.lease_duration,
        };
        let contest = Contest {
            lock: LeaseLock::new(Client::new(guard, self.namespace.clone()), &self.namespace, parameters),
            status: self.metrics.status(&self.name),
            news: &news,
            book: book.clone(),
            campaign: &self,
        };
        contest.status.set(0);
        let pause = self.times.retry_period;
        tokio::select! {
            () = follow(leases, self.name.clone(), book, &news, pause) => {}
            () = contest.run() => {}
        }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// The right to try to acquire, which one candidate of a process has at a time.
struct Turn<'a>(#[expect(dead_code, reason = "held for its drop")] Option<SemaphorePermit<'a>>);

struct Contest<'a> {
    campaign: &'a Campaign,
    lock: LeaseLock,
    book: Book,
    news: &'a Notify,
    status: IntGauge,
}

impl Contest<'_> {
    async fn run(&self) {
        let campaign = self.campaign;
        let mut orders = campaign.shared.orders.subscribe();
        let mut elector = Elector::new(campaign.times);
        let mut input = Input::Tick;
        loop {
            let sight = self.book.sight();
            let view = View {
                now: boot::now(),
                sight: sight.as_ref(),
                patience: self.patience(&elector),
                chance: fastrand::f64(),
            };
            let step = elector.step(input, &campaign.identity, &view);
            campaign.shared.fence.set(elector.deadline());
            self.tell(&elector, sight.as_ref());
            let order = *orders.borrow_and_update();
            input = match step {
                Step::Lost(loss) => return self.lost(loss),
                Step::Won => {
                    self.won();
                    Input::Tick
                }
                _ if order.ends() => return self.leave(order, sight.as_ref()).await,
                Step::Attempt { .. } if order == Order::Hold => {
                    // The sender lives in what this borrows from.
                    let _ = orders.changed().await;
                    Input::Tick
                }
                Step::Attempt { live, limit } => {
                    let Some(turn) = self.turn(&elector, &mut orders).await else {
                        input = Input::Tick;
                        continue;
                    };
                    let input = self.attempt(&elector, live, limit).await;
                    drop(turn);
                    input
                }
                Step::Wait(until) => {
                    tokio::select! {
                        () = sleep_until(boot::instant(until)) => {}
                        () = self.news.notified() => {}
                        // The sender lives in what this borrows from.
                        _ = orders.changed() => {}
                    }
                    Input::Tick
                }
            };
        }
    }

    /// Who holds Leases already leaves others their share of a free one, if they want it.
    fn patience(&self, elector: &Elector) -> Duration {
        if elector.deadline().is_some() {
            return Duration::ZERO;
        }
        let held = self.campaign.crowd.leading.load(Ordering::Relaxed);
        self.campaign.times.retry_period * held
    }

    /// Waits for this candidate's turn to acquire; renewals wait for nobody. `None`: an order came meanwhile.
    async fn turn<'a>(&'a self, elector: &Elector, orders: &mut watch::Receiver<Order>) -> Option<Turn<'a>> {
        if elector.deadline().is_some() {
            return Some(Turn(None));
        }
        tokio::select! {
            // The semaphore is never closed.
            turn = self.campaign.crowd.turn.acquire() => Some(Turn(turn.ok())),
            _ = orders.changed() => None,
        }
    }

    async fn attempt(&self, elector: &Elector, live: bool, limit: Duration) -> Input {
        let leading = elector.deadline().is_some();
        let campaign = self.campaign;
        if leading && live {
            campaign.metrics.slow_paths(&campaign.name).inc();
        }
        self.book.prepare(Attempt {
            live,
            leading,
            patience: self.patience(elector),
        });
        let began = boot::now();
        let ended = timeout(limit, self.lock.try_acquire_or_renew()).await;
        let ending = match ended {
            Ok(Ok(LeaseLockResult::Acquired(lease))) if holder(&lease) == Some(&*campaign.identity) => Ending::Held,
            Ok(Ok(_)) => Ending::HeldByAnother,
            Ok(Err(error)) => self.failed(&error, leading),
            Err(_) => {
                let action = if leading { "renew" } else { "acquire" };
                tracing::warn!(lease = %campaign.key(), "failed to {action} the lease: no answer within {limit:?}");
                Ending::Failed
            }
        };
        Input::Attempted { began, ending }
    }

    fn failed(&self, error: &LockError, leading: bool) -> Ending {
        let answer = match error {
            LockError::AcquireLease(source) | LockError::RenewLease(source) | LockError::CreateLease(source) => {
                Some(Answer::of(source))
            }
            _ => None,
        };
        let is_created = matches!(error, LockError::CreateLease(_));
        let (lease, err) = (self.campaign.key(), chain(error));
        match answer {
            Some(Answer::Conflict | Answer::AlreadyExists) => {}
            Some(Answer::NotFound) if !is_created => {}
            _ if leading => {
                tracing::warn!(lease, err, "failed to renew the lease");
                return Ending::Failed;
            }
            _ => {
                tracing::warn!(lease, err, "failed to acquire the lease");
                return Ending::Failed;
            }
        }
        tracing::debug!(lease, err, "the lease has changed since it was read");
        Ending::Stale
    }

    /// Tells the process how this candidate stands, if that has changed.
    fn tell(&self, elector: &Elector, sight: Option<&Sight>) {
        if elector.deadline().is_some() {
            return;
        }
        let holder = sight.and_then(Sight::holder).map(str::to_owned);
        let standing = &self.campaign.shared.standing;
        standing.send_if_modified(|standing| match standing {
            Standing::Standby { holder: before } if *before != holder => {
                if let Some(holder) = &holder {
                    tracing::info!(lease = %self.campaign.key(), holder, "standing by");
                }
                *before = holder;
                true
            }
            _ => false,
        });
    }

    fn won(&self) {
        let campaign = self.campaign;
        tracing::info!(lease = %campaign.key(), identity = campaign.identity, "acquired the lease");
        self.status.set(1);
        campaign.crowd.leading.fetch_add(1, Ordering::Relaxed);
        campaign.shared.standing.send_replace(Standing::Leading);
        self.announce("became leader");
    }

    fn lost(&self, loss: Loss) {
        let campaign = self.campaign;
        let sight = self.book.sight();
        let holder = sight.as_ref().and_then(Sight::holder).unwrap_or("nobody");
        let reason = match loss {
            Loss::NotRenewed => format!("it was not renewed within {:?}", campaign.times.renew_deadline),
            Loss::Taken => format!("{holder} holds it"),
        };
        tracing::error!(lease = %campaign.key(), identity = campaign.identity, reason, "lost the lease");
        self.ended(Standing::Lost(reason));
    }

    fn ended(&self, standing: Standing) {
        self.status.set(0);
        let before = self.campaign.shared.standing.send_replace(standing);
        if before == Standing::Leading {
            self.campaign.crowd.leading.fetch_sub(1, Ordering::Relaxed);
            self.announce("stopped leading");
        }
    }

    /// Ends as ordered. Nothing is written any more from here on, by whatever mistake.
    async fn leave(&self, order: Order, sight: Option<&Sight>) {
        let campaign = self.campaign;
        campaign.shared.fence.set(None);
        // Also a Lease that was acquired by a write whose answer was lost.
        let holds = sight.and_then(Sight::holder) == Some(&*campaign.identity);
        if holds && order == Order::Release {
            let lease = campaign.key();
            match timeout(RELEASE_LIMIT, self.step_down()).await {
                Ok(Ok(())) => tracing::info!(lease, identity = campaign.identity, "released the lease"),
                Ok(Err(error)) => tracing::warn!(lease, err = chain(&error), "failed to release the lease; it expires"),
                Err(_) => tracing::warn!(lease, "failed to release the lease: no answer; it expires"),
            }
        }
        self.ended(Standing::Released);
    }

    /// Somebody may touch the Lease between the read and the write: then once more.
    async fn step_down(&self) -> Result<(), LockError> {
        self.book.prepare(Attempt {
            live: true,
            leading: true,
            patience: Duration::ZERO,
        });
        match self.lock.step_down().await {
            Err(LockError::ReleaseLease(source)) if Answer::of(&source) == Answer::Conflict => {
                self.lock.step_down().await
            }
            done => done,
        }
    }

    /// Writes an Event on the Lease, as client-go does.
    fn announce(&self, what: &str) {
        let campaign = self.campaign;
        let reporter = Reporter {
            controller: campaign.program.to_owned(),
            instance: Some(campaign.identity.clone()),
        };
        let regarding = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            namespace: Some(campaign.namespace.clone()),
            name: Some(campaign.name.clone()),
            uid: self.book.uid(),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Normal,
            reason: "LeaderElection".to_owned(),
            note: Some(format!("{} {what}", campaign.identity)),
            action: "LeaderElection".to_owned(),
            secondary: None,
        };
        let recorder = Recorder::new(campaign.client.clone(), reporter);
        campaign.tasks.spawn(async move {
            match timeout(EVENT_LIMIT, recorder.publish(&event, &regarding)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(err = chain(&error), "failed to write an event on the lease"),
                Err(_) => tracing::debug!("failed to write an event on the lease: no answer"),
            }
        });
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}
