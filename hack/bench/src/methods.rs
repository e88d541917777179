//! How each row is measured, in words. Pure.

use std::time::Duration;

use crate::cascade::CONCURRENCY;
use crate::foos::WORKERS;
use crate::load;
use crate::options::Options;
use crate::plan::{REST, turns};
use crate::progress::length;
use crate::rows::{Row, Subject, Task};

/// The paragraph above the table of a row. `lifted` and `default` say how many schedules are worked on at once: in the row `due`, and by
/// default.
pub(crate) fn method(row: Row, options: &Options, lifted: u16, default: u16) -> String {
    let text = match row.task() {
        Task::Schedules => schedules(row, options, lifted, default),
        Task::Garbage => garbage(row, options),
        Task::Foos | Task::Everything | Task::Parts => shell(row, options),
    };
    format!("{text} {}", rounds(row, options.rounds))
}

/// How what every controller is made with is measured.
fn shell(row: Row, options: &Options) -> String {
    let (count, rest) = (options.count(row), REST.as_secs());
    let workers = options.concurrency.unwrap_or(WORKERS);
    let idle = format!(
        "Resident memory (`VmRSS`) once the controller has had {rest} s for itself and its memory has stayed within 1 % for ten seconds"
    );
    match row {
        Row::Foo1000 => format!(
            "{count} Foos are created as fast as a client with 16 requests at a time can; everybody works on {workers} Foos at once. The \
             times are those from the first call until a watch has told of the last Deployment, and of the last status. The controller was \
             idle before. Its CPU time is that from the first call until it is idle again."
        ),
        Row::FooMemory => format!(
            "Ten times, {count} Foos with new names are created and worked on, and then removed together with their Deployments. {idle}, \
             with the Foos of the first round and with those of the tenth."
        ),
        Row::Deployments50000 => format!(
            "{count} Deployments of 5 kB that nobody owns, and one Foo, are there before the controller is started. The time is that from \
             the start of its process until the Deployment of the Foo is made. {idle}; and the peak of it up to then (`VmHWM`)."
        ),
        Row::Shell => format!(
            "A cluster that has nothing but what an apiserver makes, the definitions, and one Foo, which is there before the controller is \
             started; for kube-controller-manager, a Deployment instead. The time is that from the start of the process until the Deployment \
             of the Foo, or the ReplicaSet of the Deployment, is made. {idle}; and the peak of it up to then (`VmHWM`)."
        ),
        Row::Store => "Events that are decoded already are applied to a store of 10,000 Deployments with an index, on one core, by `cargo \
                       bench -p portreeve-informer`: how many a second, by the median that criterion estimates."
            .to_owned(),
        _ => "Keys are added, taken and done, on one core, by `cargo bench -p portreeve-workqueue`: how many a second, by the median that \
              criterion estimates."
            .to_owned(),
    }
}

/// How garbage collection is measured.
fn garbage(row: Row, options: &Options) -> String {
    let count = options.count(row);
    let concurrency = options.concurrency.unwrap_or(CONCURRENCY);
    let cascade = |policy: &str, end: &str, floor: &str| {
        format!(
            "An owner and {count} dependents, ConfigMaps that were there before the collector was started; it has collected a canary \
             since, so that its graph has them all, and neither it nor the servers work on anything any more. The owner is deleted with \
             `propagationPolicy: {policy}`. The time is that from this call until a watch has told that {end}. {floor}"
        )
    };
    let lifted = format!(
        "Everybody works on {concurrency} at once, and kube-controller-manager's client-side limits are lifted \
         (`--kube-api-qps=5000 --kube-api-burst=10000`)."
    );
    let rest = REST.as_secs();
    let gone = "the owner and every dependent are gone";
    let deletes = "The bare client deletes the owner, and then each dependent.";
    match row {
        Row::Orphan3000 => {
            let end = "the owner is gone and no dependent has an owner reference";
            let floor = "The bare client deletes the owner, takes the reference from each dependent, and then the finalizer from the owner.";
            format!("{} {lifted}", cascade("Orphan", end, floor))
        }
        Row::Foreground3000 => {
            let floor = "The references block the owner's deletion. The bare client deletes the owner, then each dependent, and then takes \
                         the finalizer from the owner.";
            format!("{} {lifted}", cascade("Foreground", gone, floor))
        }
        Row::CascadeDefault => format!(
            "{} Everybody has the default flags; the bare client works on {concurrency} at once.",
            cascade("Background", gone, deletes)
        ),
        Row::Cascade3000 => format!("{} {lifted}", cascade("Background", gone, deletes)),
        Row::Graph => format!(
            "{count} objects, fed to the graph in a process of its own: Deployments with their ReplicaSets and Pods, and ConfigMaps that \
             nobody owns; eight of ten have an owner. All are added, then all change, then all are removed. Memory is what `VmRSS` grows \
             by while they are added; the time is that of the graph alone, without the making of what it is fed."
        ),
        _ => {
            let objects = match load::bytes(row) {
                _ if count == 0 => "A cluster that has nothing but what an apiserver makes".to_owned(),
                bytes => format!(
                    "{count} ConfigMaps of {bytes} bytes that nobody owns, made before the collector is started"
                ),
            };
            format!(
                "{objects}. Resident memory (`VmRSS`) once the collector has collected a canary, has had {rest} s for itself, and its memory \
                 has stayed within 1 % for ten seconds; and the peak of it up to then (`VmHWM`)."
            )
        }
    }
}

