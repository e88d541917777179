//! Decides from the results of requests when an outage begins and ends.
//!
//! Architecture Invariant: pure. Time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How long every request must have failed before the failures count as an outage.
const MIN_OUTAGE: Duration = Duration::from_secs(1);
/// How long rejections alone may follow the last failure. Then the apiserver runs and rejects this
/// process: an apiserver that has just started does so for seconds.
const MAX_REJECTED: Duration = Duration::from_secs(30);

/// The result of a request, as far as it shows whether the apiserver serves requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestResult {
    /// A response below 400.
    Success,
    /// A 4xx. It proves neither: an apiserver that is starting answers 403 until it has read the
    /// roles, 404 and 429 until it has loaded all resources, and so does a proxy in front of it.
    Rejected,
    /// A 5xx, or no response.
    Unavailable,
}

/// Whether requests succeed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct OutageState {
    failing: Option<Failing>,
    /// The number of outages that have ended.
    pub(super) ends: u64,
}

/// No request has succeeded since a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Failing {
    since: Instant,
    last: Instant,
    /// Whether this is an outage: a probe has failed as well, at least [`MIN_OUTAGE`] after the
    /// first failure.
    is_outage: bool,
}

impl OutageState {
    /// Records a request that ended at `now`. Returns whether requests begin or cease to fail.
    pub(super) fn record(&mut self, result: RequestResult, now: Instant) -> bool {
        let Some(failing) = &mut self.failing else {
            if result == RequestResult::Unavailable {
                self.failing = Some(Failing {
                    since: now,
                    last: now,
                    is_outage: false,
                });
            }
            return self.failing.is_some();
        };
        match result {
            RequestResult::Unavailable => {
                failing.last = now;
                return false;
            }
            RequestResult::Rejected if now < failing.last + MAX_REJECTED => return false,
            RequestResult::Rejected => {}
            RequestResult::Success => self.ends += u64::from(failing.is_outage),
        }
        self.failing = None;
        true
    }

    /// Records that a probe has failed. Only a probe can show that there is an outage: the other
    /// requests may all fail for a reason of their own, such as a broken webhook.
    pub(super) fn probe_failed(&mut self, now: Instant) {
        if let Some(failing) = &mut self.failing {
            failing.last = now;
            failing.is_outage |= now >= failing.since + MIN_OUTAGE;
        }
    }

    /// Returns since when no request has succeeded.
    pub(super) fn failing_since(&self) -> Option<Instant> {
        self.failing.map(|failing| failing.since)
    }

    pub(super) fn is_outage(&self) -> bool {
        self.failing.is_some_and(|failing| failing.is_outage)
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestResult::*, *};

    /// What happens, and when in milliseconds.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Request(u64, RequestResult),
        ProbeFails(u64),
    }
    use Step::{ProbeFails, Request};

    /// Steps, and the state and the number of ended outages after them.
    type Row<'a> = (&'a [Step], &'a str, u64);

    const FAILS: Step = Request(0, Unavailable);

    fn check(rows: &[Row<'_>]) {
        for (steps, state, ends) in rows {
            assert_eq!(after(steps), (*state, *ends), "{steps:?}");
        }
    }

    fn after(steps: &[Step]) -> (&'static str, u64) {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut state = OutageState::default();
        for step in steps {
            match *step {
                Request(millis, result) => {
                    let before = state.failing_since().is_some();
                    let is_changed = state.record(result, at(millis));
                    assert_eq!(is_changed, before != state.failing_since().is_some(), "{step:?}");
                }
                ProbeFails(millis) => state.probe_failed(at(millis)),
            }
        }
        let name = match (state.failing_since(), state.is_outage()) {
            (None, _) => "up",
            (Some(_), false) => "failing",
            (Some(_), true) => "outage",
        };
        (name, state.ends)
    }

    #[test]
    fn an_outage_is_a_second_in_which_requests_and_probes_fail() {
        check(&[
            (&[Request(0, Success)], "up", 0),
            (&[Request(0, Rejected)], "up", 0),
            (&[ProbeFails(0)], "up", 0),
            (&[FAILS], "failing", 0),
            (&[FAILS, ProbeFails(999)], "failing", 0),
            (&[FAILS, ProbeFails(1_000)], "outage", 0),
            // A success in between shows that not every request fails.
            (&[FAILS, Request(300, Success), ProbeFails(1_000)], "up", 0),
            (
                &[
                    FAILS,
                    Request(300, Success),
                    Request(400, Unavailable),
                    ProbeFails(1_000),
                ],
                "failing",
                0,
            ),
            // Without a failed probe, the requests may fail for a reason of their own.
            (&[FAILS, Request(9_000, Unavailable)], "failing", 0),
            (&[FAILS, Request(9_000, Unavailable), Request(9_001, Success)], "up", 0),
        ]);
    }

    #[test]
    fn the_first_success_ends_an_outage() {
        let began = ProbeFails(1_000);
        let ended = Request(7_000, Success);
        check(&[
            (&[FAILS, began, ended], "up", 1),
            (&[FAILS, began, ended, Request(7_001, Success)], "up", 1),
            (&[FAILS, began, ended, Request(7_001, Unavailable)], "failing", 1),
            (
                &[
                    FAILS,
                    began,
                    ended,
                    Request(7_001, Unavailable),
                    ProbeFails(8_001),
                    Request(9_000, Success),
                ],
                "up",
                2,
            ),
        ]);
    }

    #[test]
    fn rejections_prove_nothing_unless_nothing_else_follows_for_long() {
        let began = ProbeFails(1_000);
        check(&[
            (&[FAILS, began, Request(30_999, Rejected)], "outage", 0),
            (&[FAILS, began, Request(31_000, Rejected)], "up", 0),
            (
                &[FAILS, began, Request(9_000, Unavailable), Request(31_000, Rejected)],
                "outage",
                0,
            ),
        ]);
    }
}
