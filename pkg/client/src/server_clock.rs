//! The apiserver's clock, by the `Date` of its responses.

use std::sync::Arc;

use http::{HeaderMap, header};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use parking_lot::Mutex;

/// How the apiserver's clock differs from that of this machine. Clones share what was observed.
#[derive(Clone, Debug, Default)]
pub struct ServerClock(Arc<Mutex<Option<SignedDuration>>>);

impl ServerClock {
    /// Returns by how much the apiserver's clock was ahead at its last response, a second more or
    /// less; `None` before the first response with a `Date`.
    pub fn offset(&self) -> Option<SignedDuration> {
        *self.0.lock()
    }

    /// Records a response that has arrived at the time `now` of this machine.
    pub(crate) fn observe(&self, response: &HeaderMap, now: Timestamp) {
        if let Some(date) = date(response) {
            *self.0.lock() = Some(date.duration_since(now));
        }
    }
}

/// Returns the `Date` of a response.
pub fn date(response: &HeaderMap) -> Option<Timestamp> {
    let date = response.get(header::DATE)?;
    DateTimeParser::new().parse_timestamp(date).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_offset_is_that_of_the_latest_response() {
        let clock = ServerClock::default();
        assert_eq!(clock.offset(), None);
        let now = "2026-11-26T13:00:00Z".parse().unwrap();
        let response = |date| HeaderMap::from_iter([(header::DATE, HeaderValue::from_static(date))]);
        for (date, offset) in [
            ("Thu, 26 Nov 2026 12:00:00 GMT", -1),
            ("Thu, 26 Nov 2026 16:00:00 GMT", 3),
        ] {
            clock.observe(&response(date), now);
            assert_eq!(clock.clone().offset(), Some(SignedDuration::from_hours(offset)));
        }
        clock.observe(&response("yesterday"), now);
        clock.observe(&HeaderMap::new(), now);
        assert_eq!(clock.offset(), Some(SignedDuration::from_hours(3)));
    }
}
