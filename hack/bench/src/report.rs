//! The report: what was measured, as Markdown. Pure: only what is among the samples appears in it.

use clap::ValueEnum;

use crate::legend::legend;
use crate::limits::limit;
use crate::machine::Machine;
use crate::methods::method;
use crate::options::Options;
use crate::rows::{Measure, Row, Sample, Subject};
use crate::statistics::{Spread, ratio, times, written};
use crate::targets::Target;

/// All that a report is made of.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The command line that it was measured with.
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) options: Options,
    /// How many schedules are worked on at once: in the row `due`, and by default.
    pub(crate) concurrency: u16,
    pub(crate) default_concurrency: u16,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<String>,
    /// The largest share of CPU time that others had before a measurement, from 0 to 1.
    pub(crate) busiest: f64,
}

const INTRO: &str = "\
# Benchmarks

What the controllers cost, beside kube-controller-manager, other people's controllers and a bare client, measured in turn on one machine. `make bench` writes
this file, and every number in its tables is of this one run. Why a target is missed is what a profiler showed in another one.

Each measurement has an etcd and a kube-apiserver of its own, which are started for it, share the machine with what is measured, and are
removed after it. There is nothing else in the cluster, and no controller that would run the Jobs.";

const COLUMNS: [&str; 12] = [
    "subject",
    "measure",
    "median",
    "spread",
    "to floor",
    "to floor-status",
    "to peer",
    "to peer-release",
    "to controller-runtime",
    "to kube-runtime",
    "target",
    "met",
];
/// What a cell holds that has nothing to say.
const NOTHING: &str = "–";
/// What it holds when a target is missed.
const MISSED: &str = "**no**";

impl Report {
    /// The whole as Markdown.
    pub(crate) fn render(&self) -> String {
        let mut blocks = vec![INTRO.to_owned(), self.circumstances(), legend(&self.samples)];
        for row in Row::value_variants() {
            if self.samples.iter().any(|sample| sample.row == *row) {
                blocks.push(format!("## `{}`", row.name()));
                let (lifted, default) = (self.concurrency, self.default_concurrency);
                blocks.push(method(*row, &self.options, lifted, default));
                let table = self.table(*row);
                let limit = limit(*row).filter(|_| table.contains(MISSED));
                blocks.push(table);
                blocks.extend(limit.map(str::to_owned));
            }
        }
        if !self.failures.is_empty() {
            let failures: Vec<String> = self.failures.iter().map(|failure| format!("- {failure}")).collect();
            blocks.push("## What failed".to_owned());
            blocks.push(failures.join("\n"));
        }
        blocks.join("\n\n") + "\n"
    }

    fn circumstances(&self) -> String {
        let Machine {
            cores,
            cpu,
            memory,
            kernel,
            kubernetes,
            etcd,
            rustc,
            commit,
        } = &self.machine;
        [
            "| | |\n|---|---|".to_owned(),
            format!("| machine | {cores} cores of {cpu}, {memory} of memory, {kernel} |"),
            format!("| versions | Kubernetes {kubernetes}, etcd {etcd}, rustc {rustc} |"),
            format!(
                "| other work | at most {:.0} % of the CPU time in the second before each measurement |",
                self.busiest * 100.0
            ),
            format!("| commit | {commit} |"),
            format!("| command | `{}` |", self.command),
            format!("| date | {} |", self.date),
        ]
        .join("\n")
    }

