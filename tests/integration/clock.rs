//! A clock that tests can set.

use std::sync::Arc;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::{SignedDuration, Timestamp};
use portreeve_reconcile::Clock;
use tokio::sync::watch;

/// The system clock plus an offset. All clones share the offset.
#[derive(Clone, Debug)]
pub(crate) struct OffsetClock(Arc<watch::Sender<SignedDuration>>);

impl OffsetClock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(SignedDuration::ZERO)))
    }

    /// Sets the clock back to the system time.
    pub(crate) fn reset(&self) {
        self.0.send_replace(SignedDuration::ZERO);
    }

    /// Sets the clock to `time`, forward or back.
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
        // The stream ends when the clock is dropped, since nobody can set it any more.
        let step =
            |mut offset: watch::Receiver<SignedDuration>| async { offset.changed().await.ok().map(|()| ((), offset)) };
        stream::unfold(offset, step).boxed()
    }
}
