//! What a candidate knows about its access to its Lease, and whether it is ready to lead.
//!
//! The attempts of a standby only read the Lease. So the apiserver is also asked whether the
//! account may write it (the `review` module).
//!
//! Architecture Invariant: pure. Times are arguments.

use std::time::Duration;

use crate::elector::{BootTime, ElectionTimings, JITTER};

/// How long an answer about the right to write is valid while newer requests fail.
const ANSWER_VALIDITY: Duration = Duration::from_mins(1);

/// The answer of the apiserver to the question whether this account may write the Lease.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WriteAccess {
    Allowed,
    Denied,
    /// The account may not ask.
    Unknown,
}

/// The reason why a candidate could not lead: it has no access to its Lease.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LeaseAccessError {
    /// The account may not write the Lease.
    #[error("forbidden to patch the Lease; `portreeve rbac` prints the required rules")]
    Forbidden,
    /// No attempt to acquire or renew was answered lately.
    #[error("the Lease was neither read nor written for {} s, limit {limit:?}{}", .age.as_secs(), suffix(.cause.as_deref()))]
    Stale {
        /// The time since the last answer.
        age: Duration,
        /// The longest time that is allowed.
        limit: Duration,
        /// Why the last attempt failed.
        cause: Option<String>,
    },
    /// No attempt to acquire or renew was answered so far.
    #[error("the Lease has not been read yet{}", suffix(.0.as_deref()))]
    Unread(Option<String>),
    /// The right to write was not confirmed lately.
    #[error("the right to patch the Lease was not confirmed for {} s, limit {ANSWER_VALIDITY:?}{}", .age.as_secs(), suffix(.cause.as_deref()))]
    Unconfirmed {
        /// The time since the last answer.
        age: Duration,
        /// Why the last question has no answer.
        cause: Option<String>,
    },
    /// The right to write was not confirmed so far.
    #[error("the right to patch the Lease has not been confirmed yet{}", suffix(.0.as_deref()))]
    NeverConfirmed(Option<String>),
}

/// Returns the cause as the end of a sentence.
fn suffix(cause: Option<&str>) -> String {
    cause.map(|cause| format!(": {cause}")).unwrap_or_default()
}

/// What a candidate knows about its access to its Lease.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseAccess {
    /// When the apiserver last answered an attempt to acquire or renew.
    answered_at: Option<BootTime>,
    /// Why the last attempt failed.
    failure: Option<String>,
    /// The last answer about the right to write, and when it arrived.
    write_access: Option<(WriteAccess, BootTime)>,
    /// Why the last question about the right to write has no answer.
    review_failure: Option<String>,
}

impl LeaseAccess {
    /// Records that the apiserver has answered an attempt. Returns whether the attempt before it
    /// failed.
    pub(crate) fn record_answer(&mut self, now: BootTime) -> bool {
        self.answered_at = Some(now);
        self.failure.take().is_some()
    }

    /// Records a failed attempt. Returns whether the failure is new, that is, whether the attempt
    /// before it succeeded or failed differently.
    pub(crate) fn record_failure(&mut self, failure: &str) -> bool {
        let is_new = self.failure.as_deref() != Some(failure);
        self.failure = Some(failure.to_owned());
        is_new
    }

    /// Records the answer to an access review. Returns whether the answer has changed. The first
    /// answer is compared with [`WriteAccess::Allowed`].
    ///
    /// [`WriteAccess::Unknown`] does not replace a definite answer that is still valid: an
    /// apiserver that is starting forbids reviews until it has read the roles.
    pub(crate) fn record_write_access(&mut self, answer: WriteAccess, now: BootTime) -> bool {
        self.review_failure = None;
        let is_definite = self.write_access.is_some_and(|(before, confirmed_at)| {
            before != WriteAccess::Unknown && now.saturating_sub(confirmed_at) <= ANSWER_VALIDITY
        });
        if answer == WriteAccess::Unknown && is_definite {
            return false;
        }
        let before = self.write_access.replace((answer, now));
        before.map_or(WriteAccess::Allowed, |(before, _)| before) != answer
    }

    /// Records that an access review failed.
    pub(crate) fn record_review_failure(&mut self, failure: String) {
        self.review_failure = Some(failure);
    }

    /// Checks whether this candidate can read and write its Lease. The renewals of a leader show
    /// its right to write.
    ///
    /// # Errors
    ///
    /// Returns an error when the apiserver has not answered an attempt within `limit`, or has not
    /// confirmed the right to write.
    pub(crate) fn check(&self, is_leading: bool, limit: Duration, now: BootTime) -> Result<(), LeaseAccessError> {
        let Some(answered_at) = self.answered_at else {
            return Err(LeaseAccessError::Unread(self.failure.clone()));
        };
        let age = now.saturating_sub(answered_at);
        if age > limit {
            let cause = self.failure.clone();
            return Err(LeaseAccessError::Stale { age, limit, cause });
        }
        if is_leading {
            return Ok(());
        }
        let cause = || self.review_failure.clone();
        match self.write_access {
            None => Err(LeaseAccessError::NeverConfirmed(cause())),
            Some((WriteAccess::Denied, _)) => Err(LeaseAccessError::Forbidden),
            Some((_, confirmed_at)) => {
                let age = now.saturating_sub(confirmed_at);
                if age <= ANSWER_VALIDITY {
                    return Ok(());
                }
                Err(LeaseAccessError::Unconfirmed { age, cause: cause() })
            }
        }
    }
}

