//! The decisions of a controller that reconciles keys.

use jiff::Timestamp;
use portreeve_api::ObjectKey;
use serde_json::value::RawValue;

use crate::{Effect, Plan};

/// The controller-specific part of a keyed controller. It is level-triggered: the key is the only
/// input.
pub trait Reconciler: Send + Sync + 'static {
    /// The observed state that a decision is based on.
    type Observed: Send + Sync;

    /// Collects everything that a decision depends on: objects in caches, and what only this
    /// process has, such as what the controller remembers, a monotonic clock, or fresh keys.
    /// Returns `None` if there is nothing to decide on. Sync, so it cannot do I/O.
    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed>;

    /// Decides what to do. Pure: the same input and time give the same plan. After the plan was
    /// applied and observed, the next plan is empty.
    fn decide(&self, observed: &Self::Observed, now: Timestamp) -> Plan;

    /// Decides how to report an effect that the apiserver rejected or that keeps failing, usually
    /// by a condition and an event. The plan may also contain effects that do not depend on the
    /// failed one. What it observes may be newer than what the failed plan was based on.
    ///
    /// If the report is rejected in turn, this decides on that, too, and only the events before the
    /// first other effect are sent, if each process sends them once.
    ///
    /// Sync, so it cannot do I/O. Like `decide`, it must return an empty plan once the failure has
    /// been reported. The worker retries the failed plan in any case.
    fn refused(&self, _observed: &Self::Observed, _effect: &Effect, _why: &str, _now: Timestamp) -> Plan {
        Plan::nothing()
    }

    /// Observes a request that creates, applies, deletes, reads or lists objects, so that the
    /// controller can remember an object until the watch shows it, or what admission made of it.
    /// Returns whether the answer changes what the controller remembers: after a read or a list,
    /// the rest of the plan is then skipped, and in any case the key is decided again. Sync, so it
    /// cannot do I/O.
    ///
    /// A controller needs this only if its next decision would do harm on a cache that lacks its
    /// own last write, or compares what it wants with what it finds.
    fn observe_request(&self, _observed: &Self::Observed, _effect: &Effect, _state: RequestState<'_>) -> bool {
        false
    }
}

/// The state of a request that creates, applies, deletes, reads or lists objects.
#[derive(Clone, Copy, Debug)]
pub enum RequestState<'a> {
    /// A create is about to be sent.
    Sending,
    /// The apiserver has returned this object: the result of a create, of an apply, or of a read.
    Found(&'a RawValue),
    /// A list contains this object. The items of lists have neither `apiVersion` nor `kind`.
    Listed(&'a RawValue),
    /// The object of a read does not exist.
    Absent,
    /// The object is not as the decision assumed: the object to create exists already, or the
    /// object to delete was not deleted.
    Changed,
    /// The apiserver has deleted the object, or it was gone already. A finalizer may hold it.
    Deleted,
    /// The answer does not show whether the apiserver has created or applied the object.
    Unanswered,
    /// The apiserver has rejected a create.
    Rejected,
}
