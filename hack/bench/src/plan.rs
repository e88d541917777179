//! The order of the measurements, and estimates of the remaining time. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::options::Options;
use crate::rows::{Row, Subject};

/// How long a controller is left idle before its memory is measured. An idle Go runtime collects
/// garbage every two minutes, and only then returns the memory that it used at the start.
pub(crate) const REST: Duration = Duration::from_secs(150);

/// One measurement of one subject in one round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Step {
    pub(crate) round: u16,
    pub(crate) work: Work,
    pub(crate) subject: Subject,
}

/// A measurement, regardless of subject and round. Each uses its own control plane, except that
/// `Graph` needs none and the subjects of a round share that of `Fleet`. `Idle` measures the rows
/// `memory-10000` and `quiet` with the same objects.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Work {
    Due { row: Row },
    Idle { row: Row, window: Option<Duration> },
    Failover { row: Row },
    Standby,
    Cascade { row: Row },
    Load { row: Row },
    Graph,
    Burst,
    Rounds,
    Fleet,
    Shell,
}

impl Work {
    pub(crate) fn row(self) -> Row {
        match self {
            Self::Due { row }
            | Self::Idle { row, window: _ }
            | Self::Failover { row }
            | Self::Cascade { row }
            | Self::Load { row } => row,
            Self::Standby => Row::Standby,
            Self::Graph => Row::Graph,
            Self::Burst => Row::Foo1000,
            Self::Rounds => Row::FooMemory,
            Self::Fleet => Row::Deployments50000,
            Self::Shell => Row::Shell,
        }
    }

    /// Returns whether a subject takes part in the measurement.
    fn includes(self, subject: Subject) -> bool {
        let reconciles_foos = subject.is_built() || subject == Subject::Portreeve;
        match self {
            Self::Burst => reconciles_foos || subject.is_floor(),
            Self::Rounds | Self::Fleet => reconciles_foos,
            Self::Shell => reconciles_foos || subject == Subject::Peer,
            _ if subject.is_built() => false,
            // With default flags, crontab-controller runs as in the row `due`.
            Self::Due { row: Row::DueDefault } => !matches!(subject, Subject::PortreeveCrontab | Subject::PeerRelease),
            Self::Due { row: _ } => subject != Subject::PeerRelease,
            Self::Idle { .. } => !subject.is_floor() && subject != Subject::PeerRelease,
            // A killed leader releases nothing, so `Crash` omits PeerRelease, which would equal
            // Peer.
            Self::Failover { row: Row::Handover } => {
                matches!(subject, Subject::Peer | Subject::PeerRelease | Subject::Portreeve)
            }
            Self::Failover { row: _ } | Self::Standby | Self::Load { row: _ } => {
                matches!(subject, Subject::Peer | Subject::Portreeve)
            }
            Self::Cascade { row: _ } => matches!(subject, Subject::Floor | Subject::Peer | Subject::Portreeve),
            Self::Graph => matches!(subject, Subject::Floor | Subject::Portreeve),
        }
    }

    /// Returns an estimate for a measurement that was not taken before in this run.
    fn default_estimate(self, subject: Subject) -> Duration {
        match self {
            Self::Due { row: _ } if subject.is_floor() => Duration::from_secs(30),
            Self::Due { row: _ } => Duration::from_secs(75),
            Self::Idle {
                row: Row::Memory500, ..
            } => REST + Duration::from_secs(20),
            Self::Idle { row: _, window } => Duration::from_secs(90) + window.unwrap_or_default().max(REST),
            Self::Failover { row } => {
                let each = match (row, subject) {
                    (Row::Handover, Subject::PeerRelease) => 10,
                    (Row::Handover, Subject::Portreeve) => 8,
                    _ => 25,
                };
                Duration::from_secs(20) + Duration::from_secs(each) * turns(row, subject)
            }
            Self::Standby | Self::Shell => REST + Duration::from_secs(30),
            Self::Cascade {
                row: Row::CascadeDefault,
            } if subject == Subject::Peer => Duration::from_secs(80),
            Self::Cascade { row: _ } | Self::Burst => Duration::from_secs(30),
            Self::Load { row: Row::Memory30000 } => REST + Duration::from_secs(90),
            Self::Load { row: _ } => REST + Duration::from_secs(40),
            Self::Graph => Duration::from_secs(20),
            Self::Rounds => REST * 2 + Duration::from_mins(2),
            Self::Fleet => REST + Duration::from_mins(1),
        }
    }
}

