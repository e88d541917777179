//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::tables::{Row, Subject, row_parser, rows};

/// The default file of a complete report.
const REPORT: &str = "BENCHMARKS.md";
/// How long a controller is left idle before its memory is measured. An idle Go runtime collects
/// garbage every two minutes, and only then returns the memory that it used at the start.
pub(crate) const REST: Duration = Duration::from_secs(150);

/// Measures the controllers, kube-controller-manager and a bare client on its own control planes.
///
/// Each measurement of a cluster has a fresh etcd and kube-apiserver, one at a time, and the
/// subjects take turns. Progress goes to stderr. Ctrl-C ends it and everything that it started.
#[derive(Clone, Debug, Parser)]
#[command(name = "portreeve-bench", max_term_width = 120)]
pub(crate) struct Options {
    /// The daemon's binary, built for release
    pub(crate) daemon: PathBuf,
    /// The number of rounds [default: 1 or 2, by row]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// The rows to measure instead of all
    #[arg(long, value_name = "ROW,...", value_delimiter = ',', value_parser = row_parser())]
    only: Vec<&'static Row>,
    /// The subjects to measure instead of all
    #[arg(long, value_name = "SUBJECT,...", value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// How many objects each subject works on at a time where limits are lifted: schedules
    /// [default: 16], dependents [default: 20] and Foos [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Option<u16>,
    /// The file of the report [default: BENCHMARKS.md, but stdout with --only or --subjects]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The number of schedules, dependents or objects, to try this program instead of measuring
    #[arg(long, hide = true)]
    count: Option<usize>,
}

/// One measurement of one subject in one round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) round: u16,
    pub(crate) row: &'static Row,
    pub(crate) subject: Subject,
}

impl Options {
    /// Returns the measurements in order. The subjects take turns within each round, so that
    /// changes of the machine affect all of them.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let is_wanted = |row: &&Row| self.only.is_empty() || self.only.iter().any(|only| only.id == row.id);
        let mut steps = Vec::new();
        let most = rows().iter().map(|row| self.rounds(row)).max().unwrap_or_default();
        for round in 1..=most {
            for row in rows().iter().filter(is_wanted).filter(|row| round <= self.rounds(row)) {
                let subjects = Subject::value_variants().iter().copied();
                let subjects = subjects.filter(|subject| self.subjects.is_empty() || self.subjects.contains(subject));
                let subjects = subjects.filter(|subject| row.subjects.contains(subject));
                steps.extend(subjects.map(|subject| Step { round, row, subject }));
            }
        }
        steps
    }

    /// Returns how often each subject of a row is measured.
    pub(crate) fn rounds(&self, row: &Row) -> u16 {
        self.rounds.unwrap_or(row.rounds)
    }

    /// Returns the report's file, or `None` for stdout. By default a partial report goes to stdout,
    /// so that it does not replace a complete report.
    pub(crate) fn output(&self) -> Option<PathBuf> {
        let is_complete = self.only.is_empty() && self.subjects.is_empty() && self.count.is_none();
        let default = is_complete.then(|| PathBuf::from(REPORT));
        self.output.clone().or(default)
    }

    /// Returns how long a controller is left idle before its memory is measured.
    pub(crate) fn rest(&self) -> Duration {
        if self.count.is_none() { REST } else { Duration::ZERO }
    }

    /// Returns the number of schedules, dependents or objects of a row.
    pub(crate) fn count(&self, row: &Row) -> usize {
        self.count.filter(|_| row.count > 0).unwrap_or(row.count)
    }

    /// Returns how many objects of a row a subject with lifted limits works on at a time.
    pub(crate) fn concurrency(&self, row: &Row) -> u16 {
        self.concurrency.unwrap_or(row.concurrency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Options {
        Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap()
    }

    #[test]
    fn subjects_take_turns_in_each_round_of_a_partial_report() {
        let options = parse(&["--rounds=2", "--only=due,crash", "--subjects=peer,floor"]);
        let name = |step: &Step| format!("{} {}: {}", step.round, step.row.id, step.subject.name());
        let steps: Vec<String> = options.steps().iter().map(name).collect();
        let round = |round| ["due: floor", "due: peer", "crash: peer"].map(|step| format!("{round} {step}"));
        assert_eq!(steps, [round(1), round(2)].concat());
        assert_eq!(options.output(), None);
        assert_eq!(parse(&["--count=20"]).output(), None);
        assert_eq!(parse(&[]).output(), Some(PathBuf::from("BENCHMARKS.md")));
        let output = parse(&["--only=due", "--output=x.md"]).output();
        assert_eq!(output, Some(PathBuf::from("x.md")));
    }
}
