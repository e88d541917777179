//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use jiff::SignedDuration;

use crate::plan::REST;
use crate::rows::{Row, Subject};

/// The default file of a complete report.
const REPORT: &str = "BENCHMARKS.md";

/// Measures the controllers, kube-controller-manager and a bare client on its own control planes.
///
/// Each measurement of a cluster has a fresh etcd and kube-apiserver, one at a time, and the
/// subjects take turns. Progress goes to stderr. Ctrl-C ends it and everything that it started.
#[derive(Clone, Debug, Parser)]
#[command(name = "portreeve-bench", max_term_width = 120)]
pub(crate) struct Options {
    /// The daemon's binary, built for release
    pub(crate) daemon: PathBuf,
    /// The number of rounds
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// The rows to measure instead of all
    #[arg(long, value_name = "ROW,...", value_delimiter = ',')]
    pub(crate) only: Vec<Row>,
    /// The subjects to measure instead of all
    #[arg(long, value_name = "SUBJECT,...", value_delimiter = ',')]
    pub(crate) subjects: Vec<Subject>,
    /// The length of the window in the row `quiet`
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) quiet: Duration,
    /// How many objects each subject works on at a time where limits are lifted: schedules
    /// [default: the daemon's default], dependents [default: 20] and Foos [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) concurrency: Option<u16>,
    /// The file of the report [default: BENCHMARKS.md, but stdout with --only or --subjects]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The number of schedules, dependents or objects, to try this program instead of measuring
    #[arg(long, hide = true)]
    count: Option<usize>,
    /// Fills one graph for the row `graph` and prints the result, instead of measuring
    #[arg(long, value_name = "SUBJECT", hide = true)]
    pub(crate) fill: Option<Subject>,
}

impl Options {
    pub(crate) fn has(&self, row: Row) -> bool {
        self.only.is_empty() || self.only.contains(&row)
    }

    pub(crate) fn subjects(&self) -> Vec<Subject> {
        let all = Subject::value_variants().iter().copied();
        all.filter(|subject| self.subjects.is_empty() || self.subjects.contains(subject))
            .collect()
    }

    /// Returns the report's file, or `None` for stdout. By default a partial report goes to stdout,
    /// so that it does not replace a complete report.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let is_complete = self.only.is_empty() && self.subjects.is_empty() && self.count.is_none();
        self.output
            .clone()
            .or_else(|| is_complete.then(|| PathBuf::from(REPORT)))
    }

    /// Returns how long a controller is left idle before its memory is measured.
    pub(crate) fn rest(&self) -> Duration {
        if self.count.is_none() { REST } else { Duration::ZERO }
    }

    /// Returns the number of schedules, dependents or objects of a row.
    pub(crate) fn count(&self, row: Row) -> usize {
        let default = match row {
            Row::Due | Row::DueDefault | Row::Memory500 | Row::Handover | Row::Crash | Row::Standby => 500,
            Row::Memory10000 | Row::Quiet => 10_000,
            Row::Cascade3000 | Row::Foreground3000 | Row::Orphan3000 => 3000,
            Row::CascadeDefault | Row::Foo1000 | Row::FooMemory => 1000,
            Row::Memory30000 => 30_000,
            Row::Memory5000Large => 5000,
            Row::Graph => 1_000_000,
            Row::Deployments50000 => 50_000,
            Row::Next | Row::MemoryEmpty | Row::Shell | Row::Store | Row::Queue => return 0,
        };
        self.count.unwrap_or(default)
    }
}

/// Parses a duration in Go's notation, such as `1h` or `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok();
    let duration = parsed.and_then(|parsed| Duration::try_from(parsed).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "give a duration such as 30s, 5m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Options {
        Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap()
    }

    #[test]
    fn by_default_everything_is_measured_into_the_report() {
        let options = parse(&[]);
        assert!(Row::value_variants().iter().all(|row| options.has(*row)));
        assert_eq!(options.subjects().len(), Subject::value_variants().len());
        assert_eq!(options.output(), Some(PathBuf::from("BENCHMARKS.md")));
        assert_eq!((options.rounds, options.quiet), (3, Duration::from_mins(5)));
        assert_eq!(options.count(Row::Due), 500);
        assert_eq!(options.count(Row::Quiet), 10_000);
        assert_eq!(options.count(Row::CascadeDefault), 1000);
    }

    #[test]
    fn a_partial_report_goes_to_stdout_by_default() {
        let options = parse(&["--only=due,memory-500", "--subjects=floor,peer"]);
        assert!(options.has(Row::Due) && options.has(Row::Memory500) && !options.has(Row::Quiet));
        assert_eq!(options.subjects(), [Subject::Floor, Subject::Peer]);
        assert_eq!(options.output(), None);
        assert_eq!(parse(&["--count=20"]).output(), None);
        assert_eq!(
            parse(&["--only=due", "--output=x.md"]).output(),
            Some(PathBuf::from("x.md"))
        );
    }

    #[test]
    fn durations_must_be_positive_and_have_a_unit() {
        assert_eq!(duration("1h"), Ok(Duration::from_hours(1)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["", "0s", "5", "-1m", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
