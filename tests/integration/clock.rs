//! A clock that tests set.

use std::sync::Arc;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::{SignedDuration, Timestamp};
use portreeve_reconcile::Clock;
use tokio::sync::watch;

/// The system's clock and an offset. Clones are one clock.
#[derive(Clone, Debug)]
pub(crate) struct OffsetClock(Arc<watch::Sender<SignedDuration>>);

impl OffsetClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(SignedDuration::ZERO)))
    }

    /// Sets the clock to the system's.
    pub(crate) fn reset(&self) {
        self.0.send_replace(SignedDuration::ZERO);
    }

    /// Sets the clock, forwards or back.
    pub(crate) fn set(&self, time: Timestamp) {
        self.0.send_replace(time.duration_since(Timestamp::now()));
    }
}

impl Clock for OffsetClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + *self.0.borrow()
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        let offset = self.0.subscribe();
        // The sender lives as long as the clock; without it nobody sets anything.
        let step =
            |mut offset: watch::Receiver<SignedDuration>| async { offset.changed().await.ok().map(|()| ((), offset)) };
        stream::unfold(offset, step).boxed()
    }
}
