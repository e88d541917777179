//! The check before every write of a replica: it lets writes pass while the replica holds the
//! Lease.
//!
//! This module is the home of the fence. Elsewhere are:
//!
//! - the place in the client where every write passes: `pkg/client/src/fence.rs`;
//! - the second fence, in the apiserver: `pkg/daemon/src/manifests/fence.rs`, which prints its
//!   policy from the descriptors, and `fence_anchor.rs`, which keeps the apiserver's watch alive;
//! - the check whether the second fence rejects a leader: `pkg/reconcile/src/fence_monitor.rs`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use http::HeaderMap;
use jiff::Timestamp;
use parking_lot::Mutex;
use portreeve_client::{Fence, Fenced, date};
use tokio::{sync::Notify, time::Instant};

use crate::{boot_clock, elector::BootTime, server_time::ServerTime};

/// Lets writes pass until the renew deadline after the start of the last successful renewal. Cheap
/// to clone.
///
/// The fence reads the clock and does not depend on the elector. When a stopped replica resumes
/// after its deadline, the fence is already closed, whatever its threads were about to do.
///
/// A response whose `Date` is too late for the last renewal also closes it, until a renewal that
/// starts afterwards succeeds.
#[derive(Clone, Debug)]
pub struct LeaseFence(Arc<FenceState>);

#[derive(Debug)]
struct FenceState {
    /// In nanoseconds since the machine started; 0 for none.
    deadline: AtomicU64,
    /// Renewals that start before this time do not open the fence, in nanoseconds since the machine
    /// started; 0 if the fence is not suspended.
    suspended: AtomicU64,
    server_time: Mutex<ServerTime>,
    renewal_needed: Notify,
    renew_deadline: Duration,
}

impl LeaseFence {
    /// Returns a closed fence.
    pub(crate) fn new(renew_deadline: Duration) -> Self {
        Self(Arc::new(FenceState {
            deadline: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            server_time: Mutex::new(ServerTime::new(renew_deadline)),
            renewal_needed: Notify::new(),
            renew_deadline,
        }))
    }

    /// Sets the time until which writes may pass; `None` closes the fence at once.
    pub(crate) fn set(&self, deadline: Option<BootTime>) {
        self.0.deadline.store(nanoseconds(deadline), Ordering::Release);
    }

    /// Records a successful write of the Lease that started at `began`, and the `Date` of its
    /// response.
    pub(crate) fn renewed(&self, began: BootTime, date: Option<Timestamp>) {
        // The lock orders this against `observe`.
        let mut server_time = self.0.server_time.lock();
        if let Some(date) = date {
            server_time.renewed(date, began);
        }
        if nanoseconds(Some(began)) > self.0.suspended.load(Ordering::Acquire) {
            self.0.suspended.store(0, Ordering::Release);
        }
    }

    /// Waits until a response has closed the fence, so that the Lease must be renewed at once.
    pub(crate) async fn renewal_needed(&self) {
        self.0.renewal_needed.notified().await;
    }

    /// Returns how long ago the deadline passed, or `None` if it has not passed or was removed.
    pub(crate) fn closed_since(&self, now: BootTime) -> Option<Duration> {
        now.checked_sub(self.deadline()?)
    }

    /// Returns the time since the start of the last successful renewal; `None` if the deadline was
    /// removed.
    pub(crate) fn renewal_age(&self, now: BootTime) -> Option<Duration> {
        Some((now + self.0.renew_deadline).saturating_sub(self.deadline()?))
    }

    fn deadline(&self) -> Option<BootTime> {
        let nanoseconds = self.0.deadline.load(Ordering::Acquire);
        (nanoseconds > 0).then(|| Duration::from_nanos(nanoseconds))
    }
}

impl Fence for LeaseFence {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        let deadline = self.deadline().ok_or(Fenced("this replica does not lead"))?;
        if boot_clock::now() >= deadline {
            return Err(Fenced("this replica has not renewed its Lease in time"));
        }
        if self.0.suspended.load(Ordering::Acquire) > 0 {
            return Err(Fenced("the apiserver's clock shows that the Lease may have expired"));
        }
        Ok(Some(boot_clock::instant(deadline)))
    }

    fn observe(&self, response: &HeaderMap) {
        let Some(date) = date(response) else { return };
        let now = boot_clock::now();
        let mut server_time = self.0.server_time.lock();
        if self.deadline().is_none() {
            return;
        }
        let Some(difference) = server_time.observe(date, now) else {
            return;
        };
        self.0.suspended.store(nanoseconds(Some(now)), Ordering::Release);
        self.0.renewal_needed.notify_one();
        drop(server_time);
        tracing::warn!(
            since_renewal = %format_args!("{}s", difference.as_secs()),
            reason = "the machine was paused, or the clocks of the apiservers differ",
            "suspending writes until the lease is renewed"
        );
    }
}

fn nanoseconds(time: Option<BootTime>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, header};

    use super::*;

    const RENEW_DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn writes_pass_only_until_the_deadline() {
        let fence = LeaseFence::new(RENEW_DEADLINE);
        assert_eq!(fence.admit(), Err(Fenced("this replica does not lead")));
        fence.set(Some(boot_clock::now() + Duration::from_mins(1)));
        let remaining = fence.admit().unwrap().unwrap() - Instant::now();
        assert!(
            remaining > Duration::from_secs(50) && remaining <= Duration::from_mins(1),
            "{remaining:?}"
        );
        let now = boot_clock::now();
        fence.set(Some(now + RENEW_DEADLINE));
        assert_eq!(
            fence.renewal_age(now + Duration::from_secs(3)),
            Some(Duration::from_secs(3))
        );
        fence.set(Some(now));
        assert_eq!(
            fence.admit(),
            Err(Fenced("this replica has not renewed its Lease in time"))
        );
        fence.set(None);
        assert_eq!(fence.admit(), Err(Fenced("this replica does not lead")));
        assert_eq!(fence.renewal_age(now), None);
    }

    #[test]
    fn a_late_date_closes_the_fence_until_a_renewal_that_starts_afterwards() {
        let response = |date| HeaderMap::from_iter([(header::DATE, HeaderValue::from_static(date))]);
        let early = response("Sun, 06 Nov 1994 08:49:37 GMT");
        let late = response("Sun, 06 Nov 1994 08:59:37 GMT");
        let fence = LeaseFence::new(RENEW_DEADLINE);
        let began = boot_clock::now();
        fence.set(Some(began + Duration::from_mins(1)));
        fence.renewed(began, date(&early));
        fence.observe(&early);
        fence.observe(&HeaderMap::new());
        fence.admit().unwrap();
        fence.observe(&late);
        fence.admit().unwrap_err();
        fence.renewed(began, date(&early));
        fence.admit().unwrap_err();
        fence.renewed(boot_clock::now(), date(&late));
        fence.admit().unwrap();
        fence.observe(&late);
        fence.admit().unwrap();
    }
}
