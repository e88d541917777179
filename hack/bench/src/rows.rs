//! The rows, subjects and measures, with the names that the command line and the report share.

use clap::ValueEnum;

use crate::statistics::Unit;

/// A row: one workload.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Row {
    /// Schedules that are due in the same minute, with client-side limits lifted
    Due,
    /// The same with default flags
    DueDefault,
    /// Memory with 500 schedules
    #[value(name = "memory-500")]
    Memory500,
    /// Memory with 10,000 schedules
    #[value(name = "memory-10000")]
    Memory10000,
    /// CPU time with 10,000 schedules of which none is due
    Quiet,
    /// The time until another replica works when the leader gets SIGTERM
    Handover,
    /// The same when the leader is killed
    Crash,
    /// Memory of a leader and of its standby, with 500 schedules
    Standby,
    /// The search for the next run, without a cluster
    Next,
    /// An owner with 3,000 dependents that is deleted in the background, with client-side limits
    /// lifted
    #[value(name = "cascade-3000")]
    Cascade3000,
    /// An owner with 1,000 dependents that is deleted in the background, with default flags
    CascadeDefault,
    /// An owner with 3,000 dependents that is deleted in the foreground, with client-side limits
    /// lifted
    #[value(name = "foreground-3000")]
    Foreground3000,
    /// An owner with 3,000 dependents that outlive it, with client-side limits lifted
    #[value(name = "orphan-3000")]
    Orphan3000,
    /// Memory of a garbage collector in an empty cluster
    MemoryEmpty,
    /// Memory of a garbage collector with 30,000 objects of 1 kB
    #[value(name = "memory-30000")]
    Memory30000,
    /// Memory of a garbage collector with 5,000 objects of 20 kB
    #[value(name = "memory-5000-large")]
    Memory5000Large,
    /// A graph of a million objects, without a cluster
    Graph,
    /// Foos that are created at once
    #[value(name = "foo-1000")]
    Foo1000,
    /// Memory with 1,000 Foos in the first round and the tenth
    FooMemory,
    /// Memory with 50,000 Deployments without owners, and the time to list them
    #[value(name = "deployments-50000")]
    Deployments50000,
    /// The whole process without work: memory, start and binary
    Shell,
    /// Events applied to a store, without a cluster
    Store,
    /// Keys that pass through a work queue, without a cluster
    Queue,
}

/// What the controllers of a row do. The report has a table for each task.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Task {
    /// Create Jobs by schedules.
    Schedules,
    /// Create Jobs by schedules, with several replicas.
    LeaderElection,
    /// Collect garbage.
    Garbage,
    /// Create Deployments by Foos.
    Foos,
    /// Everything that the process can do.
    Everything,
    /// Nothing: parts of controllers, without a cluster.
    Parts,
}

impl Task {
    /// All tasks, in the order of the report.
    pub(crate) const ALL: [Self; 6] = [
        Self::Schedules,
        Self::LeaderElection,
        Self::Garbage,
        Self::Foos,
        Self::Everything,
        Self::Parts,
    ];

    /// Returns the title of the task's table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Schedules => "Schedules",
            Self::LeaderElection => "Leader election",
            Self::Garbage => "Garbage collection",
            Self::Foos => "Foos",
            Self::Everything => "Whole process",
            Self::Parts => "Parts",
        }
    }
}

/// A subject: the program that does the work.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Subject {
    /// A bare client that only writes what the controllers must write
    Floor,
    /// A bare client that creates each Job or Deployment and then writes the status of its owner;
    /// not for garbage collection
    FloorStatus,
    /// kube-controller-manager with its cronjob-controller, its garbage-collector-controller or
    /// everything
    Peer,
    /// kube-controller-manager with its cronjob-controller and the feature gate that makes it
    /// release its Lease on SIGTERM
    PeerRelease,
    /// A controller for Foos on controller-runtime
    ControllerRuntime,
    /// A controller for Foos on kube-runtime
    KubeRuntime,
    /// The daemon with its cronjob-controller, its garbage-collector-controller, its foo-controller
    /// or everything
    Portreeve,
    /// The daemon with its crontab-controller, on as many CronTabs
    PortreeveCrontab,
}