/// How schedules are measured.
fn schedules(row: Row, options: &Options, lifted: u16, default: u16) -> String {
    let schedules = options.count(row);
    let due = format!(
        "{schedules} schedules in one namespace that are due in the same minute. The delay of a Job is the time at which the apiserver \
         had answered its creation, by its audit log, less that minute. A bare client has no schedule to wait for and starts at a full \
         second instead."
    );
    let idle = format!(
        "{schedules} schedules that are due in half a year, made before the controller is started, as they are after a restart."
    );
    let rest = REST.as_secs();
    match row {
        Row::Due => format!(
            "{due} {lifted} schedules are worked on at once by everybody, and kube-controller-manager's client-side limits are lifted \
             (`--kube-api-qps=5000 --kube-api-burst=10000`)."
        ),
        Row::DueDefault => {
            format!("{due} Everybody has the default flags; the bare client works on {default} schedules at once.")
        }
        Row::Memory500 | Row::Memory10000 => format!(
            "{idle} Resident memory (`VmRSS`) once the controller has read all of them, has had {rest} s for itself (Go's runtime \
             collects what is left of the start within two minutes), and its memory has stayed within 1 % for ten seconds; and the peak \
             of it up to then (`VmHWM`)."
        ),
        Row::Quiet => quiet(&idle, options.quiet),
        Row::Handover => failover(schedules, "told to stop (SIGTERM)"),
        Row::Crash => format!(
            "{} The last renewal is the `renewTime` that the Lease had when its holder was killed.",
            failover(schedules, "killed (SIGKILL)")
        ),
        Row::Standby => format!(
            "{schedules} CronJobs that are due in half a year, and two replicas with the default times of leader election. Resident \
             memory (`VmRSS`) of each, once both have had {rest} s for themselves and it has stayed within 1 % for ten seconds."
        ),
        _ => {
            "The search for the next run, without a cluster, by `cargo bench -p portreeve-cron`: the time of one search, as the median that \
             criterion estimates."
                .to_owned()
        }
    }
}

fn quiet(idle: &str, window: Duration) -> String {
    let rate = if window.as_secs() == 3600 {
        ""
    } else {
        " The time an hour is that of the window, multiplied: no whole hour was measured."
    };
    let window = match window.as_secs() {
        odd if !odd.is_multiple_of(60) => format!("{odd} s"),
        _ => length(window),
    };
    format!(
        "{idle} CPU time, user and system, of a window of {window} in which nothing is due and nothing changes.{rate}"
    )
}

fn failover(schedules: usize, fate: &str) -> String {
    format!(
        "Two replicas with the default times of leader election (15 s, 10 s, 2 s) and {schedules} CronJobs that are due in half a year. The \
         leader is {fate}, each time at another moment between two renewals, and at once a CronJob is given a `lastScheduleTime` of 400 \
         days ago, so that a run of it is overdue. *Lease*: a watch tells that the standby holds it. *First Job*: the apiserver has \
         answered the creation of the Job of that run by the standby, who is known by its account in the audit log. Then the old leader \
         is started anew, as the standby of the next time."
    )
}

/// How many numbers the median is of.
fn rounds(row: Row, rounds: u16) -> String {
    match row {
        Row::Handover | Row::Crash => {
            let times = |subject| u32::from(rounds) * turns(row, subject);
            let (ours, peers) = (times(Subject::Portreeve), times(Subject::Peer));
            if ours == peers {
                format!("Median and spread are those of {ours} times.")
            } else {
                format!("Median and spread are those of {ours} times; of peer, which takes longest, {peers}.")
            }
        }
        _ if rounds == 1 => "One round.".to_owned(),
        _ => format!("Median and spread are those of {rounds} rounds."),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn check(row: Row, args: &[&str], has: &[&str], lacks: &[&str]) {
        let options = Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap();
        let text = method(row, &options, 10, 5);
        for part in has {
            assert!(text.contains(part), "no {part}: {text}");
        }
        for part in lacks {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_window_that_is_no_hour_says_so() {
        let hour = ["a window of 1 h"];
        check(
            Row::Quiet,
            &[],
            &["a window of 5 min", "no whole hour was measured"],
            &hour,
        );
        check(Row::Quiet, &["--quiet=150s"], &["a window of 150 s"], &hour);
        check(Row::Quiet, &["--quiet=1h"], &hour, &["multiplied"]);
    }

    #[test]
    fn garbage_collection_is_told_by_what_becomes_of_whom() {
        let lifted = "--kube-api-qps=5000";
        check(
            Row::Cascade3000,
            &[],
            &[
                "3000 dependents",
                "`propagationPolicy: Background`",
                "works on 20 at once",
                lifted,
            ],
            &["finalizer"],
        );
        check(
            Row::CascadeDefault,
            &[],
            &["1000 dependents", "default flags"],
            &[lifted],
        );
        check(
            Row::Orphan3000,
            &[],
            &["no dependent has an owner reference", lifted],
            &["canary is"],
        );
        check(
            Row::MemoryEmpty,
            &[],
            &["nothing but what an apiserver makes. Resident"],
            &["0 ConfigMaps"],
        );
        check(Row::Memory5000Large, &[], &["5000 ConfigMaps of 20000 bytes"], &[]);
    }

    #[test]
    fn who_is_measured_more_often_is_said() {
        let handover = ["those of 21 times; of peer, which takes longest, 6."];
        check(Row::Handover, &[], &handover, &["renewTime"]);
        check(
            Row::Crash,
            &["--rounds=2"],
            &["those of 4 times.", "renewTime"],
            &["; of"],
        );
        check(Row::Standby, &[], &["those of 3 rounds."], &[]);
        check(Row::Standby, &["--rounds=1"], &["One round."], &[]);
    }
}