impl ElectionTimings {
    /// Returns how long a candidate may go without access to its Lease, or without running its
    /// tasks, before it is not ready: two retry periods and 10 s. A standby reads the Lease every 1
    /// to 2.2 retry periods, so the limit is longer if the retry period exceeds 25 s.
    pub(crate) fn access_limit(&self) -> Duration {
        let longest_pause = self.retry_period.mul_f64(1.0 + JITTER);
        (self.retry_period * 2 + Duration::from_secs(10)).max(longest_pause + Duration::from_secs(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(14);

    fn at(seconds: u64) -> BootTime {
        Duration::from_secs(1_000 + seconds)
    }

    /// Returns the state after the Lease was read, and the right to write was confirmed, at 0 s.
    fn confirmed() -> LeaseAccess {
        let mut access = LeaseAccess::default();
        access.record_answer(at(0));
        access.record_write_access(WriteAccess::Allowed, at(0));
        access
    }

    fn check(access: &LeaseAccess, seconds: u64) -> Result<(), String> {
        let checked = access.check(false, LIMIT, at(seconds));
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_limit_is_two_retry_periods_and_ten_seconds() {
        let timings = ElectionTimings {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        };
        assert_eq!(timings.access_limit(), LIMIT);
        let slow = ElectionTimings {
            retry_period: Duration::from_mins(1),
            ..timings
        };
        assert_eq!(slow.access_limit(), Duration::from_secs(137));
    }

    #[test]
    fn a_candidate_is_ready_once_it_has_read_the_lease_and_may_write_it() {
        let mut access = LeaseAccess::default();
        assert_eq!(check(&access, 0), Err("the Lease has not been read yet".to_owned()));
        access.record_failure("forbidden");
        assert_eq!(
            check(&access, 0),
            Err("the Lease has not been read yet: forbidden".to_owned())
        );
        access.record_answer(at(0));
        assert_eq!(
            check(&access, 0),
            Err("the right to patch the Lease has not been confirmed yet".to_owned())
        );
        access.record_review_failure("too many requests".to_owned());
        assert!(check(&access, 0).unwrap_err().ends_with("yet: too many requests"));
        assert_eq!(
            access.check(true, LIMIT, at(0)),
            Ok(()),
            "a leader has written the Lease"
        );
        access.record_write_access(WriteAccess::Allowed, at(0));
        assert_eq!(check(&access, 0), Ok(()));
    }

    #[test]
    fn failed_attempts_make_a_candidate_unready_after_the_limit() {
        let mut access = confirmed();
        access.record_failure("timed out");
        assert_eq!(check(&access, 14), Ok(()));
        assert_eq!(
            check(&access, 15),
            Err("the Lease was neither read nor written for 15 s, limit 14s: timed out".to_owned())
        );
        access.record_answer(at(15));
        assert_eq!(check(&access, 15), Ok(()));
        // Attempts that hang report no failure.
        assert!(check(&access, 30).is_err());
    }

    #[test]
    fn a_denial_makes_a_candidate_unready_until_an_answer_allows_writes() {
        let mut access = confirmed();
        access.record_write_access(WriteAccess::Denied, at(1));
        let failure = check(&access, 1).unwrap_err();
        assert!(failure.starts_with("forbidden to patch the Lease"), "{failure}");
        access.record_review_failure("timed out".to_owned());
        assert!(check(&access, 1).is_err(), "a lost request is no answer");
        assert!(!access.record_write_access(WriteAccess::Unknown, at(61)));
        assert!(check(&access, 1).is_err(), "a starting apiserver forbids reviews");
        access.record_write_access(WriteAccess::Allowed, at(1));
        assert_eq!(check(&access, 1), Ok(()));
    }

    #[test]
    fn an_account_that_may_not_ask_counts_as_allowed() {
        let mut access = LeaseAccess::default();
        access.record_answer(at(0));
        assert!(access.record_write_access(WriteAccess::Unknown, at(0)));
        assert_eq!(check(&access, 0), Ok(()));
        access.record_write_access(WriteAccess::Allowed, at(0));
        assert!(!access.record_write_access(WriteAccess::Unknown, at(60)));
        assert!(access.record_write_access(WriteAccess::Unknown, at(61)));
    }

    #[test]
    fn an_answer_stays_valid_for_a_minute_while_newer_requests_are_lost() {
        let mut access = confirmed();
        access.record_review_failure("timed out".to_owned());
        access.record_answer(at(61));
        assert_eq!(check(&access, 60), Ok(()));
        assert_eq!(
            check(&access, 61),
            Err("the right to patch the Lease was not confirmed for 61 s, limit 60s: timed out".to_owned())
        );
        assert_eq!(access.check(true, LIMIT, at(61)), Ok(()));
    }

    #[test]
    fn only_changes_are_reported_as_new() {
        let mut access = LeaseAccess::default();
        let failures = [
            ("refused", true),
            ("refused", false),
            ("timed out", true),
            ("refused", true),
        ];
        for (failure, is_new) in failures {
            assert_eq!(access.record_failure(failure), is_new, "{failure}");
        }
        assert!(access.record_answer(at(0)), "the attempt before failed");
        assert!(!access.record_answer(at(1)));
        assert!(access.record_failure("refused"));
        let (allowed, denied) = (WriteAccess::Allowed, WriteAccess::Denied);
        for (answer, is_new) in [(allowed, false), (denied, true), (denied, false), (allowed, true)] {
            assert_eq!(access.record_write_access(answer, at(0)), is_new, "{answer:?}");
        }
    }
}