/// A measure, with one number per round.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Measure {
    /// The delay that half of the Jobs do not exceed.
    Median,
    /// The delay that 99 of 100 Jobs do not exceed.
    P99,
    /// The delay of the last Job.
    Max,
    /// The number of Jobs that were created before the next minute.
    WithinTheMinute,
    Resident,
    Peak,
    CpuTime,
    CpuTimeAnHour,
    /// From the signal to the leader until the Lease names the standby.
    SignalToLease,
    /// From the signal to the leader until the first Job of the standby is created.
    SignalToJob,
    /// From the old leader's last renewal until the Lease names the standby.
    RenewalToLease,
    RenewalToJob,
    /// From the moment at which the Lease names the standby until its first Job is created.
    LeaseToJob,
    LeaderResident,
    StandbyResident,
    /// The standby's memory divided by its leader's.
    StandbyToLeader,
    /// The time of one search, by the name of the benchmark.
    Search(String),
    /// From the deletion of an owner until the owner is gone and its dependents are gone or
    /// orphaned.
    DeleteToEnd,
    /// The CPU time of the controller during the row's work.
    CpuTimeToEnd,
    /// The memory of a graph per object.
    BytesANode,
    /// Objects added to a graph per second.
    AddedASecond,
    /// Objects changed in a graph per second.
    ChangedASecond,
    /// Objects removed from a graph per second.
    RemovedASecond,
    /// From the call that creates the first Foo until the last Deployment exists.
    PostToDeployment,
    /// From the call that creates the first Foo until the last status is written.
    PostToStatus,
    /// Memory with the Foos of the first round.
    ResidentFirst,
    /// Memory with as many Foos in the tenth round.
    ResidentTenth,
    /// The memory of the tenth round divided by that of the first.
    TenthToFirst,
    /// From the start of the process until it has reconciled a waiting object.
    StartToWork,
    /// The size of the binary without symbols.
    Binary,
    /// A rate per second, by the name of the benchmark.
    Rate(String),
}

impl Row {
    pub(crate) fn name(self) -> String {
        name(&self)
    }

    pub(crate) fn task(self) -> Task {
        match self {
            Self::Due | Self::DueDefault | Self::Memory500 | Self::Memory10000 | Self::Quiet => Task::Schedules,
            Self::Handover | Self::Crash | Self::Standby => Task::LeaderElection,
            Self::Cascade3000
            | Self::CascadeDefault
            | Self::Foreground3000
            | Self::Orphan3000
            | Self::MemoryEmpty
            | Self::Memory30000
            | Self::Memory5000Large => Task::Garbage,
            Self::Foo1000 | Self::FooMemory | Self::Deployments50000 => Task::Foos,
            Self::Shell => Task::Everything,
            Self::Next | Self::Graph | Self::Store | Self::Queue => Task::Parts,
        }
    }
}

impl Subject {
    pub(crate) fn name(self) -> String {
        name(&self)
    }

    /// Returns whether this is a bare client, which has no process to measure.
    pub(crate) fn is_floor(self) -> bool {
        matches!(self, Self::Floor | Self::FloorStatus)
    }

    /// Returns whether this is kube-controller-manager.
    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::Peer | Self::PeerRelease)
    }

    /// Returns whether this is a controller for Foos on another framework, which `peers` builds.
    pub(crate) fn is_built(self) -> bool {
        matches!(self, Self::ControllerRuntime | Self::KubeRuntime)
    }

    /// Returns whether this is the daemon, to which the targets apply.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Portreeve | Self::PortreeveCrontab)
    }

    /// Returns the name of the subject's controller for a task. Bare clients have none, and
    /// controllers on other frameworks are not selected by name.
    pub(crate) fn controller(self, task: Task) -> Option<&'static str> {
        match (self, task) {
            (Self::Floor | Self::FloorStatus | Self::ControllerRuntime | Self::KubeRuntime, _)
            | (Self::PortreeveCrontab | Self::PeerRelease, Task::Garbage | Task::Foos)
            | (Self::Peer, Task::Foos)
            | (_, Task::Everything | Task::Parts) => None,
            (Self::Portreeve, Task::Foos) => Some("foo-controller"),
            (Self::PortreeveCrontab, Task::Schedules | Task::LeaderElection) => Some("crontab-controller"),
            (Self::Peer | Self::PeerRelease | Self::Portreeve, Task::Schedules | Task::LeaderElection) => {
                Some("cronjob-controller")
            }
            (Self::Peer | Self::Portreeve, Task::Garbage) => Some("garbage-collector-controller"),
        }
    }
}

