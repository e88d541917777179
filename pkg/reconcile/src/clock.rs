//! The wall clock as a dependency, so that tests of timed behavior take milliseconds.

use std::time::Duration;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The wall clock that decisions use.
pub trait Clock: Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Returns a stream with one item for each time the clock is set from now on. Waits based on
    /// the old time must then be recomputed.
    fn steps(&self) -> BoxStream<'static, ()>;
}

/// The system's clock. It detects within a second that the clock was set or that the machine slept.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// How often the wall clock and the monotonic clock are compared. A comparison takes a few
/// microseconds.
const LOOK: Duration = Duration::from_secs(1);
/// The clock counts as set if the difference exceeds this. Smaller differences come from slewing or
/// delayed readings.
const STEP: SignedDuration = SignedDuration::from_millis(250);

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        stream::unfold(Reading::now(), |mut before| async {
            loop {
                tokio::time::sleep(LOOK).await;
                let now = Reading::now();
                let is_stepped = now.is_stepped_since(&before);
                before = now;
                if is_stepped {
                    return Some(((), before));
                }
            }
        })
        .boxed()
    }
}

/// A simultaneous reading of the wall clock and the monotonic clock.
struct Reading {
    wall: Timestamp,
    steady: Instant,
}

impl Reading {
    fn now() -> Self {
        Self {
            wall: Timestamp::now(),
            steady: Instant::now(),
        }
    }

    /// Returns whether the wall clock advanced by a different amount than the monotonic clock.
    fn is_stepped_since(&self, before: &Self) -> bool {
        let wall = self.wall.duration_since(before.wall);
        let steady = SignedDuration::try_from(self.steady.saturating_duration_since(before.steady));
        steady.is_ok_and(|steady| (wall - steady).abs() > STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_step_is_distinguished_from_passing_time() {
        let before = Reading {
            wall: Timestamp::UNIX_EPOCH,
            steady: Instant::now(),
        };
        // Elapsed wall time in ms, elapsed monotonic time in ms, expected result.
        let table = [
            (1_000, 1_000, false),
            (1_200, 1_000, false),
            (61_000, 61_000, false),
            (1_300, 1_000, true),
            (3_601_000, 1_000, true),
            (-3_599_000, 1_000, true),
            (0, 1_000, true),
        ];
        for (wall, steady, expected) in table {
            let after = Reading {
                wall: before.wall + SignedDuration::from_millis(wall),
                steady: before.steady + Duration::from_millis(steady),
            };
            assert_eq!(
                after.is_stepped_since(&before),
                expected,
                "{wall} ms against {steady} ms"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_step_is_detected() {
        // Tokio's paused time advances while the wall clock does not.
        assert_eq!(SystemClock.steps().next().await, Some(()));
    }
}