    /// A column that has nothing to say in any line is left out.
    fn table(&self, row: Row) -> String {
        let mut keys: Vec<(Subject, &Measure)> = Vec::new();
        for sample in self.samples.iter().filter(|sample| sample.row == row) {
            let key = (sample.subject, &sample.measure);
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        // By subject as they take their turns; by measure as they were taken.
        keys.sort_by_key(|(subject, _)| *subject);
        let lines: Vec<[String; 12]> = keys
            .into_iter()
            .filter_map(|(subject, measure)| self.line(row, subject, measure))
            .collect();
        let says = |column: &usize| lines.iter().any(|cells| cells[*column] != NOTHING);
        let columns: Vec<usize> = (0..COLUMNS.len()).filter(says).collect();
        let written = |cell: &dyn Fn(usize) -> String| {
            let cells: Vec<String> = columns.iter().map(|column| cell(*column)).collect();
            format!("| {} |", cells.join(" | "))
        };
        let head = written(&|column| COLUMNS[column].to_owned());
        let rule = format!("|{}", "---|".repeat(columns.len()));
        let lines = lines.iter().map(|cells| written(&|column| cells[column].clone()));
        [head, rule].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
    }

    /// The cells of a line, one a column.
    fn line(&self, row: Row, subject: Subject, measure: &Measure) -> Option<[String; 12]> {
        let unit = measure.unit();
        let Spread { least, median, most } = self.spread(row, subject, measure)?;
        let of = |other: Subject| Some(self.spread(row, other, measure)?.median);
        let compared = |other: Subject| match of(other).and_then(|other| ratio(median, other)) {
            Some(ratio) if subject != other && measure.is_comparable() => times(ratio),
            _ => NOTHING.to_owned(),
        };
        let target = if subject.is_ours() {
            Target::of(row, measure)
        } else {
            None
        };
        let count = f64::from(u32::try_from(self.options.count(row)).unwrap_or(u32::MAX));
        let other = |subject, other: Option<Measure>| {
            let measure = other.as_ref().unwrap_or(measure);
            Some(self.spread(row, subject, measure)?.median)
        };
        let met = target.as_ref().and_then(|target| target.is_met(median, count, other));
        let cells = [
            subject.name(),
            cell(measure),
            written(median, unit),
            format!("{} … {}", written(least, unit), written(most, unit)),
            compared(Subject::Floor),
            compared(Subject::FloorStatus),
            compared(Subject::Peer),
            compared(Subject::PeerRelease),
            compared(Subject::ControllerRuntime),
            compared(Subject::KubeRuntime),
            target.map_or_else(|| NOTHING.to_owned(), Target::text),
            met.map_or(NOTHING, |met| if met { "yes" } else { MISSED }).to_owned(),
        ];
        Some(cells)
    }

    fn spread(&self, row: Row, subject: Subject, measure: &Measure) -> Option<Spread> {
        let samples = self.samples.iter();
        let of = samples.filter(|sample| sample.row == row && sample.subject == subject && sample.measure == *measure);
        Spread::of(of.map(|sample| sample.value))
    }
}

/// Schedules are full of asterisks.
fn cell(measure: &Measure) -> String {
    match measure {
        Measure::Search(benchmark) | Measure::Rate(benchmark) => format!("`{}`", benchmark.replace('|', "/")),
        _ => measure.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use expect_test::expect;

    use super::*;

    fn report(args: &[&str], samples: &[(Row, Subject, Measure, f64)]) -> Report {
        let text = |text: &str| text.to_owned();
        let sample = |(row, subject, measure, value): &(Row, Subject, Measure, f64)| Sample {
            row: *row,
            subject: *subject,
            measure: measure.clone(),
            value: *value,
        };
        Report {
            machine: Machine {
                cores: text("2"),
                cpu: text("A CPU"),
                memory: text("23.5 GiB"),
                kernel: text("Linux 6.1"),
                kubernetes: text("v1.36.3"),
                etcd: text("3.6.8"),
                rustc: text("1.95.0"),
                commit: text("abc"),
            },
            command: text("portreeve-bench daemon"),
            date: text("2026-11-21"),
            options: Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap(),
            concurrency: 10,
            default_concurrency: 5,
            samples: samples.iter().map(sample).collect(),
            failures: Vec::new(),
            busiest: 0.02,
        }
    }

    #[test]
    fn a_row_is_a_table_with_ratios_and_targets() {
        let mut samples = Vec::new();
        for (subject, p99s) in [
            (Subject::Floor, [0.5, 0.4, 0.6]),
            (Subject::FloorStatus, [0.8, 0.8, 0.8]),
            (Subject::Peer, [2.0, 1.0, 3.0]),
            (Subject::Portreeve, [1.0, 1.5, 0.9]),
        ] {
            samples.extend(p99s.map(|p99| (Row::Due, subject, Measure::P99, p99)));
            samples.push((Row::Due, subject, Measure::WithinTheMinute, 500.0));
        }
        expect![[r"
            | subject | measure | median | spread | to floor | to floor-status | to peer | target | met |
            |---|---|---|---|---|---|---|---|---|
            | floor | p99 | 500 ms | 400 ms … 600 ms | – | 0.62 × | 0.25 × | – | – |
            | floor | made within the minute | 500 | 500 … 500 | – | – | – | – | – |
            | floor-status | p99 | 800 ms | 800 ms … 800 ms | 1.60 × | – | 0.40 × | – | – |
            | floor-status | made within the minute | 500 | 500 … 500 | – | – | – | – | – |
            | peer | p99 | 2.00 s | 1.00 s … 3.00 s | 4.00 × | 2.50 × | – | – | – |
            | peer | made within the minute | 500 | 500 … 500 | – | – | – | – | – |
            | portreeve | p99 | 1.00 s | 900 ms … 1.50 s | 2.00 × | 1.25 × | 0.50 × | ≤ 1.20 × floor | **no** |
            | portreeve | made within the minute | 500 | 500 … 500 | – | – | – | all | yes |"]]
        .assert_eq(&report(&[], &samples).table(Row::Due));
    }

    #[test]
    fn only_what_was_measured_appears() {
        let samples = [
            (Row::Memory500, Subject::Portreeve, Measure::Resident, 10_240.0),
            (
                Row::Next,
                Subject::Portreeve,
                Measure::Search("*/5 * * * *".to_owned()),
                2.5e-7,
            ),
        ];
        let mut report = report(&["--rounds=1"], &samples);
        report.failures = vec!["round 1, due, peer: it ended".to_owned()];
        let text = report.render();
        let (_, measured) = text.split_once("| date |").unwrap();
        expect![[r"
             2026-11-21 |

            - **portreeve**: Portreeve with `--controllers=cronjob-controller`, on the same CronJobs.

            ## `memory-500`

            500 schedules that are due in half a year, made before the controller is started, as they are after a restart. Resident memory (`VmRSS`) once the controller has read all of them, has had 150 s for itself (Go's runtime collects what is left of the start within two minutes), and its memory has stayed within 1 % for ten seconds; and the peak of it up to then (`VmHWM`). One round.

            | subject | measure | median | spread | target | met |
            |---|---|---|---|---|---|
            | portreeve | resident memory | 10.0 MiB | 10.0 MiB … 10.0 MiB | ≤ 15 MiB | yes |

            ## `next`

            The search for the next run, without a cluster, by `cargo bench -p portreeve-cron`: the time of one search, as the median that criterion estimates. One round.

            | subject | measure | median | spread | target | met |
            |---|---|---|---|---|---|
            | portreeve | `*/5 * * * *` | 250 ns | 250 ns … 250 ns | ≤ 100 ns | **no** |

            What `*/5` does more in a zone with summer time than in UTC is to look up the zone's offset twice.

            ## What failed

            - round 1, due, peer: it ended
        "]]
        .assert_eq(measured);
    }
}
