//! Progress lines on stderr, each with the time since the start.

use std::time::{Duration, Instant};

/// Writes progress lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    started: Instant,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    pub(crate) fn log(&self, what: impl AsRef<str>) {
        eprintln!("[{}] {}", hours_minutes_seconds(self.started.elapsed()), what.as_ref());
    }
}

fn hours_minutes_seconds(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats a duration, such as `40 s`, `5 min` or `1 h 20 min`.
pub(crate) fn length(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let minutes = (seconds + 30) / 60;
    match (minutes / 60, minutes % 60) {
        _ if seconds < 100 => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_in_seconds_minutes_or_hours() {
        for (seconds, expected) in [
            (0, "0 s"),
            (99, "99 s"),
            (100, "2 min"),
            (300, "5 min"),
            (3590, "1 h"),
            (3600, "1 h"),
            (4800, "1 h 20 min"),
        ] {
            assert_eq!(length(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(hours_minutes_seconds(Duration::from_secs(3725)), "1:02:05");
    }
}
