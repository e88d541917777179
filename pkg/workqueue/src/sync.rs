//! The primitives through which threads interact: the lock, the wake-ups and the clock, and the
//! random numbers.
//!
//! With `--cfg loom`, models that loom can explore replace them, and `interleavings.rs` checks how
//! threads can interleave. Tokio's loom support for `Notify` is limited to tokio's own tests. So
//! `notify.rs` contains a model of `Notify`, and its tests compare the model with tokio's type.

#[cfg(any(test, loom))]
pub(crate) mod notify;

#[cfg(loom)]
mod loom_sync;
#[cfg(loom)]
pub(crate) use self::{
    loom_sync::{Mutex, advance, jitter, now, timeout_at},
    notify::Notify,
};

#[cfg(not(loom))]
mod real {
    pub(crate) use parking_lot::Mutex;
    pub(crate) use tokio::{sync::Notify, time::timeout_at};

    use tokio::time::Instant;

    pub(crate) fn now() -> Instant {
        Instant::now()
    }

    /// Returns a random number from 0 to 1.
    pub(crate) fn jitter() -> f64 {
        fastrand::f64()
    }
}
#[cfg(not(loom))]
pub(crate) use self::real::{Mutex, Notify, jitter, now, timeout_at};
