//! Durations on a command line, in the format of all Kubernetes components.

use std::time::Duration;

use jiff::SignedDuration;

/// A text that is no duration in Go's format.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a duration such as 30s, 1m30s or 12h")]
pub struct InvalidDuration;

/// Parses a duration in Go's format: `12h`, `1m30s`, `500ms`, or a bare `0`.
///
/// # Errors
///
/// Returns an error that shows the expected format.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed = text.parse::<SignedDuration>().ok();
    parsed
        .and_then(|parsed| Duration::try_from(parsed).ok())
        .ok_or(InvalidDuration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_in_the_format_of_go() {
        let seconds = |text| parse_duration(text).map(|duration| duration.as_secs_f64());
        for (text, expected) in [
            ("0", 0.0),
            ("0s", 0.0),
            ("500ms", 0.5),
            ("1m30s", 90.0),
            ("12h", 43_200.0),
            ("12h0m0s", 43_200.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "10", "-1s", "soon"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
