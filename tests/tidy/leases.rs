//! Leases of tests: one that expires within seconds is lost when the machine stalls.

use anyhow::{Context, Result, ensure};

use crate::files::{is_this_test, sources};

const FLAG: &str = "--leader-elect-lease-duration=";
/// The shortest duration, in seconds, that needs no reason.
const LONG: u32 = 30;
/// How many lines above the flag the reason may be.
const DISTANCE: usize = 6;

#[test]
fn short_leases_have_a_reason() -> Result<()> {
    for (path, text) in sources()?.iter().filter(|(path, _)| !is_this_test(path)) {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(value) = line.split(FLAG).nth(1) else { continue };
            let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
            let is_in_seconds = value[digits.len()..].starts_with('s');
            if digits.is_empty() || !is_in_seconds || digits.parse::<u32>().context("no number")? >= LONG {
                continue;
            }
            let above = &lines[index.saturating_sub(DISTANCE)..index];
            ensure!(
                above.iter().any(|line| line.starts_with("//")),
                "{}:{}: a comment must say why this lease lasts less than {LONG} s",
                path.display(),
                index + 1
            );
        }
    }
    Ok(())
}
