//! The state machine of one candidate for one Lease, after client-go's `leaderelection`. It decides
//! who leads and when to send a request.
//!
//! The caller performs the action that [`Elector::step`] returns and reports the result. A
//! candidate never relies on the times written in a Lease, because they come from another machine's
//! clock. It measures how long *it* has seen the record unchanged.
//!
//! Architecture Invariant: pure. Times and random numbers are arguments. The times are read from a
//! clock that cannot be set and that keeps counting while the machine is suspended.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;

/// A point in time, as the duration since the machine started.
pub type BootTime = Duration;

/// The maximum random share of the retry period that a candidate adds to its wait between two
/// attempts. The factor is client-go's: the wait is 1 to 2.2 periods long.
pub(crate) const JITTER: f64 = 1.2;

/// The shortest pause between two renewal attempts.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(250);
/// The shortest timeout of a request.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// The durations that configure an election.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ElectionTimings {
    /// How long a candidate waits after the last renewal it observed before it takes over the
    /// Lease.
    pub lease_duration: Duration,
    /// How long a leader keeps leading after the start of its last successful renewal.
    pub renew_deadline: Duration,
    /// The pause between two attempts.
    pub retry_period: Duration,
}

impl ElectionTimings {
    /// Returns the timeout of one request of an election, as in client-go: half of the renew
    /// deadline, but at least one second. So a leader can try again after a dead connection.
    pub fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(MIN_REQUEST_TIMEOUT)
    }
}

/// A Lease record, and the time since which this process has seen it unchanged. A missing Lease
/// that no other candidate held is represented by an empty record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedRecord {
    /// The spec of the Lease.
    pub record: LeaseSpec,
    /// When this process first saw this record.
    pub since: BootTime,
    /// Whether the Lease no longer exists. The record is then its last known content.
    is_gone: bool,
}

impl ObservedRecord {
    /// Returns the observation after the Lease was seen with this record. An unchanged record keeps
    /// the time at which it was first seen.
    pub fn observe(before: Option<Self>, record: LeaseSpec, now: BootTime) -> Self {
        let known = before.filter(|before| before.record == record && !before.is_gone);
        known.unwrap_or(Self {
            record,
            since: now,
            is_gone: false,
        })
    }

    /// Returns the observation after the Lease was found missing.
    ///
    /// A deleted Lease of another holder does not become free at once. Its holder keeps leading
    /// until its last renewal expires, and recreates the Lease in the meantime. (client-go's
    /// candidates take such a Lease immediately, so that two lead.)
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

    /// Returns the holder of the Lease, or `None` if the Lease was released or never held.
    pub fn holder(&self) -> Option<&str> {
        self.record
            .holder_identity
            .as_deref()
            .filter(|holder| !holder.is_empty())
    }

    /// Returns the time from which any candidate may take the Lease. If the record has no valid
    /// duration, `lease_duration` applies.
    pub fn free_from(&self, lease_duration: Duration) -> BootTime {
        if self.holder().is_none() {
            return self.since;
        }
        let seconds = self.record.lease_duration_seconds;
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.since + seconds.map_or(lease_duration, Duration::from_secs)
    }
}

/// The inputs of a step other than the event.
#[derive(Clone, Copy, Debug)]
pub struct StepContext<'a> {
    /// The current time.
    pub now: BootTime,
    /// The last observation of the Lease, from a read, a write or the watch.
    pub observed: Option<&'a ObservedRecord>,
    /// How long to wait after the Lease becomes free, so that other processes can take it.
    pub acquire_delay: Duration,
    /// A random number from 0 to 1.
    pub jitter: f64,
}

/// What happened since the last step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ElectorEvent {
    /// Time passed, or the observed Lease changed.
    Tick,
    /// The Lease may have expired although its deadline has not passed: renew it now.
    RenewalNeeded,
    /// An attempt has ended.
    Attempted {
        /// When the attempt started. If it succeeded: when its write started. Other candidates
        /// count from the time at which they see the write, so the read before it does not matter.
        began: BootTime,
        /// The result of the attempt.
        result: AttemptResult,
    },
}

/// The result of an attempt to acquire or renew.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttemptResult {
    /// This candidate holds the Lease.
    Held,
    /// A read has just shown that another candidate holds the Lease, or that this candidate must
    /// still leave a free Lease to others.
    HeldByAnother,
    /// The Lease has changed since it was last read.
    Stale,
    /// The outcome is unknown: the apiserver did not answer, or rejected the request.
    Failed,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElectorAction {
    /// Try to acquire or renew until [`Elector::deadline`], if there is one, and report the result.
    Attempt {
        /// Whether to read the Lease first instead of relying on the cached one.
        live: bool,
    },
    /// Wait until then, or until the observed Lease changes.
    Wait(BootTime),
    /// This candidate leads from now on. Call `step` again immediately.
    Won,
    /// This candidate no longer leads, and never will again.
    Lost(LossReason),
}

/// Why a leader stopped leading.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LossReason {
    /// It did not renew the Lease in time.
    NotRenewed,
    /// Another candidate holds the Lease.
    Taken,
}

