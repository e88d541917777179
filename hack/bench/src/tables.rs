//! The rows of the report and the subjects, from `rows.yaml`.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::statistics::{Unit, times, written};

/// A program that does the work.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Subject {
    /// A bare client that only writes what the controllers must write
    Floor,
    /// kube-controller-manager with the controller of the row, or with all
    Peer,
    /// The same with the feature gate that makes it release its Lease on SIGTERM
    PeerRelease,
    /// A controller for Foos, or a webhook, on controller-runtime
    ControllerRuntime,
    /// A controller for Foos on kube-runtime
    KubeRuntime,
    /// The daemon with the controller of the row, or with all
    Portreeve,
    /// The daemon with its crontab-controller, on as many CronTabs
    PortreeveCrontab,
}

impl Subject {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the name in the report.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Peer => "kube-controller-manager".to_owned(),
            Self::PeerRelease => "kube-controller-manager releasing".to_owned(),
            _ => self.name(),
        }
    }

    /// Returns whether this is a bare client, which has no process to measure.
    pub(crate) fn is_floor(self) -> bool {
        self == Self::Floor
    }

    /// Returns whether this is the daemon, to which the targets apply.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Portreeve | Self::PortreeveCrontab)
    }

    /// Returns whether this is a program of somebody else.
    pub(crate) fn is_other(self) -> bool {
        !self.is_floor() && !self.is_ours()
    }

    /// Returns whether this is kube-controller-manager.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Peer | Self::PeerRelease)
    }
}

/// Rows in which the subjects run the same controllers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Family {
    id: String,
    /// The controllers that run, or `None` for all.
    pub(crate) controller: Option<String>,
    /// The flag for the number of objects that the controller works on at a time.
    #[serde(default)]
    pub(crate) concurrency_flag: String,
}

/// A row: one workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The name on the command line and in the report.
    pub(crate) id: String,
    help: String,
    family: String,
    /// The name of the description of how the row is measured.
    method: String,
    pub(crate) scenario: Scenario,
    /// The number of schedules, dependents or other objects.
    #[serde(default)]
    pub(crate) count: usize,
    /// The number of owners that the dependents have.
    #[serde(default = "one")]
    pub(crate) owners: usize,
    /// The number of Pods that exist before the start.
    #[serde(default)]
    pub(crate) pods: usize,
    /// The number of objects that a subject with lifted limits works on at a time.
    #[serde(default)]
    pub(crate) concurrency: u16,
    /// Whether the client-side limits of the controllers are lifted.
    #[serde(default)]
    pub(crate) lifted: bool,
    pub(crate) subjects: Vec<Subject>,
    /// How often each subject is measured.
    #[serde(default = "one")]
    pub(crate) rounds: u16,
    /// An estimate of how long the measurement of a subject takes.
    pub(crate) seconds: u64,
    /// What the report shows of what is measured.
    pub(crate) measures: Vec<Measure>,
    /// The reason why the row misses a target, as profiles have shown.
    pub(crate) missed: Option<String>,
}

fn one<T: From<u8>>() -> T {
    T::from(1)
}

/// A measure that the report shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measure {
    pub(crate) name: String,
    pub(crate) target: Option<Target>,
}

/// A procedure that measures a row.
#[derive(Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    Due,
    DueAgain,
    Outage,
    Idle,
    Handover,
    Crash,
    Cascade(Propagation),
    Namespaces { objects: usize },
    NamespacesAtRest { objects: usize },
    Everything,
    Burst,
    Start,
    Connections,
    Tenants,
    Admission,
    Conversion,
    Testenv,
    GoTests,
}

/// A version of CronTabs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Version {
    V1,
    V2,
}

impl Version {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        }
    }

    /// Returns the other one of the two versions.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::V1 => Self::V2,
            Self::V2 => Self::V1,
        }
    }
}

/// The policy by which an owner is deleted.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Propagation {
    Background,
    Foreground,
}

/// A target for a measure of the daemon. Numbers have the unit of the measure.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Target {
    AtMost(f64),
    Mebibytes(f64),
    /// At most this multiple of another subject's number.
    Times {
        factor: f64,
        of: Subject,
    },
}

impl Target {
    /// Returns the text for the report.
    pub(crate) fn text(&self, unit: Unit) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", written(*most, unit)),
            Self::Mebibytes(most) => format!("≤ {most:.0} MiB"),
            Self::Times { factor, of } => format!("≤ {} {}", times(*factor), of.name()),
        }
    }

    /// Returns whether `value` meets the target, or `None` when the number to compare with was not
    /// measured. `others` returns a subject's number for the measure.
    pub(crate) fn is_met(&self, value: f64, others: impl FnOnce(Subject) -> Option<f64>) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(value <= *most),
            Self::Mebibytes(most) => Some(value <= most * 1024.0),
            Self::Times { factor, of } => others(*of).map(|other| value <= factor * other),
        }
    }
}

impl Row {
    pub(crate) fn family(&self) -> Result<&'static Family> {
        let mut families = TABLES.families.iter();
        let family = families.find(|family| family.id == self.family);
        family.with_context(|| format!("{} has no family", self.id))
    }

    /// Returns the description of how the row is measured, without replacements.
    pub(crate) fn method(&self) -> &'static str {
        TABLES.methods.get(&self.method).map_or("", String::as_str)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    families: Vec<Family>,
    methods: BTreeMap<String, String>,
    rows: Vec<Row>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| parsed(include_str!("rows.yaml")));

/// Parses a data file.
#[expect(
    clippy::expect_used,
    reason = "the files are a part of the program, and tests read them"
)]
pub(crate) fn parsed<T: DeserializeOwned>(yaml: &str) -> T {
    serde_saphyr::from_str(yaml).expect("the file has the structure of the type")
}

/// Returns all rows, in the order in which they are measured.
pub(crate) fn rows() -> &'static [Row] {
    &TABLES.rows
}

/// Returns the row with a name.
pub(crate) fn row(id: &str) -> Option<&'static Row> {
    rows().iter().find(|row| row.id == id)
}

/// Returns a parser for the name of a row on the command line.
pub(crate) fn row_parser() -> impl TypedValueParser<Value = &'static Row> {
    let names = rows().iter().map(|row| PossibleValue::new(&*row.id).help(&*row.help));
    PossibleValuesParser::new(names).try_map(|id| row(&id).context("there is no such row"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_bound_and_unknown_without_a_reference() {
        let target = |id: &str, measure: &str| {
            let measures = row(id).unwrap().measures.iter();
            let mut targets = measures.filter(|shown| shown.name == measure);
            targets.next().unwrap().target.as_ref().unwrap()
        };
        let p99 = target("due", "p99");
        assert_eq!(p99.text(Unit::Seconds), "≤ 1.20 × floor");
        assert_eq!(p99.is_met(2.4, |_| Some(2.0)), Some(true));
        assert_eq!(p99.is_met(2.5, |_| Some(2.0)), Some(false));
        assert_eq!(p99.is_met(2.0, |_| None), None);
        let memory = target("shell", "resident memory");
        assert_eq!(memory.text(Unit::Kibibytes), "≤ 16 MiB");
        assert_eq!(memory.is_met(16.0 * 1024.0, |_| None), Some(true));
        let outage = target("outage", "ready to Job");
        assert_eq!(outage.is_met(1.1, |_| None), Some(false));
    }
}
