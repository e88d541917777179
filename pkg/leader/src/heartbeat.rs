//! A sign of life of a runtime: while its task beats, the runtime runs tasks.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// The pause between two beats.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// The time of the last beat of a runtime. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heartbeat(Arc<Mutex<Option<Instant>>>);

impl Heartbeat {
    /// Beats once a second, on the runtime that polls it, until it is dropped.
    pub(crate) async fn beat(&self) {
        let _end = End(self);
        loop {
            *self.0.lock() = Some(Instant::now());
            sleep(INTERVAL).await;
        }
    }

    /// Returns for how long the runtime has run no task. Zero while nothing beats.
    pub(crate) fn silence(&self) -> Duration {
        // The beat is read before the time, so that no silence is negative.
        let last = *self.0.lock();
        silence(last, Instant::now())
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
        *self.0.0.lock() = None;
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
            assert!(heartbeat.0.lock().is_some());
        }
        assert_eq!(*heartbeat.0.lock(), None);
        assert_eq!(silence(None, Instant::now()), Duration::ZERO);
    }
}
