//! The check before every write of a replica: it lets writes pass while the replica holds the
//! Lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use portreeve_client::{Fence, Fenced};
use tokio::time::Instant;

use crate::{boot_clock, elector::BootTime};

/// Lets writes pass until the renew deadline after the start of the last successful renewal. Cheap
/// to clone.
///
/// The fence reads the clock and does not depend on the elector. When a stopped replica resumes
/// after its deadline, the fence is already closed, whatever its threads were about to do.
#[derive(Clone, Debug, Default)]
pub struct LeaseFence(Arc<AtomicU64>);

impl LeaseFence {
    /// Sets the time until which writes may pass; `None` closes the fence at once.
    pub(crate) fn set(&self, deadline: Option<BootTime>) {
        let nanoseconds = deadline.map_or(0, |deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(nanoseconds, Ordering::Release);
    }

    /// Returns how long ago the deadline passed, or `None` if the fence is open or was closed
    /// explicitly.
    pub(crate) fn closed_since(&self, now: BootTime) -> Option<Duration> {
        now.checked_sub(self.deadline()?)
    }

    fn deadline(&self) -> Option<BootTime> {
        let nanoseconds = self.0.load(Ordering::Acquire);
        (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
    }
}

impl Fence for LeaseFence {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        let deadline = self.deadline().ok_or(Fenced("this replica does not lead"))?;
        if boot_clock::now() >= deadline {
            return Err(Fenced("this replica has not renewed its Lease in time"));
        }
        Ok(Some(boot_clock::instant(deadline)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_pass_only_until_the_deadline() {
        let fence = LeaseFence::default();
        assert_eq!(fence.admit(), Err(Fenced("this replica does not lead")));
        fence.set(Some(boot_clock::now() + Duration::from_mins(1)));
        let remaining = fence.admit().unwrap().unwrap() - Instant::now();
        assert!(
            remaining > Duration::from_secs(50) && remaining <= Duration::from_mins(1),
            "{remaining:?}"
        );
        fence.set(Some(boot_clock::now()));
        assert_eq!(
            fence.admit(),
            Err(Fenced("this replica has not renewed its Lease in time"))
        );
        fence.set(None);
        assert_eq!(fence.admit(), Err(Fenced("this replica does not lead")));
    }
}
