//! The report in Markdown: a table for each task, with one line for each measure. Pure: it contains
//! only what was measured.

use clap::ValueEnum;

use crate::legend::{description, heading};
use crate::limits::reason;
use crate::machine::Machine;
use crate::methods::method;
use crate::options::Options;
use crate::plan::REST;
use crate::rows::{Measure, Row, Sample, Subject, Task};
use crate::statistics::{Spread, ratio, times, written};
use crate::targets::Target;

/// The content of a report.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// The command line of the run.
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) options: Options,
    /// The number of schedules that are synced at a time in the row `due`.
    pub(crate) concurrency: u16,
    /// The same in the row `due-default`.
    pub(crate) default_concurrency: u16,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<String>,
    /// The highest CPU usage of other programs before a measurement, as a share from 0 to 1.
    pub(crate) busiest: f64,
}

/// The subjects that the daemon is compared with. Each has a column.
const OTHERS: [Subject; 6] = [
    Subject::Floor,
    Subject::FloorStatus,
    Subject::Peer,
    Subject::PeerRelease,
    Subject::ControllerRuntime,
    Subject::KubeRuntime,
];
/// The cells of a line: one for each of `row`, `measure`, [`OTHERS`] and [`OURS`].
type Line = Vec<String>;
/// The columns after those of the other subjects.
const OURS: [&str; 5] = ["portreeve", "spread", "target", "met", "measured on"];
/// An empty cell. A column of empty cells is left out.
const EMPTY: &str = "–";
/// The cell that marks a missed target.
const MISSED: &str = "**no**";
/// The width at which text wraps.
const WIDTH: usize = 100;

impl Report {
    /// Returns the whole report.
    pub(crate) fn render(&self) -> String {
        let mut blocks = vec!["# Benchmarks".to_owned(), self.intro()];
        for task in Task::ALL {
            let rows: Vec<Row> = self.rows().into_iter().filter(|row| row.task() == task).collect();
            if !rows.is_empty() {
                blocks.push(format!("## {}", task.title()));
                blocks.push(self.table(&rows));
                blocks.push(self.notes(task, &rows));
            }
        }
        blocks.push("## Runs".to_owned());
        blocks.push(self.runs());
        if !self.failures.is_empty() {
            let failures: Vec<String> = self.failures.iter().map(|failure| format!("- {failure}")).collect();
            blocks.push("## Failed measurements".to_owned());
            blocks.push(failures.join("\n"));
        }
        blocks.join("\n\n") + "\n"
    }

    fn intro(&self) -> String {
        let Machine {
            cores,
            cpu,
            memory,
            kernel,
            kubernetes,
            etcd,
            rustc,
            commit: _,
        } = &self.machine;
        let (rest, busiest) = (REST.as_secs(), self.busiest * 100.0);
        let paragraphs = [
            format!(
                "`make bench` writes this file. It measures Portreeve beside kube-controller-manager, equal controllers on other frameworks, \
                 and a bare client, in turn on one machine: {cores} cores of {cpu}, {memory} of memory, {kernel}; Kubernetes {kubernetes}, \
                 etcd {etcd}, rustc {rustc}. Other programs had at most {busiest:.0} % of the CPU time in the second before each \
                 measurement. Each measurement has a fresh etcd and kube-apiserver, which share the machine with the subject."
            ),
            format!(
                "A cell is the median of all rounds. The ratio in it is Portreeve's median divided by this one. Resident memory is \
                 `VmRSS` after {rest} s of rest, once it has stayed within 1 % for ten seconds; peak memory is `VmHWM`. A target in MB is \
                 taken as MiB. *Lifted limits* are kube-controller-manager's `--kube-api-qps=5000 \
                 --kube-api-burst=10000`."
            ),
        ];
        paragraphs.map(|paragraph| wrapped(&paragraph, "")).join("\n\n")
    }

