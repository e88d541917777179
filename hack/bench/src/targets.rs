//! The targets of the daemon. Pure.

use crate::rows::{Measure, Row, Subject};
use crate::statistics::{Unit, times, written};

/// A target for a measure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// At most this multiple of another subject's number.
    AtMost(f64, Subject),
    /// At most this multiple of the time in which the bare client creates the Deployments.
    OfDeployments(f64),
    /// At most this much, in seconds.
    Seconds(f64),
    /// At most this much, in MiB.
    Megabytes(f64),
    /// At most this much, in bytes.
    Bytes(f64),
    /// At least this rate per second.
    PerSecond(f64),
    /// At most this ratio.
    Times(f64),
    /// All schedules.
    All,
}

const TARGETS: &[(Row, Measure, Target)] = &[
    (Row::Due, Measure::P99, Target::AtMost(1.2, Subject::Floor)),
    (Row::Due, Measure::WithinTheMinute, Target::All),
    (Row::DueDefault, Measure::P99, Target::AtMost(1.2, Subject::Floor)),
    (Row::DueDefault, Measure::WithinTheMinute, Target::All),
    (Row::Memory500, Measure::Resident, Target::Megabytes(15.0)),
    (Row::Memory10000, Measure::Resident, Target::Megabytes(60.0)),
    (Row::Quiet, Measure::CpuTimeAnHour, Target::Seconds(1.0)),
    (Row::Handover, Measure::SignalToJob, Target::Seconds(0.5)),
    (Row::Handover, Measure::LeaseToJob, Target::Seconds(0.1)),
    // The lease duration, and 300 ms to take over.
    (Row::Crash, Measure::RenewalToJob, Target::Seconds(15.3)),
    (Row::Crash, Measure::LeaseToJob, Target::Seconds(0.1)),
    (Row::Standby, Measure::StandbyToLeader, Target::Times(1.0)),
    (
        Row::Cascade3000,
        Measure::DeleteToEnd,
        Target::AtMost(1.2, Subject::Floor),
    ),
    (Row::CascadeDefault, Measure::DeleteToEnd, Target::Seconds(1.0)),
    (
        Row::Foreground3000,
        Measure::DeleteToEnd,
        Target::AtMost(1.3, Subject::Floor),
    ),
    (
        Row::Orphan3000,
        Measure::DeleteToEnd,
        Target::AtMost(1.3, Subject::Floor),
    ),
    (Row::Orphan3000, Measure::Peak, Target::Megabytes(30.0)),
    (Row::MemoryEmpty, Measure::Resident, Target::Megabytes(13.0)),
    (Row::Memory30000, Measure::Resident, Target::Megabytes(20.0)),
    (Row::Memory5000Large, Measure::Resident, Target::Megabytes(15.0)),
    (Row::Graph, Measure::BytesANode, Target::Bytes(200.0)),
    (Row::Graph, Measure::AddedASecond, Target::PerSecond(500_000.0)),
    (Row::Graph, Measure::ChangedASecond, Target::PerSecond(500_000.0)),
    (Row::Graph, Measure::RemovedASecond, Target::PerSecond(500_000.0)),
    (
        Row::Foo1000,
        Measure::PostToDeployment,
        Target::AtMost(1.5, Subject::Floor),
    ),
    (Row::Foo1000, Measure::PostToStatus, Target::OfDeployments(2.5)),
    (Row::Foo1000, Measure::CpuTimeToEnd, Target::Seconds(0.45)),
    (Row::FooMemory, Measure::ResidentFirst, Target::Megabytes(15.0)),
    (Row::FooMemory, Measure::ResidentTenth, Target::Megabytes(15.0)),
    (Row::FooMemory, Measure::TenthToFirst, Target::Times(1.0)),
    (
        Row::Deployments50000,
        Measure::Resident,
        Target::AtMost(1.0 / 3.0, Subject::ControllerRuntime),
    ),
    (
        Row::Deployments50000,
        Measure::StartToWork,
        Target::AtMost(1.0, Subject::ControllerRuntime),
    ),
    (Row::Shell, Measure::Resident, Target::Megabytes(13.0)),
    (Row::Shell, Measure::StartToWork, Target::Seconds(0.3)),
    (Row::Shell, Measure::Binary, Target::Megabytes(15.0)),
];

/// The maximum time of a search for the next run, by the schedule in the benchmark's name: every
/// five minutes, 29 February, and 31 February, which never comes.
const SEARCHES: &[(&str, f64)] = &[("*/5 * * * *", 100e-9), ("0 0 29 2 *", 5e-6), ("0 0 31 2 *", 10e-6)];

/// The minimum rate per second of the benchmarks of a row.
const RATES: &[(Row, f64)] = &[(Row::Store, 100_000.0), (Row::Queue, 1_000_000.0)];

impl Target {
    /// Returns the target for a measure of a row, if there is one.
    pub(crate) fn of(row: Row, measure: &Measure) -> Option<Self> {
        if let Measure::Search(name) = measure {
            let (_, seconds) = SEARCHES.iter().find(|(schedule, _)| name.contains(schedule))?;
            return Some(Self::Seconds(*seconds));
        }
        if let Measure::Rate(_) = measure {
            let (_, rate) = RATES.iter().find(|(of, _)| *of == row)?;
            return Some(Self::PerSecond(*rate));
        }
        let mut targets = TARGETS.iter();
        let (_, _, target) = targets.find(|(of, what, _)| *of == row && what == measure)?;
        Some(*target)
    }

