//! The report in Markdown: a table with a line for each measure, and how each row is measured. It
//! contains only what was measured.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::options::{Options, REST};
use crate::schedules::WINDOW;
use crate::statistics::{Spread, Unit, Value, times, written};
use crate::tables::{Measure, Row, Subject, rows};

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

const HEAD: &str = "| row | measure | floor | peers, best first | portreeve | spread | target | met | commit |";
const RULE: &str = "|---|---|---|---|---|---|---|---|---|";
/// An empty cell.
const EMPTY: &str = "–";
/// The cell that marks a missed target.
const MISSED: &str = "**no**";
/// The width at which text wraps.
const WIDTH: usize = 100;

impl Report {
    /// Returns the whole report.
    pub(crate) fn render(&self) -> String {
        let rows: Vec<(&Row, Vec<String>)> = self.rows().map(|row| (row, self.lines(row))).collect();
        let lines = rows.iter().flat_map(|(_, lines)| lines.clone());
        let table = [HEAD.to_owned(), RULE.to_owned()].into_iter().chain(lines);
        let mut blocks = vec![
            "# Benchmarks".to_owned(),
            self.intro(),
            table.collect::<Vec<_>>().join("\n"),
            "## How each row is measured".to_owned(),
            bullets(self.rows().map(|row| (format!("`{}`", row.id), self.method(row)))),
        ];
        let missed = rows.iter().filter(|(_, lines)| lines.concat().contains(MISSED));
        let missed = missed.filter_map(|(row, _)| Some((format!("`{}`", row.id), row.missed.clone()?)));
        let missed = bullets(missed);
        if !missed.is_empty() {
            blocks.extend(["## What is missed, and why".to_owned(), missed]);
        }
        if !self.failures.is_empty() {
            let failures: Vec<String> = self.failures.iter().map(|failure| format!("- {failure}")).collect();
            blocks.extend(["## Failed measurements".to_owned(), failures.join("\n")]);
        }
        blocks.join("\n\n") + "\n"
    }

    fn intro(&self) -> String {
        let mut replacements = self.machine.clone();
        replacements.insert("busiest", format!("{:.0}", self.busiest * 100.0));
        replacements.insert("rest", REST.as_secs().to_string());
        replacements.insert("date", self.date.clone());
        replacements.insert("command", self.command.clone());
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

    /// Returns a line for each measure that the row shows, and another one if it was also taken
    /// with CronTabs.
    fn lines(&self, row: &Row) -> Vec<String> {
        let mut lines = Vec::new();
        for measure in &row.measures {
            for is_crontab in [false, true] {
                let mut samples = self.of(row).filter(|sample| sample.value.measure == measure.name);
                let found = samples.find(|sample| (sample.subject == Subject::PortreeveCrontab) == is_crontab);
                if let Some(sample) = found
                    && (is_crontab || self.has_line(row))
                {
                    lines.push(self.line(row, measure, sample.value.unit, is_crontab));
                }
            }
        }
        lines
    }

    /// Returns whether a row has a line without CronTabs: not if only CronTabs were measured beside
    /// others.
    fn has_line(&self, row: &Row) -> bool {
        let was_measured = |subject| self.of(row).any(|sample| sample.subject == subject);
        was_measured(Subject::Portreeve) || !was_measured(Subject::PortreeveCrontab)
    }

    fn line(&self, row: &Row, Measure { name, target }: &Measure, unit: Unit, is_crontab: bool) -> String {
        let ours = [Subject::Portreeve, Subject::PortreeveCrontab][usize::from(is_crontab)];
        let own = self.spread(row, ours, name);
        let median = |subject| Some(self.spread(row, subject, name)?.median);
        let compared = |theirs: f64| {
            let is_comparable = unit != Unit::Count && theirs > 0.0;
            let ratio = own.filter(|_| is_comparable).map(|own| times(own.median / theirs));
            let ratio = ratio.map_or_else(String::new, |ratio| format!(" ({ratio})"));
            format!("{}{ratio}", written(theirs, unit))
        };
        let peers = Subject::value_variants().iter().filter(|subject| subject.is_other());
        let mut peers: Vec<_> = peers.filter_map(|peer| Some((median(*peer)?, *peer))).collect();
        peers.sort_by(|(left, _), (right, _)| left.total_cmp(right));
        let peers = peers
            .iter()
            .map(|(number, peer)| format!("{}: {}", peer.title(), compared(*number)));
        let target = own.and_then(|own| Some((own, target.as_ref()?)));
        let met = target.and_then(|(own, target)| target.is_met(own.median, median));
        let spread = own.filter(|own| own.least < own.most);
        let suffix = if is_crontab { ", CronTabs" } else { "" };
        let or_empty = |text: Option<String>| text.unwrap_or_else(|| EMPTY.to_owned());
        let cells = [
            format!("`{}`", row.id),
            format!("{name}{suffix}"),
            or_empty(median(Subject::Floor).map(compared)),
            or_empty(peers.reduce(|all, peer| format!("{all}; {peer}"))),
            or_empty(own.map(|own| written(own.median, unit))),
            or_empty(spread.map(|own| format!("{} … {}", written(own.least, unit), written(own.most, unit)))),
            or_empty(target.map(|(_, target)| target.text(unit))),
            met.map_or(EMPTY, |met| if met { "yes" } else { MISSED }).to_owned(),
            self.machine["commit"].clone(),
        ];
        format!("| {} |", cells.join(" | "))
    }

    fn spread(&self, row: &Row, subject: Subject, measure: &str) -> Option<Spread> {
        let is_it = |sample: &&Sample| sample.subject == subject && sample.value.measure == measure;
        Spread::of(self.of(row).filter(is_it).map(|sample| sample.value.number))
    }

    /// Returns a description of how a row is measured.
    fn method(&self, row: &Row) -> String {
        let counts = rows().iter().map(|row| (&*row.id, self.options.count(row).to_string()));
        let mut replacements: BTreeMap<&str, String> = counts.collect();
        replacements.insert("window", format!("{} s", WINDOW.as_secs()));
        replaced(row.method(), &replacements)
    }
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
