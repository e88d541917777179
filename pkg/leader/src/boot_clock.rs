//! The clock that elections go by.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::elector::BootTime;

/// Counts on while the machine sleeps: a leader that slept through its lease has to notice.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// Elsewhere this one does; on macOS it is the same.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Now. Nobody can set it.
pub(crate) fn now() -> BootTime {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// The same moment for tokio's timers, whose clock stands still while the machine sleeps: they may be late, never early.
pub(crate) fn instant(moment: BootTime) -> Instant {
    Instant::now() + moment.saturating_sub(now())
}