    /// Returns the text for the report.
    pub(crate) fn text(self) -> String {
        match self {
            Self::AtMost(factor, of) => format!("≤ {} {}", times(factor), of.name()),
            Self::OfDeployments(factor) => format!("≤ {} floor's Deployments", times(factor)),
            Self::Seconds(seconds) => format!("≤ {}", written(seconds, Unit::Seconds)),
            Self::Megabytes(megabytes) => format!("≤ {megabytes:.0} MiB"),
            Self::Bytes(bytes) => format!("≤ {}", written(bytes, Unit::Bytes)),
            Self::PerSecond(rate) => format!("≥ {}", written(rate, Unit::PerSecond)),
            Self::Times(factor) => format!("≤ {}", times(factor)),
            Self::All => "all".to_owned(),
        }
    }

    /// Returns whether `value` meets the target, or `None` when the number to compare with was not
    /// measured.
    ///
    /// `schedules` is the number of schedules of the row. `others` returns the number of a subject
    /// for a measure, where `None` is the measure of this target.
    pub(crate) fn is_met(
        self,
        value: f64,
        schedules: f64,
        others: impl FnOnce(Subject, Option<Measure>) -> Option<f64>,
    ) -> Option<bool> {
        match self {
            Self::AtMost(factor, of) => others(of, None).map(|other| value <= factor * other),
            Self::OfDeployments(factor) => {
                let deployments = others(Subject::Floor, Some(Measure::PostToDeployment));
                deployments.map(|deployments| value <= factor * deployments)
            }
            Self::Seconds(most) | Self::Bytes(most) | Self::Times(most) => Some(value <= most),
            Self::PerSecond(least) => Some(value >= least),
            Self::Megabytes(megabytes) => Some(value <= megabytes * 1024.0),
            Self::All => Some(value >= schedules),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_bound_and_unknown_without_a_reference() {
        let target = Target::of(Row::Due, &Measure::P99).unwrap();
        assert_eq!(target.text(), "≤ 1.20 × floor");
        assert_eq!(target.is_met(2.4, 0.0, |_, _| Some(2.0)), Some(true));
        assert_eq!(target.is_met(2.5, 0.0, |_, _| Some(2.0)), Some(false));
        assert_eq!(target.is_met(2.0, 0.0, |_, _| None), None);
        let memory = Target::of(Row::Memory500, &Measure::Resident).unwrap();
        assert_eq!(memory.text(), "≤ 15 MiB");
        assert_eq!(memory.is_met(15.0 * 1_024.0, 0.0, |_, _| None), Some(true));
        let all = Target::of(Row::Due, &Measure::WithinTheMinute).unwrap();
        assert_eq!(all.is_met(499.0, 500.0, |_, _| None), Some(false));
        assert_eq!(all.is_met(500.0, 500.0, |_, _| None), Some(true));
        let standby = Target::of(Row::Standby, &Measure::StandbyToLeader).unwrap();
        assert_eq!(standby.text(), "≤ 1.00 ×");
        assert_eq!(standby.is_met(1.01, 0.0, |_, _| None), Some(false));
        let rate = Target::of(Row::Graph, &Measure::AddedASecond).unwrap();
        assert_eq!(rate.text(), "≥ 500 k/s");
        assert_eq!(rate.is_met(499_999.0, 0.0, |_, _| None), Some(false));
        assert!(Target::of(Row::Due, &Measure::Max).is_none());
    }

    #[test]
    fn statuses_are_compared_with_the_deployments_of_the_bare_client() {
        let target = Target::of(Row::Foo1000, &Measure::PostToStatus).unwrap();
        assert_eq!(target.text(), "≤ 2.50 × floor's Deployments");
        let deployments = |subject, measure| {
            assert_eq!((subject, measure), (Subject::Floor, Some(Measure::PostToDeployment)));
            Some(2.0)
        };
        assert_eq!(target.is_met(5.0, 0.0, deployments), Some(true));
        assert_eq!(target.is_met(5.1, 0.0, deployments), Some(false));
        assert_eq!(target.is_met(5.0, 0.0, |_, _| None), None);
    }

    #[test]
    fn a_rate_has_the_target_of_its_part() {
        let rate = |row| Target::of(row, &Measure::Rate("one".to_owned())).map(Target::text);
        assert_eq!(rate(Row::Store).as_deref(), Some("≥ 100 k/s"));
        assert_eq!(rate(Row::Queue).as_deref(), Some("≥ 1.00 M/s"));
        assert_eq!(rate(Row::Next), None);
    }

    #[test]
    fn a_search_has_the_target_of_its_schedule() {
        let target = |name: &str| Target::of(Row::Next, &Measure::Search(name.to_owned()));
        let frequent = target("next/*/5 * * * * Europe/Berlin Once").unwrap();
        assert_eq!(frequent.text(), "≤ 100 ns");
        assert_eq!(frequent.is_met(99e-9, 0.0, |_, _| None), Some(true));
        assert_eq!(target("next/0 0 29 2 * UTC Once").unwrap().text(), "≤ 5.00 µs");
        assert_eq!(target("next/0 0 31 2 * UTC Once").unwrap().text(), "≤ 10.0 µs");
        assert!(target("next/30 2 * * * UTC Once").is_none());
    }
}
