//! Descriptions of how each row is measured, for the report. Pure.

use std::time::Duration;

use crate::cascade::CONCURRENCY;
use crate::foos::WORKERS;
use crate::load;
use crate::options::Options;
use crate::plan::turns;
use crate::progress::length;
use crate::rows::{Row, Subject};

/// Returns a description of how a row is measured. Rows that are measured in the same way share one
/// text.
///
/// `lifted` is the number of schedules that are synced at a time in the row `due`, and `default` in
/// the row `due-default`.
pub(crate) fn method(row: Row, options: &Options, lifted: u16, default: u16) -> String {
    let count = |row| options.count(row);
    let foos = options.concurrency.unwrap_or(WORKERS);
    match row {
        Row::Due | Row::DueDefault => format!(
            "{} schedules in one namespace are due in the same minute. A Job's delay runs from that minute until the apiserver has answered \
             the Job's creation, by the audit log. In `due`, subjects work on {lifted} schedules at a time, with lifted limits; in \
             `due-default`, controllers have their default flags, and the bare client works on {default} at a time.",
            count(Row::Due)
        ),
        Row::Memory500 | Row::Memory10000 => format!(
            "{} and {} schedules that are due in half a year exist before the start.",
            count(Row::Memory500),
            count(Row::Memory10000)
        ),
        Row::Quiet => quiet(count(row), options.quiet),
        Row::Handover | Row::Crash => failover(count(row)),
        Row::Standby => format!(
            "two replicas with the default lease times and {} CronJobs that are due in half a year.",
            count(row)
        ),
        Row::Cascade3000 | Row::CascadeDefault | Row::Foreground3000 | Row::Orphan3000 => cascade(options),
        Row::MemoryEmpty | Row::Memory30000 | Row::Memory5000Large => format!(
            "before the start, the cluster holds no objects but the apiserver's own, {} ConfigMaps of {} bytes, or {} of {} bytes.",
            count(Row::Memory30000),
            load::bytes(Row::Memory30000),
            count(Row::Memory5000Large),
            load::bytes(Row::Memory5000Large)
        ),
        Row::Foo1000 => format!(
            "a client creates {} Foos with 16 requests at a time, and each subject works on {foos} Foos at a time. The times end when a watch \
             has shown the last Deployment and the last status; the CPU time, when the controller is idle again.",
            count(row)
        ),
        Row::FooMemory => format!(
            "ten times, {} Foos with new names are created, reconciled, and removed with their Deployments. Memory is taken with the \
             Foos of the first round and of the tenth.",
            count(row)
        ),
        Row::Deployments50000 => format!(
            "{} Deployments of 5 kB without an owner, and one Foo, exist before the start; the time ends when the Foo's Deployment is \
             created.",
            count(row)
        ),
        Row::Shell => {
            "the cluster holds the definitions and one Foo (a Deployment for kube-controller-manager) before the start; the time ends when \
             the Deployment (the ReplicaSet) is created."
                .to_owned()
        }
        Row::Graph => format!(
            "{} objects are added to a graph, changed and removed: Deployments, ReplicaSets, Pods and ConfigMaps, eight of ten with an \
             owner. Memory is the growth of `VmRSS` while they are added.",
            count(row)
        ),
        Row::Next | Row::Store | Row::Queue => {
            "medians of criterion, by `cargo bench` on one core: the time of one search for the next run; events applied per second to a \
             store of 10,000 Deployments with an index; keys added, taken and done per second."
                .to_owned()
        }
    }
}

fn cascade(options: &Options) -> String {
    let (count, default) = (options.count(Row::Cascade3000), options.count(Row::CascadeDefault));
    let concurrency = options.concurrency.unwrap_or(CONCURRENCY);
    format!(
        "an owner with {count} ConfigMaps as dependents ({default} in `cascade-default`) is deleted when the collector is idle. The time \
         ends when a watch has shown that the owner is gone and that no dependent is left, or has an owner reference. Subjects work on \
         {concurrency} objects at a time, with lifted limits; in `cascade-default`, controllers have their default flags."
    )
}

fn quiet(count: usize, window: Duration) -> String {
    let rate = if window.as_secs() == 3600 {
        ""
    } else {
        " The time per hour is extrapolated: no whole hour was measured."
    };
    let window = match window.as_secs() {
        odd if !odd.is_multiple_of(60) => format!("{odd} s"),
        _ => length(window),
    };
    format!(
        "CPU time, user and system, of a window of {window} in which none of {count} schedules is due and nothing changes.{rate}"
    )
}

fn failover(count: usize) -> String {
    let handover = |subject| turns(Row::Handover, subject);
    format!(
        "two replicas run with the default lease times (15 s, 10 s, 2 s) and {count} CronJobs that are due in half a year. The leader gets SIGTERM (`handover`) or \
         SIGKILL (`crash`) at varying moments between two renewals, and at once one CronJob becomes overdue. *Lease*: a watch shows that the \
         standby holds it. *First Job*: the apiserver has answered the creation of that CronJob's Job by the standby. A round has {} \
         handovers of each subject, but {} of kube-controller-manager without release, and {} crashes.",
        handover(Subject::Portreeve),
        handover(Subject::Peer),
        turns(Row::Crash, Subject::Portreeve)
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn text(row: Row, args: &[&str]) -> String {
        let options = Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap();
        method(row, &options, 10, 5)
    }

    #[test]
    fn quiet_text_reports_the_window_and_the_extrapolation() {
        for (args, window, is_extrapolated) in [
            (&[][..], "a window of 5 min", true),
            (&["--quiet=150s"], "a window of 150 s", true),
            (&["--quiet=1h"], "a window of 1 h", false),
        ] {
            let text = text(Row::Quiet, args);
            assert!(text.contains(window), "{text}");
            assert_eq!(text.contains("no whole hour was measured"), is_extrapolated, "{text}");
        }
    }

    #[test]
    fn texts_contain_the_counts_of_their_rows() {
        for (row, part) in [
            (Row::Due, "500 schedules"),
            (Row::Memory10000, "500 and 10000 schedules"),
            (Row::Handover, "7 handovers of each subject, but 2"),
            (Row::Orphan3000, "3000 ConfigMaps as dependents (1000"),
            (
                Row::MemoryEmpty,
                "30000 ConfigMaps of 1000 bytes, or 5000 of 20000 bytes",
            ),
        ] {
            let text = text(row, &[]);
            assert!(text.contains(part), "no {part}: {text}");
        }
        assert_eq!(text(Row::Due, &[]), text(Row::DueDefault, &[]));
    }
}