impl Measure {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Median => "p50",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::WithinTheMinute => "made within the minute",
            Self::Resident => "resident memory",
            Self::Peak => "peak resident memory",
            Self::CpuTime => "CPU time in the window",
            Self::CpuTimeAnHour => "CPU time an hour at that rate",
            Self::SignalToLease => "signal to Lease",
            Self::SignalToJob => "signal to first Job",
            Self::RenewalToLease => "last renewal to Lease",
            Self::RenewalToJob => "last renewal to first Job",
            Self::LeaseToJob => "Lease to first Job",
            Self::LeaderResident => "resident memory of the leader",
            Self::StandbyResident => "resident memory of the standby",
            Self::StandbyToLeader => "standby to leader",
            Self::Search(benchmark) | Self::Rate(benchmark) => benchmark,
            Self::DeleteToEnd => "DELETE to the end",
            Self::CpuTimeToEnd => "CPU time of it",
            Self::BytesANode => "memory an object",
            Self::AddedASecond => "objects added",
            Self::ChangedASecond => "objects changed",
            Self::RemovedASecond => "objects removed",
            Self::PostToDeployment => "first POST to last Deployment",
            Self::PostToStatus => "first POST to last status",
            Self::ResidentFirst => "resident memory after one round",
            Self::ResidentTenth => "resident memory after ten rounds",
            Self::TenthToFirst => "after ten to after one",
            Self::StartToWork => "start to first reconcile",
            Self::Binary => "stripped binary",
        }
    }

    pub(crate) fn unit(&self) -> Unit {
        match self {
            Self::Median
            | Self::P99
            | Self::Max
            | Self::CpuTime
            | Self::CpuTimeAnHour
            | Self::SignalToLease
            | Self::SignalToJob
            | Self::RenewalToLease
            | Self::RenewalToJob
            | Self::LeaseToJob
            | Self::DeleteToEnd
            | Self::CpuTimeToEnd
            | Self::PostToDeployment
            | Self::PostToStatus
            | Self::StartToWork
            | Self::Search(_) => Unit::Seconds,
            Self::WithinTheMinute => Unit::Count,
            Self::Resident
            | Self::Peak
            | Self::LeaderResident
            | Self::StandbyResident
            | Self::ResidentFirst
            | Self::ResidentTenth
            | Self::Binary => Unit::Kibibytes,
            Self::StandbyToLeader | Self::TenthToFirst => Unit::Ratio,
            Self::BytesANode => Unit::Bytes,
            Self::AddedASecond | Self::ChangedASecond | Self::RemovedASecond | Self::Rate(_) => Unit::PerSecond,
        }
    }

    /// Returns whether a ratio to another subject's number is meaningful.
    pub(crate) fn is_comparable(&self) -> bool {
        !matches!(self, Self::WithinTheMinute | Self::StandbyToLeader | Self::TenthToFirst)
    }
}

/// Returns the name of a value on the command line.
fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The value of a measure in one round.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) row: Row,
    pub(crate) subject: Subject,
    pub(crate) measure: Measure,
    pub(crate) value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_subjects_have_the_expected_names() {
        let rows: Vec<String> = Row::value_variants().iter().map(|row| row.name()).collect();
        assert_eq!(
            rows,
            [
                "due",
                "due-default",
                "memory-500",
                "memory-10000",
                "quiet",
                "handover",
                "crash",
                "standby",
                "next",
                "cascade-3000",
                "cascade-default",
                "foreground-3000",
                "orphan-3000",
                "memory-empty",
                "memory-30000",
                "memory-5000-large",
                "graph",
                "foo-1000",
                "foo-memory",
                "deployments-50000",
                "shell",
                "store",
                "queue"
            ]
        );
        let subjects: Vec<String> = Subject::value_variants().iter().map(|subject| subject.name()).collect();
        assert_eq!(
            subjects,
            [
                "floor",
                "floor-status",
                "peer",
                "peer-release",
                "controller-runtime",
                "kube-runtime",
                "portreeve",
                "portreeve-crontab"
            ]
        );
    }
}
