//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use jiff::SignedDuration;

use crate::plan::REST;
use crate::rows::{Row, Subject};

/// Where the report goes when everything was measured.
const REPORT: &str = "BENCHMARKS.md";

/// Measures the controllers beside kube-controller-manager and a bare client, on control planes of its own.
///
/// Each measurement of a cluster has a fresh etcd and kube-apiserver, one at a time, and the subjects take turns. Progress goes to stderr.
/// Ctrl-C ends it and everything that it started.
#[derive(Clone, Debug, Parser)]
#[command(name = "portreeve-bench", max_term_width = 120)]
pub(crate) struct Options {
    /// The daemon's binary, built for release
    pub(crate) daemon: PathBuf,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// The rows to measure instead of all
    #[arg(long, value_name = "ROW,...", value_delimiter = ',')]
    pub(crate) only: Vec<Row>,
    /// The subjects to measure instead of all
    #[arg(long, value_name = "SUBJECT,...", value_delimiter = ',')]
    pub(crate) subjects: Vec<Subject>,
    /// How long the row `quiet` looks on
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) quiet: Duration,
    /// How many schedules are worked on at once in the row `due`, by everybody [default: the daemon's]; and how many dependents
    /// at once in the rows of garbage collection whose limits are lifted [default: 20]; and how many Foos [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) concurrency: Option<u16>,
    /// Where the report is written [default: BENCHMARKS.md, but stdout with --only or --subjects]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How many schedules, dependents or objects there are instead of what is usual: to try this program, not to measure
    #[arg(long, hide = true)]
    count: Option<usize>,
    /// Instead of all this: fills one graph, on behalf of the row `graph`, and says what came of it
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

    /// Nothing stands for stdout. What was not measured in full must not replace what was.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let is_whole = self.only.is_empty() && self.subjects.is_empty() && self.count.is_none();
        self.output.clone().or_else(|| is_whole.then(|| PathBuf::from(REPORT)))
    }

    /// How long a controller is left alone before its memory counts.
    pub(crate) fn rest(&self) -> Duration {
        if self.count.is_none() { REST } else { Duration::ZERO }
    }

    /// How many schedules, dependents or objects a row has.
    pub(crate) fn count(&self, row: Row) -> usize {
        let usual = match row {
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
        self.count.unwrap_or(usual)
    }
}

/// A duration as Go writes it: `1h`, `1m30s`.
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
    fn everything_is_measured_into_the_report_unless_told_otherwise() {
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
    fn a_part_goes_to_stdout_unless_told_otherwise() {
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
    fn a_window_has_a_length() {
        assert_eq!(duration("1h"), Ok(Duration::from_hours(1)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["", "0s", "5", "-1m", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