    /// Returns the rows that were measured, in the order of the report.
    fn rows(&self) -> Vec<Row> {
        let rows = Row::value_variants().iter().copied();
        rows.filter(|row| self.samples.iter().any(|sample| sample.row == *row))
            .collect()
    }

    fn table(&self, rows: &[Row]) -> String {
        let head = ["row", "measure"].map(str::to_owned).into_iter();
        let head: Line = head.chain(OTHERS.map(heading)).chain(OURS.map(str::to_owned)).collect();
        let lines: Vec<Line> = rows.iter().flat_map(|row| self.lines(*row)).collect();
        let has = |column: &usize| lines.iter().any(|cells| cells[*column] != EMPTY);
        let columns: Vec<usize> = (0..head.len()).filter(has).collect();
        let written = |cells: &[String]| {
            let cells: Vec<&str> = columns.iter().map(|column| cells[*column].as_str()).collect();
            format!("| {} |", cells.join(" | "))
        };
        let rule = format!("|{}", "---|".repeat(columns.len()));
        let lines = lines.iter().map(|cells| written(cells));
        [written(&head), rule]
            .into_iter()
            .chain(lines)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Returns a line for each measure of a row, in the order in which they were taken, and another
    /// one for each measure that was also taken with CronTabs.
    fn lines(&self, row: Row) -> Vec<Line> {
        let crontab = Subject::PortreeveCrontab;
        let samples = || self.samples.iter().filter(|sample| sample.row == row);
        let mut measures: Vec<&Measure> = Vec::new();
        for sample in samples() {
            if !measures.contains(&&sample.measure) {
                measures.push(&sample.measure);
            }
        }
        let keys = measures
            .into_iter()
            .flat_map(|measure| [Subject::Portreeve, crontab].map(|ours| (measure, ours)));
        keys.filter(|(measure, ours)| {
            samples().any(|sample| sample.measure == **measure && (sample.subject == crontab) == (*ours == crontab))
        })
        .map(|(measure, ours)| self.line(row, measure, ours))
        .collect()
    }

    fn line(&self, row: Row, measure: &Measure, ours: Subject) -> Line {
        let unit = measure.unit();
        let own = self.spread(row, ours, measure);
        let median = |subject, measure: &Measure| Some(self.spread(row, subject, measure)?.median);
        let others = OTHERS.map(|other| {
            let Some(theirs) = median(other, measure) else {
                return EMPTY.to_owned();
            };
            let ratio = own
                .filter(|_| measure.is_comparable())
                .and_then(|own| ratio(own.median, theirs));
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({})", times(ratio)));
            format!("{}{ratio}", written(theirs, unit))
        });
        let target = own.and_then(|own| Some((own, Target::of(row, measure)?)));
        let count = f64::from(u32::try_from(self.options.count(row)).unwrap_or(u32::MAX));
        let met = target.and_then(|(own, target)| {
            target.is_met(own.median, count, |subject, other| {
                median(subject, other.as_ref().unwrap_or(measure))
            })
        });
        let or_empty = |text: Option<String>| text.unwrap_or_else(|| EMPTY.to_owned());
        let spread = own.filter(|own| own.least < own.most);
        let head = [format!("`{}`", row.name()), cell(measure, ours)];
        let ours = [
            or_empty(own.map(|own| written(own.median, unit))),
            or_empty(spread.map(|own| format!("{} … {}", written(own.least, unit), written(own.most, unit)))),
            or_empty(target.map(|(_, target)| target.text())),
            met.map_or(EMPTY, |met| if met { "yes" } else { MISSED }).to_owned(),
            format!("{} {}", self.machine.commit, self.binary(row)),
        ];
        head.into_iter().chain(others).chain(ours).collect()
    }

    fn spread(&self, row: Row, subject: Subject, measure: &Measure) -> Option<Spread> {
        let samples = self.samples.iter();
        let of = samples.filter(|sample| sample.row == row && sample.subject == subject && sample.measure == *measure);
        Spread::of(of.map(|sample| sample.value))
    }

    /// Returns the list below a table: the subjects, the methods, and the reasons of missed
    /// targets.
    fn notes(&self, task: Task, rows: &[Row]) -> String {
        let subjects = Subject::value_variants().iter().copied();
        let was_measured = |subject: &Subject| {
            let mut samples = self.samples.iter();
            samples.any(|sample| sample.subject == *subject && sample.row.task() == task)
        };
        let subjects = subjects.filter(was_measured);
        let subjects = subjects.map(|subject| {
            (
                format!("**{}**", heading(subject)),
                description(task, subject).to_owned(),
            )
        });
        let (lifted, default) = (self.concurrency, self.default_concurrency);
        let methods = rows.iter().map(|row| {
            let method = method(*row, &self.options, lifted, default);
            (format!("`{}`", row.name()), method)
        });
        let missed = rows.iter().filter(|row| self.table(&[**row]).contains(MISSED));
        let reasons = missed.filter_map(|row| Some((format!("Missed by `{}`", row.name()), reason(*row)?.to_owned())));
        bullets(subjects.chain(methods).chain(reasons))
    }

    /// Returns a table of the commands and binaries, with the rows that were measured on them.
    fn runs(&self) -> String {
        let head = "| rows | binary | commit | date | rounds | command |\n|---|---|---|---|---|---|";
        let mut lines = vec![head.to_owned()];
        let (commit, date, rounds) = (&self.machine.commit, &self.date, self.options.rounds);
        let mut binaries: Vec<String> = self.rows().into_iter().map(|row| self.binary(row)).collect();
        binaries.sort();
        binaries.dedup();
        for binary in binaries {
            let rows = self.rows().into_iter().filter(|row| self.binary(*row) == binary);
            let rows: Vec<String> = rows.map(|row| format!("`{}`", row.name())).collect();
            let command = &self.command;
            lines.push(format!(
                "| {} | {binary} | {commit} | {date} | {rounds} | `{command}` |",
                rows.join(", ")
            ));
        }
        lines.join("\n")
    }

    /// Returns the name of the binary that a row was measured on: the folder of the daemon, or a
    /// program that needs no daemon.
    fn binary(&self, row: Row) -> String {
        let daemon = &self.options.daemon;
        match row {
            Row::Next | Row::Store | Row::Queue => "cargo bench".to_owned(),
            Row::Graph => "portreeve-bench".to_owned(),
            _ => {
                let folder = daemon.parent().and_then(|folder| folder.file_name());
                folder.unwrap_or(daemon.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }
}

/// Returns the cell for the name of a measure. Names of benchmarks are quoted, because they contain
/// asterisks.
fn cell(measure: &Measure, ours: Subject) -> String {
    let name = match measure {
        Measure::Search(benchmark) | Measure::Rate(benchmark) => format!("`{}`", benchmark.replace('|', "/")),
        _ => measure.name().to_owned(),
    };
    if ours == Subject::PortreeveCrontab {
        format!("{name}, CronTabs")
    } else {
        name
    }
}

/// Returns a list of labels and texts, in which labels of equal texts share an item.
fn bullets(items: impl Iterator<Item = (String, String)>) -> String {
    let mut merged: Vec<(String, String)> = Vec::new();
    for (label, text) in items {
        if let Some((labels, _)) = merged.iter_mut().find(|(_, other)| *other == text) {
            *labels = format!("{labels}, {label}");
        } else {
            merged.push((label, text));
        }
    }
    let items = merged
        .iter()
        .map(|(labels, text)| wrapped(&format!("- {labels}: {text}"), "  "));
    items.collect::<Vec<_>>().join("\n")
}

/// Wraps a text between words. Lines after the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width + 1 + length > WIDTH {
            lines = format!("{lines}\n{indent}{word}");
            width = indent.len() + length;
        } else {
            let space = if width == 0 { "" } else { " " };
            lines = format!("{lines}{space}{word}");
            width += space.len() + length;
        }
    }
    lines
}

#[cfg(test)]
mod tests;
