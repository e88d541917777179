//! Decides how long to trust a watch: whether the next request resumes it or lists again.
//!
//! A watch that brings nothing looks the same whether its resource is quiet or something withholds
//! events. So trust ends after a time of silence. That time adapts to what the following list
//! shows.
//!
//! Architecture Invariant: pure. Time is an argument.

use std::time::Duration;

use tokio::time::Instant;

use crate::reconnects::RelistReason;

/// A watch that ends sooner than this and without a line is a failure: an apiserver that shuts down
/// ends watches as soon as they open.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The number of consecutive watches that are accepted and end early without a line, after which
/// the next request lists. Even with the longest backoff, this takes less time than the default
/// `stale_after`.
const MAX_EARLY_ENDS: u32 = 3;
/// The initial silence limit, in doublings of the idle timeout: 6 min by default.
const INITIAL_DOUBLINGS: u32 = 2;
/// The longest silence limit, reached while nothing changes: 24 min by default.
const MAX_DOUBLINGS: u32 = 4;
/// A watch that lasted this long was good. A version that expires sooner after its list indicates a
/// loop of lists.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// How a watch ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// The apiserver or a proxy ended it without an error.
    Closed,
    /// The apiserver accepted it, and it failed later.
    Broken,
    /// The apiserver rejected it and asked to retry later, or did not respond.
    Rejected,
    /// Its version has expired.
    Expired,
    /// It failed such that its version is of no further use.
    Unusable,
}

/// The next request, and what comes before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NextRequest {
    /// Watch again from the last version, at once.
    Watch,
    /// Watch again after a backoff.
    WatchAfterBackoff,
    /// List, at once.
    List(RelistReason),
    /// List after a backoff.
    ListAfterBackoff(RelistReason),
}

/// What is known about the watches since the last lists.
#[derive(Debug)]
pub(crate) struct WatchTrust {
    idle_timeout: Duration,
    /// The time of the last complete list.
    listed: Instant,
    /// The time of the last line or the last complete list.
    silent_since: Instant,
    /// The hash of the last list, until a line reports a change.
    last_list: Option<u64>,
    /// The silence limit, in doublings of the idle timeout.
    doublings: u32,
    /// The start of the current watch, and the number of its lines.
    started: Instant,
    lines: usize,
    /// The number of consecutive watches that were accepted and ended early without a line.
    early_ends: u32,
    was_accepted: bool,
}

impl WatchTrust {
    pub(crate) fn new(idle_timeout: Duration, now: Instant) -> Self {
        Self {
            idle_timeout,
            listed: now,
            silent_since: now,
            last_list: None,
            doublings: INITIAL_DOUBLINGS,
            started: now,
            lines: 0,
            early_ends: 0,
            was_accepted: true,
        }
    }

