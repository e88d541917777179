//! The clock that elections use.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::elector::BootTime;

/// This clock keeps counting while the machine is suspended, so that a leader notices when its
/// lease expired in the meantime.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS this clock also counts while the machine is suspended.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Returns the current boot time. This clock cannot be set.
pub(crate) fn now() -> BootTime {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

/// Converts a boot time for tokio's timers. Their clock stops while the machine is suspended, so
/// they may fire late but never early.
pub(crate) fn instant(time: BootTime) -> Instant {
    Instant::now() + time.saturating_sub(now())
}
