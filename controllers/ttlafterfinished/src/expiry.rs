//! Decides when an object expires and what to do then. [`Expiring`] has everything that depends on
//! the kind.
//!
//! Architecture Invariant: pure. The time is an argument.

use jiff::{SignedDuration, Timestamp};
use portreeve_api::Resource;
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, EventContent, Next, Plan, Propagation, Target};

/// The minimum clock skew that is reported. A healthy cluster has smaller differences, and recorded
/// times are rounded to seconds.
const MIN_REPORTED_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// A kind of object with a limited lifetime.
pub(crate) trait Expiring: Projection {
    /// The resource of this kind.
    const RESOURCE: Resource;
    /// The name of the work queue.
    const QUEUE: &'static str;
    /// The name of the histogram of the time from the expiry to the deletion.
    const LATENCY_METRIC: &'static str;
    /// The HELP text of that histogram.
    const LATENCY_HELP: &'static str;
    /// The buckets of that histogram, in seconds.
    const LATENCY_BUCKETS: &'static [f64];
    /// The verb for the start of the lifetime in messages, for example `finished`.
    const START_VERB: &'static str;

    /// Returns the lifetime of this object; `None` if it has not started or has no limit.
    fn lifetime(&self) -> Option<Lifetime>;
}

/// A lifetime, by the clock of the component that recorded its start.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lifetime {
    pub(crate) began: Timestamp,
    pub(crate) ttl: SignedDuration,
}

impl Lifetime {
    /// Returns the first moment after the lifetime; `None` if that is beyond the range of
    /// timestamps.
    pub(crate) fn expires_at(self) -> Option<Timestamp> {
        self.began.checked_add(self.ttl).ok()
    }
}

/// Deletes an expired object, and otherwise waits until it expires.
///
/// kube-controller-manager reads the object once more before it deletes it. Here the precondition
/// on `resourceVersion` replaces this read. A user who extends the lifetime changes the object's
/// version. The apiserver then answers the deletion of the observed version with a 409, and the
/// worker observes the object again. The object could change between a read and the deletion; the
/// precondition excludes that.
pub(crate) fn decide<K: Expiring>(observed: &K, now: Timestamp) -> Plan {
    let metadata = observed.metadata();
    // An object that is already being deleted needs nothing, however long its finalizers take.
    let lifetime = observed.lifetime().filter(|_| !metadata.is_terminating());
    let Some((lifetime, expires_at)) = lifetime.and_then(|lifetime| Some((lifetime, lifetime.expires_at()?))) else {
        return Plan::nothing();
    };
    let target = Target::of(&K::RESOURCE, metadata);
    if now < expires_at {
        let warning = skew::<K>(lifetime, expires_at, now).map(|content| Effect::Event(target, content));
        return Plan {
            effects: warning.into_iter().collect(),
            next: Next::At(expires_at),
        };
    }
    let delete = Effect::Delete {
        target,
        // As in kube-controller-manager, the object stays until its dependents are gone.
        propagation: Propagation::Foreground,
    };
    let latency = Effect::ObserveLatency {
        metric: K::LATENCY_METRIC,
        since: expires_at,
    };
    Plan::of(vec![delete, latency])
}

/// Returns the plan after the apiserver rejected the deletion, because of missing permissions or
/// admission.
pub(crate) fn refused<K: Expiring>(observed: &K, why: &str) -> Plan {
    let content = EventContent::warning("FailedDelete", "Delete", why).report_once(why);
    Plan::of(vec![Effect::Event(
        Target::of(&K::RESOURCE, observed.metadata()),
        content,
    )])
}

/// Returns a warning if the object's lifetime starts in the future, because its writer's clock and
/// ours differ. The object itself is valid, so the controller still waits until it expires.
fn skew<K: Expiring>(lifetime: Lifetime, expires_at: Timestamp, now: Timestamp) -> Option<EventContent> {
    let Lifetime { began, .. } = lifetime;
    let ahead = began.duration_since(now);
    if ahead < MIN_REPORTED_SKEW {
        return None;
    }
    let (kind, start_verb) = (&K::RESOURCE.kind, K::START_VERB);
    let ahead = SignedDuration::from_secs(ahead.as_secs());
    let message = format!(
        "The {kind} {start_verb} at {began}, {ahead:#} ahead of this controller's clock: the clocks in the cluster differ. \
         The {kind} is kept until {expires_at}"
    );
    Some(EventContent::warning("ClockSkew", "Wait", message).report_once(began.to_string()))
}

#[cfg(test)]
mod tests;
