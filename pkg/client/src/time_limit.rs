//! The time limit of one request.

use std::time::Duration;

/// An extension of a request that shortens its time limit. Unlike a timeout around the call, it
/// does not include the wait for our own rate limit.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit(pub Duration);
