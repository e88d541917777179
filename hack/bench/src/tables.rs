//! The rows and families of the report and the subjects, from `rows.yaml`.
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
    /// A bare client that also writes the status of the owner of each Job or Deployment
    FloorStatus,
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

    /// Returns the heading of the subject's column.
    pub(crate) fn heading(self) -> String {
        match self {
            Self::Peer => "kube-controller-manager".to_owned(),
            Self::PeerRelease => "kube-controller-manager releasing".to_owned(),
            Self::PortreeveCrontab => "portreeve, CronTabs".to_owned(),
            _ => self.name(),
        }
    }

    /// Returns whether this is a bare client, which has no process to measure.
    pub(crate) fn is_floor(self) -> bool {
        matches!(self, Self::Floor | Self::FloorStatus)
    }

    /// Returns whether this is the daemon, to which the targets apply.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Portreeve | Self::PortreeveCrontab)
    }

    /// Returns whether this is kube-controller-manager.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Peer | Self::PeerRelease)
    }
}

/// A table of the report: rows with controllers that do the same.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Family {
    pub(crate) id: String,
    pub(crate) title: String,
    /// The controller that runs, or `None` for all.
    pub(crate) controller: Option<String>,
    /// The flag for the number of objects that the controller works on at a time.
    #[serde(default)]
    pub(crate) concurrency_flag: String,
    /// Descriptions of what subjects run.
    legends: Vec<(Vec<Subject>, String)>,
}

impl Family {
    /// Returns a description of what a subject runs.
    pub(crate) fn legend(&self, subject: Subject) -> &str {
        let legend = self.legends.iter().find(|(subjects, _)| subjects.contains(&subject));
        legend.map_or("", |(_, text)| text)
    }
}

/// A row: one workload.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The name on the command line and in the report.
    pub(crate) id: String,
    help: String,
    pub(crate) family: String,
    /// The name of the description of how the row is measured.
    method: String,
    pub(crate) scenario: Scenario,
    /// The number of schedules, dependents or other objects.
    #[serde(default)]
    pub(crate) count: usize,
    /// Whether each dependent has its own owner and namespace.
    #[serde(default)]
    pub(crate) spread: bool,
    /// The number of definitions of custom resources that exist before the start.
    #[serde(default)]
    pub(crate) definitions: usize,
    /// The number of objects that a subject with lifted limits works on at a time.
    #[serde(default)]
    pub(crate) concurrency: u16,
    /// Whether the client-side limits of the controllers are lifted.
    #[serde(default)]
    pub(crate) lifted: bool,
    pub(crate) subjects: Vec<Subject>,
    /// An estimate of how long the measurement of a subject takes.
    pub(crate) seconds: u64,
    /// The targets by measure.
    #[serde(default)]
    pub(crate) targets: BTreeMap<String, Target>,
    /// The reason why the row misses a target, as profiles have shown.
    pub(crate) missed: Option<String>,
}

/// A procedure that measures a row.
#[derive(Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    Due,
    DueAgain,
    DueV2,
    Outage,
    Idle,
    Quiet,
    Scrapes,
    Handover,
    Crash,
    Standby,
    Cascade(Propagation),
    Load { bytes: usize },
    Definitions,
    Namespaces { objects: usize },
    NamespacesAtRest { objects: usize },
    Everything,
    Burst,
    Rounds,
    Start,
    Connections,
    Tenants,
    Admission,
    Conversion { stored: Version },
    Testenv,
    GoTests,
    Graph,
    Part { package: String },
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
    Orphan,
}

/// A target for a measure of the daemon. Numbers have the unit of the measure.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    Mebibytes(f64),
    /// At most this multiple of another subject's number, by default for the same measure.
    Times {
        factor: f64,
        of: Subject,
        measure: Option<String>,
        /// The name of the other number, if it is not that of the subject.
        name: Option<String>,
    },
    /// As many as the row has objects.
    All,
}

impl Target {
    /// Returns the text for the report.
    pub(crate) fn text(&self, unit: Unit) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", written(*most, unit)),
            Self::AtLeast(least) => format!("≥ {}", written(*least, unit)),
            Self::Mebibytes(most) => format!("≤ {most:.0} MiB"),
            Self::Times { factor, of, name, .. } => {
                format!("≤ {} {}", times(*factor), name.clone().unwrap_or_else(|| of.name()))
            }
            Self::All => "all".to_owned(),
        }
    }

    /// Returns whether `value` meets the target, or `None` when the number to compare with was not
    /// measured. `count` is the row's number of objects. `others` returns a subject's number for a
    /// measure, where `None` is the measure of this target.
    pub(crate) fn is_met(
        &self,
        value: f64,
        count: f64,
        others: impl FnOnce(Subject, Option<&str>) -> Option<f64>,
    ) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(value <= *most),
            Self::AtLeast(least) => Some(value >= *least),
            Self::Mebibytes(most) => Some(value <= most * 1024.0),
            Self::Times {
                factor, of, measure, ..
            } => others(*of, measure.as_deref()).map(|other| value <= factor * other),
            Self::All => Some(value >= count),
        }
    }
}

impl Row {
    pub(crate) fn family(&self) -> Result<&'static Family> {
        let mut families = families().iter();
        let family = families.find(|family| family.id == self.family);
        family.with_context(|| format!("{} has no family", self.id))
    }

    /// Returns the description of how the row is measured, without replacements.
    pub(crate) fn method(&self) -> &'static str {
        TABLES.methods.get(&self.method).map_or("", String::as_str)
    }

    /// Returns the target for a measure. The name of a benchmark contains its group and a slash;
    /// its target names only a part of it.
    pub(crate) fn target(&self, measure: &str) -> Option<&Target> {
        let is_of = |name: &str| measure == name || measure.contains('/') && measure.contains(name);
        let mut targets = self.targets.iter();
        targets.find(|(name, _)| is_of(name)).map(|(_, target)| target)
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

/// Returns all families, in the order of the report.
pub(crate) fn families() -> &'static [Family] {
    &TABLES.families
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
        let target = |id: &str, measure: &str| row(id).unwrap().target(measure).unwrap();
        let p99 = target("due", "p99");
        assert_eq!(p99.text(Unit::Seconds), "≤ 1.20 × floor");
        assert_eq!(p99.is_met(2.4, 0.0, |_, _| Some(2.0)), Some(true));
        assert_eq!(p99.is_met(2.5, 0.0, |_, _| Some(2.0)), Some(false));
        assert_eq!(p99.is_met(2.0, 0.0, |_, _| None), None);
        let memory = target("memory-500", "resident memory");
        assert_eq!(memory.text(Unit::Kibibytes), "≤ 15 MiB");
        assert_eq!(memory.is_met(15.0 * 1024.0, 0.0, |_, _| None), Some(true));
        let all = target("due", "made within the minute");
        assert_eq!(all.is_met(499.0, 500.0, |_, _| None), Some(false));
        assert_eq!(target("graph", "objects added").text(Unit::PerSecond), "≥ 500 k/s");
        let status = target("foo-1000", "first POST to last status");
        assert_eq!(status.text(Unit::Seconds), "≤ 2.50 × floor's Deployments");
        let search = target("next", "next/*/5 * * * * Europe/Berlin Once");
        assert_eq!(search.text(Unit::Seconds), "≤ 100 ns");
        assert!(row("due").unwrap().target("max").is_none());
        assert!(row("next").unwrap().target("next/30 2 * * * UTC Once").is_none());
    }
}
