//! A heartbeat task, which shows that a runtime still runs tasks.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::stall::StallMeter;

/// The pause between two beats.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The time of the last beat of a runtime, and whether the runtime is stuck. Clones share both.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    last: Arc<Mutex<Option<Instant>>>,
    stuck: CancellationToken,
}

impl Heartbeat {
    /// Beats once a second, on the runtime that polls it, until it is dropped.
    pub async fn beat(&self) {
        let _end = End(self);
        loop {
            *self.last.lock() = Some(Instant::now());
            sleep(INTERVAL).await;
        }
    }

    /// Returns for how long the runtime has run no task. Zero while nothing beats.
    pub fn silence(&self) -> Duration {
        // The beat is read before the time, so that no silence is negative.
        let last = *self.last.lock();
        silence(last, Instant::now())
    }

    /// Waits until leader election has found the runtime stuck. Never returns without an election.
    pub async fn wait_until_stuck(&self) {
        self.stuck.cancelled().await;
    }

    /// Observes the beats from another runtime, and declares the runtime stuck once it has run no
    /// task for `limit`. Never returns.
    pub(crate) async fn monitor(&self, limit: Duration) -> Infallible {
        let mut meter = StallMeter::new(Instant::now());
        loop {
            sleep(INTERVAL).await;
            let beat = *self.last.lock();
            // The runtime may have run a task until the next beat was due.
            let stalled = meter.observe(beat, Instant::now()).saturating_sub(INTERVAL);
            if stalled >= limit && !self.stuck.is_cancelled() {
                tracing::error!(?limit, "worker runtime has run no task, giving up leader election");
                self.stuck.cancel();
            }
        }
    }
}

fn silence(last: Option<Instant>, now: Instant) -> Duration {
    let age = last.map(|last| now.saturating_duration_since(last));
    age.unwrap_or_default().saturating_sub(INTERVAL)
}

/// A drop guard that marks the end of the beats, which is not a silence.
struct End<'a>(&'a Heartbeat);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.last.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_silent_from_the_first_missed_beat() {
        let last = Instant::now();
        for (age, expected) in [(0, 0), (1, 0), (5, 4)] {
            let silence = silence(Some(last), last + Duration::from_secs(age));
            assert_eq!(silence, Duration::from_secs(expected), "{age}");
        }
    }

    #[tokio::test]
    async fn the_end_of_the_beats_is_no_silence() {
        let heartbeat = Heartbeat::default();
        {
            let mut beat = std::pin::pin!(heartbeat.beat());
            assert!(futures::poll!(&mut beat).is_pending());
            assert!(heartbeat.last.lock().is_some());
        }
        assert_eq!(*heartbeat.last.lock(), None);
        assert_eq!(silence(None, Instant::now()), Duration::ZERO);
    }
}