/// Returns the number of takeovers in a round. There are fewer when the standby has to wait until
/// the Lease expires.
pub(crate) fn turns(row: Row, subject: Subject) -> u32 {
    match (row, subject) {
        (Row::Handover, Subject::PeerRelease | Subject::Portreeve) => 7,
        _ => 2,
    }
}

/// Returns the measurements in order. The subjects take turns within each round, so that changes of
/// the machine affect all of them.
pub(crate) fn steps(options: &Options, subjects: &[Subject]) -> Vec<Step> {
    let window = options.has(Row::Quiet).then_some(options.quiet);
    let mut all_work = Vec::new();
    for row in [Row::Due, Row::DueDefault] {
        all_work.extend(options.has(row).then_some(Work::Due { row }));
    }
    let (row, window_of_500) = (Row::Memory500, None);
    all_work.extend(options.has(row).then_some(Work::Idle {
        row,
        window: window_of_500,
    }));
    let row = Row::Memory10000;
    all_work.extend((options.has(row) || window.is_some()).then_some(Work::Idle { row, window }));
    for row in [Row::Handover, Row::Crash] {
        all_work.extend(options.has(row).then_some(Work::Failover { row }));
    }
    all_work.extend(options.has(Row::Standby).then_some(Work::Standby));
    for row in [
        Row::Cascade3000,
        Row::CascadeDefault,
        Row::Foreground3000,
        Row::Orphan3000,
    ] {
        all_work.extend(options.has(row).then_some(Work::Cascade { row }));
    }
    for row in [Row::MemoryEmpty, Row::Memory30000, Row::Memory5000Large] {
        all_work.extend(options.has(row).then_some(Work::Load { row }));
    }
    all_work.extend(options.has(Row::Graph).then_some(Work::Graph));
    for work in [Work::Burst, Work::Rounds, Work::Shell, Work::Fleet] {
        all_work.extend(options.has(work.row()).then_some(work));
    }

    let mut steps = Vec::new();
    for round in 1..=options.rounds {
        for work in all_work.iter().copied() {
            let subjects = subjects.iter().copied().filter(|subject| work.includes(*subject));
            steps.extend(subjects.map(|subject| Step { round, work, subject }));
        }
    }
    steps
}

/// The time that each measurement of a subject took the last time.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurationEstimates(BTreeMap<(Work, Subject), Duration>);

impl DurationEstimates {
    pub(crate) fn took(&mut self, step: &Step, duration: Duration) {
        self.0.insert((step.work, step.subject), duration);
    }

