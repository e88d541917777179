//! The clock for the times in a Lease.

use std::sync::Arc;

use jiff::Timestamp;

/// The wall clock that supplies the times written into a Lease. No decision depends on it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
