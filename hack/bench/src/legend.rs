//! Descriptions of the subjects for the report. Pure.

use crate::rows::{Subject, Task};

/// Returns the heading of a subject's column.
pub(crate) fn heading(subject: Subject) -> String {
    match subject {
        Subject::Peer => "kube-controller-manager".to_owned(),
        Subject::PeerRelease => "kube-controller-manager releasing".to_owned(),
        Subject::PortreeveCrontab => "portreeve, CronTabs".to_owned(),
        _ => subject.name(),
    }
}

/// Returns a description of what a subject runs in the rows of a task. Subjects that run the same
/// share one text.
pub(crate) fn description(task: Task, subject: Subject) -> &'static str {
    match (task, subject) {
        (Task::Schedules, Subject::Floor) => {
            "a bare client that creates the same Jobs from a full second on, and nothing else."
        }
        (Task::Schedules, Subject::FloorStatus) => {
            "the same client, which also writes the status of the CronJob after each Job."
        }
        (Task::Schedules, Subject::PortreeveCrontab) => {
            "`--controllers=crontab-controller --install-crds`, on as many CronTabs."
        }
        (Task::LeaderElection, Subject::PeerRelease) => {
            "the same with `--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true`, which is off by default."
        }
        (Task::Schedules | Task::LeaderElection, _) => "`--controllers=cronjob-controller`.",
        (Task::Garbage, Subject::Floor) => {
            "a bare client that sends one request per dependent, with tested UID and version."
        }
        (Task::Garbage, _) => "`--controllers=garbage-collector-controller`.",
        (Task::Foos, Subject::Floor) => {
            "a bare client that creates each Deployment as soon as its Foo is created, as many at a time."
        }
        (Task::Foos, Subject::FloorStatus) => {
            "the same client, which also writes the status of the Foo after each Deployment."
        }
        (Task::Foos, Subject::ControllerRuntime | Subject::KubeRuntime) => {
            "equal controllers (`hack/bench/peers`), written as their documentation recommends, without a limit on requests. They send no \
             events; Portreeve does. The one on kube-runtime neither stores Deployments nor waits for them."
        }
        (Task::Foos, _) => "`--controllers=foo-controller`.",
        (Task::Everything, Subject::Peer) => "the default flags, which start nearly all of its controllers.",
        (Task::Everything, Subject::ControllerRuntime | Subject::KubeRuntime) => "the controllers for Foos.",
        (Task::Everything, _) => "every controller, and leader election.",
        (Task::Parts, Subject::Floor) => "a hash map from UIDs to owned strings and lists.",
        (Task::Parts, _) => "its crates; no cluster.",
    }
}
