//! When something has outlived its time, and what to do then. Pure: of a kind it knows what [`Perishable`] says.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::{Informer, Projection};
use portreeve_reconcile::{Effect, Next, Note, Plan, Propagation, Reconciler, Target};

/// By less the clocks of a healthy cluster differ, and so may a time that is rounded to a second.
const NO_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// A kind of object that lives for a time.
pub(crate) trait Perishable: Projection {
    /// Where it is served.
    const RESOURCE: Resource;
    /// The name of its queue.
    const QUEUE: &'static str;
    /// The histogram of the time from an expiry to the deletion.
    const LAG: &'static str;
    /// What that says.
    const LAG_HELP: &'static str;
    /// What happened to it when its time began, as a verb: `finished`.
    const BEGINNING: &'static str;

    /// How long this one lives; `None` while its time has not begun, and for what lives until somebody deletes it.
    fn lifetime(&self) -> Option<Lifetime>;
}

/// A stretch of time by the clock of whoever wrote down its beginning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lifetime {
    pub(crate) began: Timestamp,
    pub(crate) lasts: SignedDuration,
}

impl Lifetime {
    /// The first moment after it; `None` when that is past the end of the calendar.
    pub(crate) fn expires(self) -> Option<Timestamp> {
        self.began.checked_add(self.lasts).ok()
    }
}

/// Deletes each object when its time has come.
pub(crate) struct Janitor<K> {
    pub(crate) objects: Informer<K>,
}

impl<K: Perishable> Reconciler for Janitor<K> {
    type Observed = Arc<K>;

    fn observe(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key)
    }

    fn decide(&self, seen: &Arc<K>, now: Timestamp) -> Plan {
        decide(&**seen, now)
    }

    fn refused(&self, seen: &Arc<K>, _effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        refused(&**seen, why)
    }
}

/// Deletes what has expired, and otherwise waits for the moment.
///
/// kube-controller-manager reads the object once more before it deletes it; here the precondition on its version does that work. Whoever
/// gives an object more time writes it, which gives it another version. The deletion is for the version that was seen, so it is refused with a
/// 409, upon which the object is observed again. A read would leave a gap between itself and the deletion; the precondition has none.
pub(crate) fn decide<K: Perishable>(seen: &K, now: Timestamp) -> Plan {
    let metadata = seen.metadata();
    // What is being deleted needs no help, however long its finalizers take.
    let lifetime = seen.lifetime().filter(|_| !metadata.is_terminating());
    let Some((lifetime, expires)) = lifetime.and_then(|lifetime| Some((lifetime, lifetime.expires()?))) else {
        return Plan::nothing();
    };
    let target = Target::of(&K::RESOURCE, metadata);
    if now < expires {
        let warning = skew::<K>(lifetime, expires, now).map(|note| Effect::Event(target, note));
        return Plan {
            effects: warning.into_iter().collect(),
            next: Next::At(expires),
        };
    }
    let delete = Effect::Delete {
        target,
        // It is there until all that it has made is gone, as whoever set a time in Kubernetes is used to.
        propagation: Propagation::Foreground,
    };
    let lag = Effect::Lag {
        metric: K::LAG,
        since: expires,
    };
    Plan::of(vec![delete, lag])
}

/// What to say about a deletion that was refused: by rights, or by admission.
pub(crate) fn refused<K: Perishable>(seen: &K, why: &str) -> Plan {
    let note = Note::warning("FailedDelete", "Delete", why).once(why);
    Plan::of(vec![Effect::Event(Target::of(&K::RESOURCE, seen.metadata()), note)])
}

/// The warning that an object's time begins later than now: its writer's clock and ours differ. Nothing is wrong with the object, and it is
/// waited for as long as its own times say.
fn skew<K: Perishable>(lifetime: Lifetime, expires: Timestamp, now: Timestamp) -> Option<Note> {
    let Lifetime { began, .. } = lifetime;
    let ahead = began.duration_since(now);
    if ahead < NO_SKEW {
        return None;
    }
    let (kind, beginning) = (&K::RESOURCE.kind, K::BEGINNING);
    let ahead = SignedDuration::from_secs(ahead.as_secs());
    let message = format!(
        "The {kind} {beginning} at {began}, {ahead:#} ahead of this controller's clock: the clocks of the cluster differ. It is kept until \
         {expires}"
    );
    Some(Note::warning("ClockSkew", "Wait", message).once(began.to_string()))
}

#[cfg(test)]
mod tests;
