//! What the shell takes from outside that threads can meet in: the lock, the wake-ups and the clock.
//!
//! With `--cfg loom` they are models that loom can see into, and `interleavings.rs` goes through the ways in which threads can
//! meet. Tokio has a loom of its own for its `Notify`, but only in tokio's own tests; so here is a model of it, which
//! `notify.rs` compares with the real one.

#[cfg(any(test, loom))]
pub(crate) mod notify;

#[cfg(loom)]
mod loom_sync;
#[cfg(loom)]
pub(crate) use self::{
    loom_sync::{Mutex, advance, now, timeout_at},
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
}
#[cfg(not(loom))]
pub(crate) use self::real::{Mutex, Notify, now, timeout_at};
