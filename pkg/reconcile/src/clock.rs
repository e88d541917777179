//! Where the time of day comes from: an argument, so that tests of time take milliseconds.

use std::time::Duration;

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The time of day, as decisions see it.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// One item each time that somebody sets the clock, from now on: what was timed by it has to be timed anew.
    fn steps(&self) -> BoxStream<'static, ()>;
}

/// The system's clock. It notices within a second that it was set, and that the machine had slept.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// How often the two clocks of a process are compared. It costs some microseconds.
const LOOK: Duration = Duration::from_secs(1);
/// By less they drift apart while the time is slewed, or while a reading is held up.
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

/// The time of day, and the clock that nobody sets, at one moment.
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

    /// Whether the time of day has passed by another pace than time does.
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
    fn a_clock_that_was_set_is_told_from_one_that_went_on() {
        let before = Reading {
            wall: Timestamp::UNIX_EPOCH,
            steady: Instant::now(),
        };
        // Milliseconds on the wall, milliseconds that passed.
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
    async fn a_step_is_noticed() {
        // Paused time passes while the time of day does not.
        assert_eq!(SystemClock.steps().next().await, Some(()));
    }
}
