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
/// How long other requests may succeed while probes fail, before the outage counts as over.
const MAX_NOT_READY: Duration = Duration::from_secs(5);

/// The result of a request, as far as it shows whether the apiserver serves requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RequestResult {
    /// A response below 400.
    Success,
    /// A 4xx. It neither begins nor ends an outage: an apiserver that is starting answers 403 until
    /// it has read the roles, 404 and 429 until it has loaded all resources, and so does a proxy in
    /// front of it.
    Rejected,
    /// A 5xx, or no response.
    Unavailable,
}

/// The current failures, and the number of ended outages.
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
    /// The first success of another request than a probe during the outage.
    success: Option<Instant>,
}

impl OutageState {
    /// Records a request that ended at `now`. Returns whether requests begin or cease to fail.
    ///
    /// A success during an outage does not end it, because an apiserver that is starting serves
    /// some requests before it is ready. The next probe decides.
    pub(super) fn record(&mut self, result: RequestResult, now: Instant) -> bool {
        let Some(failing) = &mut self.failing else {
            if result == RequestResult::Unavailable {
                self.failing = Some(Failing {
                    since: now,
                    last: now,
                    is_outage: false,
                    success: None,
                });
            }
            return self.failing.is_some();
        };
        match result {
            RequestResult::Success if !failing.is_outage => self.end(),
            RequestResult::Success => {
                let first = *failing.success.get_or_insert(now);
                now >= first + MAX_NOT_READY && self.end()
            }
            RequestResult::Rejected if now >= failing.last + MAX_REJECTED => {
                failing.is_outage = false;
                self.end()
            }
            RequestResult::Rejected => false,
            RequestResult::Unavailable => {
                failing.last = now;
                false
            }
        }
    }

    /// Records a probe that ended at `now`, besides its request. Returns whether requests cease to
    /// fail.
    ///
    /// Only a failed probe shows an outage: the other requests may all fail for a reason of their
    /// own, such as a broken webhook.
    pub(super) fn record_probe(&mut self, result: RequestResult, now: Instant) -> bool {
        let Some(failing) = &mut self.failing else { return false };
        match result {
            RequestResult::Success => self.end(),
            // The account may not probe. Before the first success, the apiserver may not have read
            // the roles yet.
            RequestResult::Rejected => failing.success.is_some() && self.end(),
            RequestResult::Unavailable => {
                failing.last = now;
                failing.is_outage |= now >= failing.since + MIN_OUTAGE;
                false
            }
        }
    }

    /// Ends the failures, and the outage if there is one. Returns true.
    fn end(&mut self) -> bool {
        self.ends += u64::from(self.is_outage());
        self.failing = None;
        true
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
        Probe(u64, RequestResult),
    }
    use Step::{Probe, Request};

    /// Steps, and the state and the number of ended outages after them.
    type Row<'a> = (&'a [Step], &'a str, u64);

    const FAILS: Step = Request(0, Unavailable);
    const BEGINS: Step = Probe(1_000, Unavailable);

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
            let before = state.failing_since().is_some();
            let is_changed = match *step {
                Request(millis, result) => state.record(result, at(millis)),
                Probe(millis, result) => state.record_probe(result, at(millis)),
            };
            assert_eq!(is_changed, before != state.failing_since().is_some(), "{step:?}");
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
        let succeeds = Request(300, Success);
        let fails_again = Request(400, Unavailable);
        let fails_long = Request(9_000, Unavailable);
        check(&[
            (&[Request(0, Success)], "up", 0),
            (&[Request(0, Rejected)], "up", 0),
            (&[Probe(0, Unavailable)], "up", 0),
            (&[FAILS], "failing", 0),
            (&[FAILS, Probe(999, Unavailable)], "failing", 0),
            (&[FAILS, BEGINS], "outage", 0),
            // A success in between shows that not every request fails.
            (&[FAILS, succeeds, BEGINS], "up", 0),
            (&[FAILS, succeeds, fails_again, BEGINS], "failing", 0),
            // Without a failed probe, the requests may fail for a reason of their own.
            (&[FAILS, fails_long], "failing", 0),
            (&[FAILS, fails_long, Request(9_001, Success)], "up", 0),
        ]);
    }

    #[test]
    fn the_next_probe_after_a_success_decides_whether_the_outage_has_ended() {
        let success = Request(6_800, Success);
        let not_ready = Probe(7_000, Unavailable);
        let ready = Probe(7_250, Success);
        check(&[
            (&[FAILS, BEGINS, ready], "up", 1),
            (&[FAILS, BEGINS, success], "outage", 0),
            (&[FAILS, BEGINS, success, not_ready], "outage", 0),
            (&[FAILS, BEGINS, success, not_ready, ready], "up", 1),
            // The account may not probe.
            (&[FAILS, BEGINS, success, Probe(7_000, Rejected)], "up", 1),
            // Probes fail although the apiserver serves requests.
            (
                &[FAILS, BEGINS, success, not_ready, Request(11_799, Success)],
                "outage",
                0,
            ),
            (&[FAILS, BEGINS, success, not_ready, Request(11_800, Success)], "up", 1),
            // Another outage.
            (&[FAILS, BEGINS, ready, Request(8_000, Unavailable)], "failing", 1),
            (
                &[
                    FAILS,
                    BEGINS,
                    ready,
                    Request(8_000, Unavailable),
                    Probe(9_000, Unavailable),
                ],
                "outage",
                1,
            ),
        ]);
    }

    #[test]
    fn rejections_prove_nothing_unless_nothing_else_follows_for_long() {
        check(&[
            (&[FAILS, BEGINS, Probe(7_000, Rejected)], "outage", 0),
            (&[FAILS, BEGINS, Request(30_999, Rejected)], "outage", 0),
            (&[FAILS, BEGINS, Request(31_000, Rejected)], "up", 0),
            (
                &[FAILS, BEGINS, Request(9_000, Unavailable), Request(31_000, Rejected)],
                "outage",
                0,
            ),
        ]);
    }
}
