//! Schedules of tests: one that runs every minute makes a test wait for the next minute, unless it
//! sets the clock.

use anyhow::{Result, ensure};

use crate::files::{is_listed, texts};

const EVERY_MINUTE: &str = "\"* * * * *\"";
/// What tests that set the clock use.
const CLOCKS: [&str; 2] = ["OffsetClock", "ScheduleEnvironment"];
/// The files that have such a schedule without a clock, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("tests/integration/admission/environment.rs", "is rejected"),
    ("tests/integration/admission/generated.rs", "is not stored"),
    ("tests/integration/admission/rows.rs", "is not stored"),
    (
        "tests/integration/release/rolling_update.rs",
        "every minute has exactly one run, across processes of two versions",
    ),
];

#[test]
fn no_test_waits_for_the_next_minute() -> Result<()> {
    for (path, text) in texts(&["tests/integration/**.rs"])? {
        let waits = text.contains(EVERY_MINUTE) && !CLOCKS.iter().any(|clock| text.contains(clock));
        ensure!(
            waits == is_listed(&path, WITHOUT),
            "{}: set the clock where a test has the schedule {EVERY_MINUTE}, or list the file in \
             tests/tidy/clocks.rs with the reason; remove it from there if it has none",
            path.display()
        );
    }
    Ok(())
}