    /// Records a complete list with this hash, and adapts the silence limit.
    ///
    /// If objects changed without a line on the watch, something withholds events, and the limit
    /// drops to one idle timeout. If nothing changed, the limit doubles, because not every
    /// apiserver sends bookmarks for an unchanged resource.
    pub(crate) fn list_completed(&mut self, content: u64, now: Instant) {
        match self.last_list.replace(content) {
            Some(before) if before != content => self.doublings = 0,
            Some(_) => self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS),
            None => {}
        }
        self.listed = now;
        self.silent_since = now;
        self.early_ends = 0;
        self.was_accepted = true;
    }

    /// Drops the hash of the last list, because the next list is no evidence: it does not follow a
    /// watch that brought nothing, or it has other content.
    pub(crate) fn forget_list(&mut self) {
        self.last_list = None;
    }

    /// Records that a watch starts. Returns whether its acceptance will count as contact: it does
    /// not right after an accepted watch that ended at once.
    pub(crate) fn watch_started(&mut self, now: Instant) -> bool {
        self.started = now;
        self.lines = 0;
        self.early_ends == 0 || !self.was_accepted
    }

    /// Records a line of the watch.
    pub(crate) fn line_received(&mut self, is_change: bool, now: Instant) {
        self.lines += 1;
        self.silent_since = now;
        if is_change {
            self.last_list = None;
        }
    }

    /// Returns whether a watch that ends now was good enough to reset the backoff. A watch that is
    /// silent until the idle timeout counts as good.
    pub(crate) fn resets_backoff(&self, end: End, now: Instant) -> bool {
        let lasted = now - self.started;
        self.is_good(lasted) || end == End::Closed && !self.is_short(lasted)
    }

    /// Records that the watch ended, and decides on the next request.
    pub(crate) fn watch_ended(&mut self, end: End, now: Instant) -> NextRequest {
        let lasted = now - self.started;
        self.was_accepted = self.lines > 0 || matches!(end, End::Closed | End::Broken);
        if self.lines > 0 || self.is_good(lasted) || end == End::Closed && !self.is_short(lasted) {
            self.early_ends = 0;
        } else if self.was_accepted {
            self.early_ends += 1;
        }
        let is_silent = self.lines == 0 && self.was_accepted && now - self.silent_since >= self.silence_limit();
        match end {
            End::Closed if !self.is_short(lasted) && is_silent => NextRequest::List(RelistReason::Silence),
            End::Closed if !self.is_short(lasted) => NextRequest::Watch,
            // The backoff prevents a loop of lists if versions expire right after their lists.
            End::Expired if now - self.listed < GOOD_WATCH => NextRequest::ListAfterBackoff(RelistReason::Expired),
            End::Expired => NextRequest::List(RelistReason::Expired),
            End::Unusable => NextRequest::ListAfterBackoff(RelistReason::WatchFailed),
            _ if is_silent => NextRequest::ListAfterBackoff(RelistReason::Silence),
            _ if self.early_ends >= MAX_EARLY_ENDS => NextRequest::ListAfterBackoff(RelistReason::WatchFailed),
            End::Closed | End::Broken | End::Rejected => NextRequest::WatchAfterBackoff,
        }
    }

    /// Returns how long watches may send no line before the next list, which detects withheld
    /// events.
    fn silence_limit(&self) -> Duration {
        self.idle_timeout * (1 << self.doublings)
    }

    fn is_good(&self, lasted: Duration) -> bool {
        lasted >= GOOD_WATCH.min(self.idle_timeout)
    }

    fn is_short(&self, lasted: Duration) -> bool {
        self.lines == 0 && lasted < SHORT_WATCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(90);

    /// A watch: how long it lasts, how many lines it sends, and how it ends.
    type Row = (u64, usize, End);

    /// Runs watches one after another after a list, and returns the last decision.
    fn after(rows: &[Row]) -> NextRequest {
        let mut now = Instant::now();
        let mut trust = WatchTrust::new(IDLE, now);
        trust.list_completed(1, now);
        let mut next = NextRequest::List(RelistReason::Reader);
        for (millis, lines, end) in rows {
            trust.watch_started(now);
            now += Duration::from_millis(*millis);
            for _ in 0..*lines {
                trust.line_received(true, now);
            }
            next = trust.watch_ended(*end, now);
        }
        next
    }

    #[test]
    fn the_next_request_follows_from_how_watches_ended() {
        let silent = (90_000, 0, End::Broken);
        let after_backoff = NextRequest::ListAfterBackoff;
        let rows: &[(&[Row], NextRequest)] = &[
            (&[(300_000, 5, End::Closed)], NextRequest::Watch),
            (&[(1_000, 0, End::Closed)], NextRequest::Watch),
            (&[(999, 0, End::Closed)], NextRequest::WatchAfterBackoff),
            (&[(0, 1, End::Closed)], NextRequest::Watch),
            (&[(5_000, 2, End::Broken)], NextRequest::WatchAfterBackoff),
            (&[(0, 0, End::Rejected)], NextRequest::WatchAfterBackoff),
            (&[(0, 0, End::Rejected); 9], NextRequest::WatchAfterBackoff),
            (&[(0, 0, End::Unusable)], after_backoff(RelistReason::WatchFailed)),
            (&[(9_999, 0, End::Expired)], after_backoff(RelistReason::Expired)),
            (&[(10_000, 0, End::Expired)], NextRequest::List(RelistReason::Expired)),
            // Three accepted watches that end at once end the trust; other ends do not count.
            (&[(0, 0, End::Closed); 2], NextRequest::WatchAfterBackoff),
            (&[(0, 0, End::Closed); 3], after_backoff(RelistReason::WatchFailed)),
            (
                &[
                    (0, 0, End::Closed),
                    (0, 0, End::Closed),
                    (0, 0, End::Rejected),
                    (0, 0, End::Broken),
                ],
                after_backoff(RelistReason::WatchFailed),
            ),
            (
                &[
                    (0, 0, End::Closed),
                    (0, 0, End::Closed),
                    (0, 1, End::Closed),
                    (0, 0, End::Closed),
                ],
                NextRequest::WatchAfterBackoff,
            ),
            // Four idle timeouts without a line end the trust, unless watches were rejected.
            (&[silent; 3], NextRequest::WatchAfterBackoff),
            (&[silent; 4], after_backoff(RelistReason::Silence)),
            (&[(360_000, 0, End::Closed)], NextRequest::List(RelistReason::Silence)),
            (&[(360_000, 0, End::Rejected)], NextRequest::WatchAfterBackoff),
        ];
        for (watches, next) in rows {
            assert_eq!(after(watches), *next, "{watches:?}");
        }
    }

    /// Lists with these hashes, with a silent watch before each. Returns the silence limit in idle
    /// timeouts.
    fn limit_after(lists: &[u64], is_change_seen: bool) -> u32 {
        let now = Instant::now();
        let mut trust = WatchTrust::new(IDLE, now);
        for content in lists {
            trust.list_completed(*content, now);
            trust.line_received(is_change_seen, now);
        }
        u32::try_from(trust.silence_limit().as_secs() / IDLE.as_secs()).unwrap()
    }

    #[test]
    fn the_silence_limit_adapts_to_what_lists_show() {
        assert_eq!(limit_after(&[], false), 4);
        assert_eq!(limit_after(&[1], false), 4);
        assert_eq!(limit_after(&[1, 1], false), 8);
        assert_eq!(limit_after(&[1, 1, 1, 1, 1], false), 16);
        assert_eq!(limit_after(&[1, 2], false), 1);
        assert_eq!(limit_after(&[1, 2, 2], false), 2);
        // The watch reported the change, so the lists say nothing about it.
        assert_eq!(limit_after(&[1, 2, 3], true), 4);
    }

    #[test]
    fn an_accepted_watch_is_no_contact_right_after_one_that_ended_at_once() {
        let now = Instant::now();
        let mut trust = WatchTrust::new(IDLE, now);
        assert!(trust.watch_started(now));
        trust.watch_ended(End::Closed, now);
        assert!(!trust.watch_started(now));
        trust.watch_ended(End::Rejected, now);
        assert!(trust.watch_started(now));
        trust.watch_ended(End::Closed, now);
        trust.list_completed(1, now);
        assert!(trust.watch_started(now));
    }

    #[test]
    fn only_good_watches_reset_the_backoff() {
        let now = Instant::now();
        let lasted = |millis: u64, end| {
            let trust = WatchTrust::new(IDLE, now);
            trust.resets_backoff(end, now + Duration::from_millis(millis))
        };
        assert!(lasted(10_000, End::Broken) && lasted(10_000, End::Rejected));
        assert!(!lasted(9_999, End::Broken) && !lasted(9_999, End::Rejected));
        assert!(lasted(1_000, End::Closed) && !lasted(999, End::Closed));
    }
}