/// The state machine of one candidate for one Lease.
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
    /// When the last attempt started.
    attempted_at: Option<BootTime>,
    /// When to try again regardless of observations, because the watch may have failed unnoticed.
    next: BootTime,
    /// Whether the last attempt failed because the Lease had changed.
    stale: bool,
}

#[derive(Clone, Copy, Debug)]
struct Leading {
    /// When the last successful renewal started.
    renewed_at: BootTime,
    /// When the last attempt started.
    attempted_at: BootTime,
    /// When to renew next.
    next: BootTime,
    /// Whether the next attempt must read the Lease first.
    live: bool,
}

impl Elector {
    /// Creates a candidate that has not tried to acquire the Lease yet.
    pub fn new(times: ElectionTimings) -> Self {
        let role = Role::Standby(Standby::default());
        Self { times, role }
    }

    /// Returns the time until which this candidate may act, or `None` if it does not lead.
    pub fn deadline(&self) -> Option<BootTime> {
        match self.role {
            Role::Leading(leading) => Some(leading.renewed_at + self.times.renew_deadline),
            Role::Standby(_) | Role::Ended(_) => None,
        }
    }

    /// Processes an event of candidate `me` and returns the next action.
    pub fn step(&mut self, input: ElectorEvent, me: &str, context: &StepContext<'_>) -> ElectorAction {
        match self.role {
            Role::Standby(standby) => self.stand_by(standby, input, context),
            Role::Leading(leading) => self.lead(leading, input, me, context),
            Role::Ended(loss) => ElectorAction::Lost(loss),
        }
    }

    fn stand_by(&mut self, mut standby: Standby, input: ElectorEvent, context: &StepContext<'_>) -> ElectorAction {
        if let ElectorEvent::Attempted { began, result } = input {
            // A response after the renew deadline does not make this candidate lead. The next
            // attempt finds this candidate's identity in the Lease and renews it.
            if result == AttemptResult::Held && context.now < began + self.times.renew_deadline {
                self.role = Role::Leading(Leading {
                    renewed_at: began,
                    attempted_at: began,
                    next: began + self.times.retry_period,
                    live: false,
                });
                return ElectorAction::Won;
            }
            // Another candidate has written the Lease, so read it at once. If that attempt is stale
            // too, several candidates compete: back off with jitter.
            standby.stale = result == AttemptResult::Stale && !standby.stale;
            standby.attempted_at = Some(began);
            standby.next = if standby.stale {
                context.now
            } else {
                context.now + self.jittered_period(context.jitter)
            };
            self.role = Role::Standby(standby);
        }
        let free = context
            .observed
            .map(|observed| observed.free_from(self.times.lease_duration) + context.acquire_delay);
        // Try once at the moment when the Lease becomes free. Further attempts follow the regular
        // schedule.
        let not_yet_tried = free.filter(|free| standby.attempted_at.is_none_or(|attempted_at| attempted_at < *free));
        let when = not_yet_tried.map_or(standby.next, |free| free.min(standby.next));
        if context.now < when {
            return ElectorAction::Wait(when);
        }
        ElectorAction::Attempt { live: true }
    }

    fn lead(
        &mut self,
        mut leading: Leading,
        input: ElectorEvent,
        me: &str,
        context: &StepContext<'_>,
    ) -> ElectorAction {
        if let ElectorEvent::Attempted { began, result } = input {
            // If the cached version was outdated, read the Lease and try again at once. After a
            // failure it is still the last known one.
            let used_cache = !leading.live;
            leading.attempted_at = began;
            leading.live |= result == AttemptResult::Stale;
            match result {
                AttemptResult::Held => {
                    leading.live = false;
                    leading.renewed_at = began;
                    leading.next = began + self.times.retry_period;
                }
                AttemptResult::HeldByAnother => return self.lose(LossReason::Taken),
                AttemptResult::Stale if used_cache => leading.next = context.now,
                // Retry more often as the deadline approaches, so that a renewal succeeds soon
                // after the apiserver recovers.
                AttemptResult::Stale | AttemptResult::Failed => {
                    let left = (leading.renewed_at + self.times.renew_deadline).saturating_sub(context.now);
                    let pause = (left / 4).max(MIN_RETRY_PAUSE).min(self.times.retry_period);
                    leading.next = context.now + pause;
                }
            }
            self.role = Role::Leading(leading);
        }
        if input == ElectorEvent::RenewalNeeded {
            leading.next = context.now;
            self.role = Role::Leading(leading);
        }
        let deadline = leading.renewed_at + self.times.renew_deadline;
        if context.now >= deadline {
            return self.lose(LossReason::NotRenewed);
        }
        let holder_changed = context
            .observed
            .is_some_and(|observed| observed.holder() != Some(me) && observed.since > leading.attempted_at);
        if context.now < leading.next && !holder_changed {
            return ElectorAction::Wait(leading.next.min(deadline));
        }
        ElectorAction::Attempt {
            live: leading.live || holder_changed,
        }
    }

    fn lose(&mut self, loss: LossReason) -> ElectorAction {
        self.role = Role::Ended(loss);
        ElectorAction::Lost(loss)
    }

    fn jittered_period(&self, jitter: f64) -> Duration {
        self.times.retry_period.mul_f64(1.0 + JITTER * jitter)
    }
}

#[cfg(test)]
mod tests;
