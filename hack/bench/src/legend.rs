//! Who the subjects of a report are, in words. Pure.

use clap::ValueEnum;

use crate::rows::{Row, Sample, Subject, Task};

/// A line for each subject that was measured, and each task that it was measured at.
pub(crate) fn legend(samples: &[Sample]) -> String {
    let mut lines = Vec::new();
    for task in [
        Task::Schedules,
        Task::Garbage,
        Task::Foos,
        Task::Everything,
        Task::Parts,
    ] {
        for subject in Subject::value_variants().iter().copied() {
            let measured = |sample: &&Sample| sample.subject == subject && sample.row.task() == task;
            let mut rows = samples.iter().filter(measured).map(|sample| sample.row).peekable();
            if rows.peek().is_some() {
                let is_graph_alone = rows.all(|row| row == Row::Graph);
                let who = who(task, subject, is_graph_alone);
                lines.push(format!("- **{}**: {who}.", subject.name()));
            }
        }
    }
    lines.join("\n")
}

fn who(task: Task, subject: Subject, is_graph_alone: bool) -> &'static str {
    match task {
        Task::Schedules | Task::Garbage => of_kubernetes(task, subject, is_graph_alone),
        Task::Foos => of_foos(subject),
        Task::Everything => of_everything(subject),
        Task::Parts => "for what needs no cluster, the crates of Portreeve by themselves",
    }
}

fn of_foos(subject: Subject) -> &'static str {
    match subject {
        Subject::Floor => {
            "for Foos, a bare client that does nothing but create the same Deployments, as many at a time, each as soon as its Foo is \
             created"
        }
        Subject::FloorStatus => {
            "for Foos, the same client, which after each Deployment writes the status of its Foo before it goes on to the next"
        }
        Subject::ControllerRuntime => {
            "an equal controller on controller-runtime (`hack/bench/peers/controller-runtime`), written as its book recommends, without a \
             limit on requests; it sends no events, which Portreeve does"
        }
        Subject::KubeRuntime => {
            "an equal controller on kube-runtime's `Controller` (`hack/bench/peers/kube-runtime`), written as its documentation recommends; \
             it sends no events, and keeps Foos only: of Deployments it is told, and asks for the one that it needs by applying it"
        }
        _ => "for Foos, Portreeve with `--controllers=foo-controller`",
    }
}

fn of_everything(subject: Subject) -> &'static str {
    match subject {
        Subject::Peer => {
            "in the row `shell`, kube-controller-manager with the flags that it has by default, and so nearly all of its controllers"
        }
        Subject::ControllerRuntime => {
            "in the row `shell`, the controller on controller-runtime, which has nothing else to do"
        }
        Subject::KubeRuntime => "in the row `shell`, the controller on kube-runtime, which has nothing else to do",
        _ => "in the row `shell`, Portreeve with every controller that it has, and leader election",
    }
}

/// Of the tasks for which kube-controller-manager has controllers of the same names.
fn of_kubernetes(task: Task, subject: Subject, is_graph_alone: bool) -> &'static str {
    match (task, subject) {
        (Task::Schedules, Subject::Floor) => {
            "a bare client that does nothing but create the same Jobs, as many at a time; the controllers write statuses and events as well"
        }
        (Task::Schedules, Subject::FloorStatus) => {
            "the same client, which after each Job writes the status of its CronJob before it goes on to the next, as the controllers do; \
             it sends no events"
        }
        (Task::Schedules, Subject::Peer) => "kube-controller-manager with `--controllers=cronjob-controller`",
        (Task::Schedules, Subject::PeerRelease) => {
            "kube-controller-manager with `--controllers=cronjob-controller` and \
             `--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true`, which is off by default"
        }
        (Task::Schedules, Subject::PortreeveCrontab) => {
            "Portreeve with `--controllers=crontab-controller`, on as many CronTabs of the same schedule and pod"
        }
        (Task::Garbage, Subject::Floor) if is_graph_alone => {
            "for garbage collection, a hash map from UIDs to owned strings and lists, as one writes it without a thought"
        }
        (Task::Garbage, Subject::Floor) => {
            "for garbage collection, a bare client that knows all dependents and their versions beforehand, and sends one request for each, \
             with UID and version as preconditions; in the row `graph`, a hash map from UIDs to owned strings and lists"
        }
        (Task::Garbage, Subject::Peer | Subject::PeerRelease | Subject::FloorStatus) => {
            "for garbage collection, kube-controller-manager with `--controllers=garbage-collector-controller`"
        }
        (Task::Garbage, Subject::Portreeve | Subject::PortreeveCrontab) if is_graph_alone => {
            "for garbage collection, the graph of Portreeve's garbage-collector-controller"
        }
        (Task::Garbage, _) => "for garbage collection, Portreeve with `--controllers=garbage-collector-controller`",
        _ => "Portreeve with `--controllers=cronjob-controller`, on the same CronJobs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Measure;

    #[test]
    fn a_subject_is_told_of_once_for_each_task_that_it_was_measured_at() {
        let sample = |row, subject| Sample {
            row,
            subject,
            measure: Measure::Resident,
            value: 1.0,
        };
        let samples = [
            sample(Row::MemoryEmpty, Subject::Peer),
            sample(Row::Memory30000, Subject::Peer),
            sample(Row::Memory500, Subject::Peer),
            sample(Row::Graph, Subject::Floor),
        ];
        let legend = legend(&samples);
        let lines: Vec<&str> = legend.lines().collect();
        let starts = [
            "- **peer**: kube-controller-manager with `--controllers=cronjob-controller`.",
            "- **floor**: for garbage collection, a hash map",
            "- **peer**: for garbage collection, kube-controller-manager with `--controllers=garbage-collector-controller`.",
        ];
        assert_eq!(lines.len(), starts.len(), "{legend}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}
