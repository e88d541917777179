//! Who leads, and when to ask: the state machine of one candidate for one Lease, as client-go's `leaderelection` goes about it.
//!
//! The shell performs what [`Elector::step`] says and reports what became of it. A candidate never judges a Lease by the times that are
//! written in it: those are of somebody else's clock. It judges by how long *it* has seen the record unchanged.
//!
//! Architecture Invariant: no I/O, no clock, no randomness here. Moments are arguments, counted on a clock that nobody sets and that goes
//! on while the machine sleeps.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;

/// A moment, as time since the machine started.
pub type BootTime = Duration;

/// How much longer than its period a candidate waits between two attempts, at random: 0 to 1.2 times, as in client-go.
pub(crate) const JITTER: f64 = 1.2;

/// The shortest pause between two attempts to renew.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// The shortest time that an attempt is given.
const SHORTEST_LIMIT: Duration = Duration::from_secs(1);

/// The three times of an election.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ElectionTimings {
    /// How long a candidate waits after the last renewal that it has seen before it takes the Lease of another.
    pub lease_duration: Duration,
    /// How long a leader leads after the start of its last good renewal.
    pub renew_deadline: Duration,
    /// The pause between two attempts.
    pub retry_period: Duration,
}

/// A record of a Lease, and since when this process has seen it unchanged. A Lease that does not exist is an empty record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedRecord {
    /// What it says.
    pub record: LeaseSpec,
    /// Since when.
    pub since: BootTime,
    /// The Lease is not there any more; this is what it said last.
    is_gone: bool,
}

impl ObservedRecord {
    /// The Lease is there and says this. What it said before is as old as before.
    pub fn observe(before: Option<Self>, record: LeaseSpec, now: BootTime) -> Self {
        let known = before.filter(|before| before.record == record && !before.is_gone);
        known.unwrap_or(Self {
            record,
            since: now,
            is_gone: false,
        })
    }

    /// The Lease is not there. Of a Lease that another holds that frees nothing: who holds it goes on for as long as from its last
    /// renewal, and makes it anew meanwhile. (client-go's candidates take it at once, and two lead.)
    pub fn observe_missing(before: Option<Self>, me: &str, now: BootTime) -> Self {
        let before = before.unwrap_or_default();
        if before.is_gone {
            return before;
        }
        let holder = before.holder().filter(|holder| *holder != me);
        let record = if holder.is_some() {
            before.record
        } else {
            LeaseSpec::default()
        };
        Self {
            record,
            since: now,
            is_gone: true,
        }
    }

    /// Who holds the Lease; `None` when it was released or never held.
    pub fn holder(&self) -> Option<&str> {
        self.record
            .holder_identity
            .as_deref()
            .filter(|holder| !holder.is_empty())
    }

    /// From when on anybody may take it. A record that does not say for how long it is held counts as `lease_duration`.
    pub fn free_from(&self, lease_duration: Duration) -> BootTime {
        if self.holder().is_none() {
            return self.since;
        }
        let seconds = self.record.lease_duration_seconds;
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.since + seconds.map_or(lease_duration, Duration::from_secs)
    }
}

/// What a step is decided on, besides what happened.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// Now.
    pub now: BootTime,
    /// The Lease as it was last seen, by whatever way.
    pub observed: Option<&'a ObservedRecord>,
    /// How much longer than necessary to leave a free Lease to others.
    pub acquire_delay: Duration,
    /// From 0 to 1, at random.
    pub jitter: f64,
}

/// What happened since the last step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ElectorEvent {
    /// Time passed, or the Lease was seen in another state.
    Tick,
    /// An attempt ended that was begun at `began`.
    Attempted {
        /// When.
        began: BootTime,
        /// How.
        result: AttemptResult,
    },
}

/// How an attempt to acquire or renew ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttemptResult {
    /// This candidate holds the Lease.
    Held,
    /// Read just now, the Lease is another's.
    HeldByAnother,
    /// The Lease has changed since it was last read.
    Stale,
    /// Nobody knows: no answer, or a refusal.
    Failed,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElectorAction {
    /// Try to acquire or renew, and report the result.
    Attempt {
        /// Read the Lease first, instead of relying on what was last read of it.
        live: bool,
        /// How long that may take.
        limit: Duration,
    },
    /// Wait until then, or until the Lease is seen in another state.
    Wait(BootTime),
    /// This candidate leads from now on; step on.
    Won,
    /// This candidate leads no more, and never will again.
    Lost(LossReason),
}

/// Why a leader leads no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LossReason {
    /// It could not renew in time.
    NotRenewed,
    /// The Lease is another's.
    Taken,
}

/// One candidate for one Lease.
#[derive(Clone, Debug)]
pub struct Elector {
    times: ElectionTimings,
    role: Role,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Standby(Standby),
    Leading(Leading),
    Ended(LossReason),
}

#[derive(Clone, Copy, Debug, Default)]
struct Standby {
    /// When the last attempt was begun.
    tried: Option<BootTime>,
    /// When to try again whatever was seen: the watch may be silent because it is dead.
    next: BootTime,
    /// The last attempt found the Lease changed under it.
    stale: bool,
}

