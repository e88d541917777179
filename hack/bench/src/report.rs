//! The report in Markdown: a table for each family of rows, with one line for each measure. It
//! contains only what was measured.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::options::{Options, REST};
use crate::statistics::{Spread, Unit, Value, number, times, written};
use crate::tables::{Family, Row, Scenario, Subject, families, rows};

/// A value of a subject in one round.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) row: &'static Row,
    pub(crate) subject: Subject,
    pub(crate) value: Value,
}

/// The content of a report.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The machine and the software versions.
    pub(crate) machine: BTreeMap<&'static str, String>,
    /// The command line of the run.
    pub(crate) command: String,
    pub(crate) date: String,
    pub(crate) options: Options,
    pub(crate) samples: Vec<Sample>,
    pub(crate) failures: Vec<String>,
    /// The highest CPU usage of other programs before a measurement, as a share from 0 to 1.
    pub(crate) busiest: f64,
}

/// The cells of a line: one for each of `row`, `measure`, [`others`] and [`OURS`].
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
        for family in families() {
            let is_member = |row: &&Row| row.family == family.id;
            let rows: Vec<&Row> = self.rows().filter(is_member).collect();
            if !rows.is_empty() {
                blocks.push(format!("## {}", family.title));
                blocks.push(self.table(&rows));
                blocks.push(self.notes(family, &rows));
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
        let mut replacements = self.machine.clone();
        replacements.insert("busiest", format!("{:.0}", self.busiest * 100.0));
        replacements.insert("rest", REST.as_secs().to_string());
        let paragraphs = include_str!("intro.md").split("\n\n");
        let paragraphs = paragraphs.map(|text| wrapped(&replaced(text, &replacements), ""));
        paragraphs.collect::<Vec<_>>().join("\n\n")
    }

    /// Returns the rows that were measured, in the order of the report.
    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        rows().iter().filter(|row| self.of(row).next().is_some())
    }

    /// Returns the samples of a row.
    fn of<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(|sample| sample.row.id == row.id)
    }

    fn table(&self, rows: &[&Row]) -> String {
        let head = ["row", "measure"].map(str::to_owned).into_iter();
        let head = head.chain(others().map(Subject::heading));
        let head: Line = head.chain(OURS.map(str::to_owned)).collect();
        let lines: Vec<Line> = rows.iter().flat_map(|row| self.lines(row)).collect();
        let has = |column: &usize| lines.iter().any(|cells| cells[*column] != EMPTY);
        let columns: Vec<usize> = (0..head.len()).filter(has).collect();
        let written = |cells: &Line| {
            let cells: Vec<&str> = columns.iter().map(|column| cells[*column].as_str()).collect();
            format!("| {} |", cells.join(" | "))
        };
        let rule = format!("|{}", "---|".repeat(columns.len()));
        let table = [written(&head), rule].into_iter().chain(lines.iter().map(written));
        table.collect::<Vec<_>>().join("\n")
    }

    /// Returns a line for each measure of a row, in the order in which they were taken, and another
    /// one for each measure that was also taken with CronTabs.
    fn lines(&self, row: &Row) -> Vec<Line> {
        let mut measures: Vec<&Value> = Vec::new();
        for Sample { value, .. } in self.of(row) {
            if !measures.iter().any(|other| other.measure == value.measure) {
                measures.push(value);
            }
        }
        let mut lines = Vec::new();
        for value in measures {
            for is_crontab in [false, true] {
                let mut samples = self.of(row).filter(|sample| sample.value.measure == value.measure);
                if samples.any(|sample| (sample.subject == Subject::PortreeveCrontab) == is_crontab) {
                    lines.push(self.line(row, value, is_crontab));
                }
            }
        }
        lines
    }

    fn line(&self, row: &Row, Value { measure, unit, .. }: &Value, is_crontab: bool) -> Line {
        let ours = [Subject::Portreeve, Subject::PortreeveCrontab][usize::from(is_crontab)];
        let own = self.spread(row, ours, measure);
        let median = |subject, measure: &str| Some(self.spread(row, subject, measure)?.median);
        let others = others().map(|other| {
            let Some(theirs) = median(other, measure) else {
                return EMPTY.to_owned();
            };
            let is_comparable = !matches!(unit, Unit::Count | Unit::Ratio) && theirs > 0.0;
            let ratio = own.filter(|_| is_comparable).map(|own| times(own.median / theirs));
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio})"));
            format!("{}{ratio}", written(theirs, *unit))
        });
        let target = own.and_then(|own| Some((own, row.target(measure)?)));
        let met = target.and_then(|(own, target)| {
            let reference = |subject, other: Option<&str>| median(subject, other.unwrap_or(measure));
            target.is_met(own.median, number(self.options.count(row)), reference)
        });
        let or_empty = |text: Option<String>| text.unwrap_or_else(|| EMPTY.to_owned());
        let spread = own.filter(|own| own.least < own.most);
        let ours = [
            or_empty(own.map(|own| written(own.median, *unit))),
            or_empty(spread.map(|own| format!("{} … {}", written(own.least, *unit), written(own.most, *unit)))),
            or_empty(target.map(|(_, target)| target.text(*unit))),
            met.map_or(EMPTY, |met| if met { "yes" } else { MISSED }).to_owned(),
            format!("{} {}", self.machine["commit"], self.binary(row)),
        ];
        // Names of benchmarks are quoted, because they contain asterisks.
        let is_benchmark = matches!(row.scenario, Scenario::Part { .. });
        let quote = if is_benchmark { "`" } else { "" };
        let suffix = if is_crontab { ", CronTabs" } else { "" };
        let head = [format!("`{}`", row.id), format!("{quote}{measure}{quote}{suffix}")];
        head.into_iter().chain(others).chain(ours).collect()
    }

    fn spread(&self, row: &Row, subject: Subject, measure: &str) -> Option<Spread> {
        let is_it = |sample: &&Sample| sample.subject == subject && sample.value.measure == measure;
        Spread::of(self.of(row).filter(is_it).map(|sample| sample.value.number))
    }

    /// Returns the list below a table: the subjects, the methods, and the reasons of missed
    /// targets.
    fn notes(&self, family: &Family, rows: &[&Row]) -> String {
        let subjects = Subject::value_variants().iter().copied();
        let was_measured = |subject: &Subject| {
            let mut samples = rows.iter().flat_map(|row| self.of(row));
            samples.any(|sample| sample.subject == *subject)
        };
        let legend = |subject: Subject| (format!("**{}**", subject.heading()), family.legend(subject).to_owned());
        let legends = subjects.filter(was_measured).map(legend);
        let methods = rows.iter().map(|row| (format!("`{}`", row.id), self.method(row)));
        let missed = rows.iter().filter(|row| self.table(&[**row]).contains(MISSED));
        let reasons = missed.filter_map(|row| Some((format!("Missed by `{}`", row.id), row.missed.clone()?)));
        bullets(legends.chain(methods).chain(reasons))
    }

    /// Returns a description of how a row is measured.
    fn method(&self, row: &Row) -> String {
        let counts = rows().iter().map(|row| (&*row.id, self.options.count(row).to_string()));
        let mut replacements: BTreeMap<&str, String> = counts.collect();
        replacements.insert("concurrency", self.options.concurrency(row).to_string());
        replacements.insert("window", format!("{} s", self.options.quiet.as_secs()));
        replaced(row.method(), &replacements)
    }

    /// Returns a table of the commands and binaries, with the rows that were measured on them.
    fn runs(&self) -> String {
        let head = "| rows | binary | commit | date | rounds | command |\n|---|---|---|---|---|---|";
        let mut lines = vec![head.to_owned()];
        let (commit, date, rounds, command) = (&self.machine["commit"], &self.date, self.options.rounds, &self.command);
        let mut binaries: Vec<String> = self.rows().map(|row| self.binary(row)).collect();
        binaries.sort();
        binaries.dedup();
        for binary in binaries {
            let rows = self.rows().filter(|row| self.binary(row) == binary);
            let rows = rows.map(|row| format!("`{}`", row.id)).collect::<Vec<_>>().join(", ");
            let line = format!("| {rows} | {binary} | {commit} | {date} | {rounds} | `{command}` |");
            lines.push(line);
        }
        lines.join("\n")
    }

    /// Returns the name of the binary that a row was measured on: the folder of the daemon, or a
    /// program that needs no daemon.
    fn binary(&self, row: &Row) -> String {
        let daemon = &self.options.daemon;
        match row.scenario {
            Scenario::Part { .. } => "cargo bench".to_owned(),
            Scenario::Graph => "portreeve-bench".to_owned(),
            _ => {
                let folder = daemon.parent().and_then(|folder| folder.file_name());
                folder.unwrap_or(daemon.as_os_str()).to_string_lossy().into_owned()
            }
        }
    }
}

/// Returns the subjects that the daemon is compared with. Each has a column.
fn others() -> impl Iterator<Item = Subject> {
    let all = Subject::value_variants().iter().copied();
    all.filter(|subject| !subject.is_ours())
}

/// Replaces each `{name}` in a text.
fn replaced(text: &str, replacements: &BTreeMap<&str, String>) -> String {
    let replace = |text: String, (name, value): (&&str, &String)| text.replace(&format!("{{{name}}}"), value);
    replacements.iter().fold(text.to_owned(), replace)
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
    let item = |(labels, text): &(String, String)| wrapped(&format!("- {labels}: {text}"), "  ");
    merged.iter().map(item).collect::<Vec<_>>().join("\n")
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