    /// Returns the estimated time of these steps.
    pub(crate) fn estimate(&self, steps: &[Step]) -> Duration {
        let of = |step: &Step| self.0.get(&(step.work, step.subject)).copied();
        steps
            .iter()
            .map(|step| of(step).unwrap_or_else(|| step.work.default_estimate(step.subject)))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(args: &[&str]) -> Vec<String> {
        let options = Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap();
        let written = |step: &Step| {
            let window = match step.work {
                Work::Idle {
                    window: Some(window), ..
                } => format!(" and {window:?} of quiet"),
                _ => String::new(),
            };
            let (row, subject) = (step.work.row().name(), step.subject.name());
            format!("{} {row}{window}: {subject}", step.round)
        };
        steps(&options, &options.subjects()).iter().map(written).collect()
    }

    #[test]
    fn subjects_take_turns_in_each_round() {
        assert_eq!(
            plan(&["--rounds=2", "--only=due", "--subjects=peer,floor"]),
            ["1 due: floor", "1 due: peer", "2 due: floor", "2 due: peer"]
        );
    }

    #[test]
    fn a_full_round_measures_memory_and_quiet_with_the_same_schedules() {
        assert_eq!(
            plan(&["--rounds=1"])[..42],
            [
                "1 due: floor",
                "1 due: floor-status",
                "1 due: peer",
                "1 due: portreeve",
                "1 due: portreeve-crontab",
                "1 due-default: floor",
                "1 due-default: floor-status",
                "1 due-default: peer",
                "1 due-default: portreeve",
                "1 memory-500: peer",
                "1 memory-500: portreeve",
                "1 memory-500: portreeve-crontab",
                "1 memory-10000 and 300s of quiet: peer",
                "1 memory-10000 and 300s of quiet: portreeve",
                "1 memory-10000 and 300s of quiet: portreeve-crontab",
                "1 handover: peer",
                "1 handover: peer-release",
                "1 handover: portreeve",
                "1 crash: peer",
                "1 crash: portreeve",
                "1 standby: peer",
                "1 standby: portreeve",
                "1 cascade-3000: floor",
                "1 cascade-3000: peer",
                "1 cascade-3000: portreeve",
                "1 cascade-default: floor",
                "1 cascade-default: peer",
                "1 cascade-default: portreeve",
                "1 foreground-3000: floor",
                "1 foreground-3000: peer",
                "1 foreground-3000: portreeve",
                "1 orphan-3000: floor",
                "1 orphan-3000: peer",
                "1 orphan-3000: portreeve",
                "1 memory-empty: peer",
                "1 memory-empty: portreeve",
                "1 memory-30000: peer",
                "1 memory-30000: portreeve",
                "1 memory-5000-large: peer",
                "1 memory-5000-large: portreeve",
                "1 graph: floor",
                "1 graph: portreeve",
            ]
        );
    }

    #[test]
    fn a_full_round_ends_with_foos_and_deployments_50000() {
        assert_eq!(
            plan(&["--rounds=1"])[42..],
            [
                "1 foo-1000: floor",
                "1 foo-1000: floor-status",
                "1 foo-1000: controller-runtime",
                "1 foo-1000: kube-runtime",
                "1 foo-1000: portreeve",
                "1 foo-memory: controller-runtime",
                "1 foo-memory: kube-runtime",
                "1 foo-memory: portreeve",
                "1 shell: peer",
                "1 shell: controller-runtime",
                "1 shell: kube-runtime",
                "1 shell: portreeve",
                "1 deployments-50000: controller-runtime",
                "1 deployments-50000: kube-runtime",
                "1 deployments-50000: portreeve",
            ]
        );
    }

    #[test]
    fn quiet_runs_with_memory_10000_and_memory_10000_runs_without_quiet() {
        let memory = plan(&["--rounds=1", "--only=memory-10000", "--subjects=peer"]);
        assert_eq!(memory, ["1 memory-10000: peer"]);
        let quiet = plan(&["--rounds=1", "--only=quiet", "--quiet=1m", "--subjects=peer"]);
        assert_eq!(quiet, ["1 memory-10000 and 60s of quiet: peer"]);
        assert!(plan(&["--only=next"]).is_empty());
    }

    #[test]
    fn estimates_use_the_last_duration_or_a_default() {
        let work = Work::Due { row: Row::Due };
        let step = |subject| Step {
            round: 1,
            work,
            subject,
        };
        let steps = [step(Subject::Floor), step(Subject::Peer)];
        let mut estimates = DurationEstimates::default();
        assert_eq!(estimates.estimate(&steps), Duration::from_secs(105));
        estimates.took(&steps[0], Duration::from_secs(40));
        assert_eq!(estimates.estimate(&steps), Duration::from_secs(115));
    }
}
