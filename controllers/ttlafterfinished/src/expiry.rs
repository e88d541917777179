//! When something has outlived its time, and what to do then. Pure: of a kind it knows what [`Expiring`] says.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::{Informer, Projection};
use portreeve_reconcile::{Effect, EventContent, Next, Plan, Propagation, Reconciler, Target};

/// By less the clocks of a healthy cluster differ, and so may a time that is rounded to a second.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// A kind of object that lives for a time.
pub(crate) trait Expiring: Projection {
    /// Where it is served.
    const RESOURCE: Resource;
    /// The name of its queue.
    const QUEUE: &'static str;
    /// The histogram of the time from an expiry to the deletion.
    const LATENCY_METRIC: &'static str;
    /// What that says.
    const LATENCY_HELP: &'static str;
    /// What happened to it when its time began, as a verb: `finished`.
    const START_VERB: &'static str;

    /// How long this one lives; `None` while its time has not begun, and for what lives until somebody deletes it.
    fn lifetime(&self) -> Option<Lifetime>;
}

/// A stretch of time by the clock of whoever wrote down its beginning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lifetime {
    pub(crate) began: Timestamp,
    pub(crate) ttl: SignedDuration,
}

impl Lifetime {
    /// The first moment after it; `None` when that is past the end of the calendar.
    pub(crate) fn expires_at(self) -> Option<Timestamp> {
        self.began.checked_add(self.ttl).ok()
    }
}

/// Deletes each object when its time has come.
pub(crate) struct TtlReconciler<K> {
    pub(crate) objects: Informer<K>,
}

impl<K: Expiring> Reconciler for TtlReconciler<K> {
    type Observed = Arc<K>;

    fn observe(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key)
    }

    fn decide(&self, observed: &Arc<K>, now: Timestamp) -> Plan {
        decide(&**observed, now)
    }

    fn refused(&self, observed: &Arc<K>, _effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        refused(&**observed, why)
    }
}

/// Deletes what has expired, and otherwise waits for the moment.
///
/// kube-controller-manager reads the object once more before it deletes it; here the precondition on its version does that work. Whoever
/// gives an object more time writes it, which gives it another version. The deletion is for the version that was seen, so it is refused with a
/// 409, upon which the object is observed again. A read would leave a gap between itself and the deletion; the precondition has none.
pub(crate) fn decide<K: Expiring>(observed: &K, now: Timestamp) -> Plan {
    let metadata = observed.metadata();
    // What is being deleted needs no help, however long its finalizers take.
    let lifetime = observed.lifetime().filter(|_| !metadata.is_terminating());
    let Some((lifetime, expires_at)) = lifetime.and_then(|lifetime| Some((lifetime, lifetime.expires_at()?))) else {
        return Plan::nothing();
    };
    let target = Target::of(&K::RESOURCE, metadata);
    if now < expires_at {
        let warning = skew::<K>(lifetime, expires_at, now).map(|note| Effect::Event(target, note));
        return Plan {
            effects: warning.into_iter().collect(),
            next: Next::At(expires_at),
        };
    }
    let delete = Effect::Delete {
        target,
        // It is there until all that it has made is gone, as whoever set a time in Kubernetes is used to.
        propagation: Propagation::Foreground,
    };
    let latency = Effect::ObserveLatency {
        metric: K::LATENCY_METRIC,
        since: expires_at,
    };
    Plan::of(vec![delete, latency])
}

/// What to say about a deletion that was refused: by rights, or by admission.
pub(crate) fn refused<K: Expiring>(observed: &K, why: &str) -> Plan {
    let note = EventContent::warning("FailedDelete", "Delete", why).report_once(why);
    Plan::of(vec![Effect::Event(Target::of(&K::RESOURCE, observed.metadata()), note)])
}

/// The warning that an object's time begins later than now: its writer's clock and ours differ. Nothing is wrong with the object, and it is
/// waited for as long as its own times say.
fn skew<K: Expiring>(lifetime: Lifetime, expires_at: Timestamp, now: Timestamp) -> Option<EventContent> {
    let Lifetime { began, .. } = lifetime;
    let ahead = began.duration_since(now);
    if ahead < MAX_CLOCK_SKEW {
        return None;
    }
    let (kind, start_verb) = (&K::RESOURCE.kind, K::START_VERB);
    let ahead = SignedDuration::from_secs(ahead.as_secs());
    let message = format!(
        "The {kind} {start_verb} at {began}, {ahead:#} ahead of this controller's clock: the clocks of the cluster differ. It is kept until \
         {expires_at}"
    );
    Some(EventContent::warning("ClockSkew", "Wait", message).report_once(began.to_string()))
}

#[cfg(test)]
mod tests;
