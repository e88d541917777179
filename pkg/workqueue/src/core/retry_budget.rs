//! The budget that limits how many retries fail: a token bucket to which a successful retry returns
//! more than it took.
//!
//! governor's bucket takes no tokens back, so this one is our own.
//!
//! Architecture Invariant: pure. The time is an argument and never runs backwards.

use std::time::Duration;

use tokio::time::Instant;

/// How many more retries a successful one releases. Successes therefore double, so that a long
/// queue of retries is empty soon after their cause is gone.
const RELEASED_BY_SUCCESS: u32 = 2;

/// The limit of a queue's retries.
///
/// A key that becomes due because the backoff of its failure has passed needs a token, and waits
/// until there is one. A retry that succeeds returns its token and two more. So the rate limits
/// only retries that fail again. A key that is due for another reason needs no token.
///
/// client-go's `BucketRateLimiter` has the same defaults, but counts successes too. After an
/// outage, 1,000 keys would wait for a minute and a half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryBudget {
    /// The time in which one token is added; `None` means no limit.
    interval: Option<Duration>,
    burst: u32,
}

impl RetryBudget {
    /// Creates a budget of `qps` retries per second. At most `burst` of them are ready or running
    /// at a time. A rate of 0 means no limit.
    pub fn new(qps: f32, burst: u32) -> Self {
        Self {
            interval: Duration::try_from_secs_f64(1.0 / f64::from(qps)).ok(),
            burst: burst.max(1),
        }
    }

    /// Returns the budget of each of `count` queues that share this one.
    #[must_use]
    pub fn split(self, count: u32) -> Self {
        Self {
            interval: self.interval.map(|interval| interval.saturating_mul(count)),
            burst: (self.burst / count).max(1),
        }
    }
}

/// 10 per second and a burst of 100.
impl Default for RetryBudget {
    fn default() -> Self {
        Self::new(10.0, 100)
    }
}

#[derive(Debug)]
pub(super) struct TokenBucket {
    budget: RetryBudget,
    /// The number of tokens; negative after retries that were charged more. Together with
    /// `outstanding`, at most the burst.
    tokens: i64,
    /// The retries that have a token and have not ended.
    outstanding: u32,
    /// The time from which the next token is counted; `None` before the first use.
    refilled: Option<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(super) fn new(budget: RetryBudget) -> Self {
        Self {
            budget,
            tokens: budget.burst.into(),
            outstanding: 0,
            refilled: None,
        }
    }

    /// Returns the number of tokens that retries can take; `None` if there is no limit. It is
    /// negative after retries that were charged more.
    pub(super) fn available(&mut self, now: Instant) -> Option<i64> {
        self.refill(now);
        self.budget.interval.map(|_| self.tokens)
    }

    /// Takes a token for a retry, if there is one. Every retry that has one ends with
    /// [`TokenBucket::succeeded`] or [`TokenBucket::failed`].
    pub(super) fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let has_token = self.tokens > 0 || self.budget.interval.is_none();
        if has_token {
            self.tokens -= 1;
            self.outstanding += 1;
        }
        has_token
    }

    /// Returns the time of the next token for a bucket that has none; `None` if there will be none
    /// before a retry ends.
    pub(super) fn next_token(&self) -> Option<Instant> {
        let missing = u32::try_from(1 - self.tokens).ok()?;
        let (refilled, interval) = (self.refilled?, self.budget.interval?);
        (self.room() > 0).then(|| refilled + interval.saturating_mul(missing))
    }

    /// Ends a retry that succeeded, and returns how many more it releases.
    pub(super) fn succeeded(&mut self, now: Instant) -> u32 {
        self.refill(now);
        self.outstanding -= 1;
        self.tokens = (self.tokens + 1 + i64::from(RELEASED_BY_SUCCESS)).min(self.room());
        RELEASED_BY_SUCCESS
    }

    /// Ends a retry that failed again.
    pub(super) fn failed(&mut self, now: Instant) {
        self.refill(now);
        self.outstanding -= 1;
    }

    /// Takes more tokens for a retry. The debt is limited, so that it is paid off in the time in
    /// which an empty bucket fills.
    pub(super) fn charge(&mut self, writes: u32, now: Instant) {
        self.refill(now);
        self.tokens = (self.tokens - i64::from(writes)).max(-i64::from(self.budget.burst));
    }

    /// Returns the maximum number of tokens.
    fn room(&self) -> i64 {
        i64::from(self.budget.burst) - i64::from(self.outstanding)
    }

    /// Adds the tokens for the time since the last call.
    fn refill(&mut self, now: Instant) {
        let Some(interval) = self.budget.interval else { return };
        let since = *self.refilled.get_or_insert(now);
        let room = self.room();
        let missing = u32::try_from(room - self.tokens).unwrap_or(0);
        let intervals = now.saturating_duration_since(since).as_nanos() / interval.as_nanos().max(1);
        match u32::try_from(intervals) {
            Ok(new) if new < missing => {
                self.tokens += i64::from(new);
                self.refilled = Some(since + interval * new);
            }
            _ => {
                self.tokens = room;
                self.refilled = Some(now);
            }
        }
    }
}