#[derive(Clone, Copy, Debug)]
struct Leading {
    /// When the last good renewal was begun.
    renewed: BootTime,
    /// When the last attempt was begun.
    tried: BootTime,
    /// When to renew.
    next: BootTime,
    /// Whether the next attempt has to read the Lease first.
    live: bool,
}

impl Elector {
    /// A candidate that has not tried yet.
    pub fn new(times: ElectionTimings) -> Self {
        let role = Role::Standby(Standby::default());
        Self { times, role }
    }

    /// Until when this candidate may act; `None` when it does not lead.
    pub fn deadline(&self) -> Option<BootTime> {
        match self.role {
            Role::Leading(leading) => Some(leading.renewed + self.times.renew_deadline),
            Role::Standby(_) | Role::Ended(_) => None,
        }
    }

    /// Takes in what happened to candidate `me`, and says what to do.
    pub fn step(&mut self, input: ElectorEvent, me: &str, view: &StepContext<'_>) -> ElectorAction {
        match self.role {
            Role::Standby(standby) => self.stand_by(standby, input, view),
            Role::Leading(leading) => self.lead(leading, input, me, view),
            Role::Ended(loss) => ElectorAction::Lost(loss),
        }
    }

    fn stand_by(&mut self, mut standby: Standby, input: ElectorEvent, view: &StepContext<'_>) -> ElectorAction {
        if let ElectorEvent::Attempted { began, result } = input {
            // An answer that comes after its time is no leadership: the next attempt finds the Lease ours and renews it.
            if result == AttemptResult::Held && view.now < began + self.times.renew_deadline {
                self.role = Role::Leading(Leading {
                    renewed: began,
                    tried: began,
                    next: began + self.times.retry_period,
                    live: false,
                });
                return ElectorAction::Won;
            }
            // Somebody was faster: look again at once who it was. If that is stale as well there is a crowd, and it had better disperse.
            standby.stale = result == AttemptResult::Stale && !standby.stale;
            standby.tried = Some(began);
            standby.next = if standby.stale {
                view.now
            } else {
                view.now + self.pause(view.jitter)
            };
            self.role = Role::Standby(standby);
        }
        let free = view
            .observed
            .map(|observed| observed.free_from(self.times.lease_duration) + view.acquire_delay);
        // What becomes free is tried for once at that moment, and from then on like everything else.
        let untried = free.filter(|free| standby.tried.is_none_or(|tried| tried < *free));
        let when = untried.map_or(standby.next, |free| free.min(standby.next));
        if view.now < when {
            return ElectorAction::Wait(when);
        }
        ElectorAction::Attempt {
            live: true,
            limit: self.limit(),
        }
    }

    fn lead(&mut self, mut leading: Leading, input: ElectorEvent, me: &str, view: &StepContext<'_>) -> ElectorAction {
        if let ElectorEvent::Attempted { began, result } = input {
            // What was relied on had changed: read, and try again at once.
            let relied = !leading.live;
            leading.tried = began;
            leading.live = result != AttemptResult::Held;
            match result {
                AttemptResult::Held => {
                    leading.renewed = began;
                    leading.next = began + self.times.retry_period;
                }
                AttemptResult::HeldByAnother => return self.lose(LossReason::Taken),
                AttemptResult::Stale if relied => leading.next = view.now,
                // The nearer the end the more often: an apiserver that is back in time is to be found in time.
                AttemptResult::Stale | AttemptResult::Failed => {
                    let left = (leading.renewed + self.times.renew_deadline).saturating_sub(view.now);
                    let pause = (left / 4).max(SHORTEST_PAUSE).min(self.times.retry_period);
                    leading.next = view.now + pause;
                }
            }
            self.role = Role::Leading(leading);
        }
        let deadline = leading.renewed + self.times.renew_deadline;
        if view.now >= deadline {
            return self.lose(LossReason::NotRenewed);
        }
        let suspicion = view
            .observed
            .is_some_and(|observed| observed.holder() != Some(me) && observed.since > leading.tried);
        if view.now < leading.next && !suspicion {
            return ElectorAction::Wait(leading.next.min(deadline));
        }
        ElectorAction::Attempt {
            live: leading.live || suspicion,
            limit: self.limit().min(deadline.saturating_sub(view.now)),
        }
    }

    /// How long one attempt may take: no longer than until the next one is due, so that a connection that is dead is given up in time.
    fn limit(&self) -> Duration {
        let half = self.times.renew_deadline / 2;
        self.times.retry_period.max(SHORTEST_LIMIT).min(half)
    }

    fn lose(&mut self, loss: LossReason) -> ElectorAction {
        self.role = Role::Ended(loss);
        ElectorAction::Lost(loss)
    }

    fn pause(&self, jitter: f64) -> Duration {
        self.times.retry_period.mul_f64(1.0 + JITTER * jitter)
    }
}

#[cfg(test)]
mod tests;
