use clap::Parser;
use expect_test::expect;

use super::*;
use crate::plan::steps;

fn report(args: &[&str], samples: &[(Row, Subject, Measure, f64)]) -> Report {
    let text = |text: &str| text.to_owned();
    let sample = |(row, subject, measure, value): &(Row, Subject, Measure, f64)| Sample {
        row: *row,
        subject: *subject,
        measure: measure.clone(),
        value: *value,
    };
    Report {
        machine: Machine {
            cores: text("2"),
            cpu: text("A CPU"),
            memory: text("23.5 GiB"),
            kernel: text("Linux 6.1"),
            kubernetes: text("v1.36.3"),
            etcd: text("3.6.8"),
            rustc: text("1.95.0"),
            commit: text("abc"),
        },
        command: text("portreeve-bench daemon"),
        date: text("2026-11-21"),
        options: Options::try_parse_from([&["portreeve-bench", "daemon"], args].concat()).unwrap(),
        concurrency: 10,
        default_concurrency: 5,
        samples: samples.iter().map(sample).collect(),
        failures: Vec::new(),
        busiest: 0.02,
    }
}

/// A report with few samples, and a failure.
fn small_report() -> Report {
    let mut samples = Vec::new();
    for (subject, p99s) in [
        (Subject::Floor, [0.5, 0.4, 0.6]),
        (Subject::Peer, [2.0, 1.0, 3.0]),
        (Subject::Portreeve, [1.0, 1.5, 0.9]),
    ] {
        samples.extend(p99s.map(|p99| (Row::Due, subject, Measure::P99, p99)));
        samples.push((Row::Due, subject, Measure::WithinTheMinute, 500.0));
    }
    for (subject, resident) in [(Subject::Peer, 81_920.0), (Subject::PortreeveCrontab, 20_480.0)] {
        samples.push((Row::Memory500, subject, Measure::Resident, resident));
    }
    let search = Measure::Search("*/5 * * * *".to_owned());
    samples.push((Row::Next, Subject::Portreeve, search, 2.5e-7));
    let mut report = report(&[], &samples);
    report.failures = vec!["round 1, due, peer: it ended".to_owned()];
    report
}

#[test]
fn a_report_has_tables_per_task_with_notes_and_runs() {
    expect![[r"
        # Benchmarks

        `make bench` writes this file. It measures Portreeve beside kube-controller-manager, equal
        controllers on other frameworks, and a bare client, in turn on one machine: 2 cores of A CPU, 23.5
        GiB of memory, Linux 6.1; Kubernetes v1.36.3, etcd 3.6.8, rustc 1.95.0. Other programs had at most 2
        % of the CPU time in the second before each measurement. Each measurement has a fresh etcd and
        kube-apiserver, which share the machine with the subject.

        A cell is the median of all rounds. The ratio in it is Portreeve's median divided by this one.
        Resident memory is `VmRSS` after 150 s of rest, once it has stayed within 1 % for ten seconds; peak
        memory is `VmHWM`. A target in MB is taken as MiB. *Lifted limits* are kube-controller-manager's
        `--kube-api-qps=5000 --kube-api-burst=10000`.

        ## Schedules

        | row | measure | floor | kube-controller-manager | portreeve | spread | target | met | measured on |
        |---|---|---|---|---|---|---|---|---|
        | `due` | p99 | 500 ms (2.00 ×) | 2.00 s (0.50 ×) | 1.00 s | 900 ms … 1.50 s | ≤ 1.20 × floor | **no** | abc daemon |
        | `due` | made within the minute | 500 | 500 | 500 | – | all | yes | abc daemon |
        | `memory-500` | resident memory | – | 80.0 MiB | – | – | – | – | abc daemon |
        | `memory-500` | resident memory, CronTabs | – | 80.0 MiB (0.25 ×) | 20.0 MiB | – | ≤ 15 MiB | **no** | abc daemon |

        - **floor**: a bare client that creates the same Jobs from a full second on, and nothing else.
        - **kube-controller-manager**, **portreeve**: `--controllers=cronjob-controller`.
        - **portreeve, CronTabs**: `--controllers=crontab-controller --install-crds`, on as many CronTabs.
        - `due`: 500 schedules in one namespace are due in the same minute. A Job's delay runs from that
          minute until the apiserver has answered the Job's creation, by the audit log. In `due`, subjects
          work on 10 schedules at a time, with lifted limits; in `due-default`, controllers have their
          default flags, and the bare client works on 5 at a time.
        - `memory-500`: 500 and 10000 schedules that are due in half a year exist before the start.
        - Missed by `memory-500`: with `--install-crds`, the daemon generates a definition of 120 kB at its
          start; memory that the allocator keeps of this counts.

        ## Parts

        | row | measure | portreeve | target | met | measured on |
        |---|---|---|---|---|---|
        | `next` | `*/5 * * * *` | 250 ns | ≤ 100 ns | **no** | abc cargo bench |

        - **portreeve**: its crates; no cluster.
        - `next`: medians of criterion, by `cargo bench` on one core: the time of one search for the next
          run; events applied per second to a store of 10,000 Deployments with an index; keys added, taken
          and done per second.
        - Missed by `next`: with daylight saving time, a search for `*/5` looks up the zone's offset twice.

        ## Runs

        | rows | binary | commit | date | rounds | command |
        |---|---|---|---|---|---|
        | `next` | cargo bench | abc | 2026-11-21 | 3 | `portreeve-bench daemon` |
        | `due`, `memory-500` | daemon | abc | 2026-11-21 | 3 | `portreeve-bench daemon` |

        ## Failed measurements

        - round 1, due, peer: it ended
    "]]
    .assert_eq(&small_report().render());
}

/// Returns the measures of a row, in the order of the module that takes them.
fn measures(row: Row) -> Vec<Measure> {
    let benchmarks =
        |count, of: fn(String) -> Measure| (0..count).map(|index| of(format!("*/5 * * * * {index}"))).collect();
    match row {
        Row::Due | Row::DueDefault => vec![Measure::Median, Measure::P99, Measure::Max, Measure::WithinTheMinute],
        Row::Quiet => vec![Measure::CpuTime, Measure::CpuTimeAnHour],
        Row::Handover => vec![Measure::SignalToLease, Measure::SignalToJob, Measure::LeaseToJob],
        Row::Crash => vec![
            Measure::SignalToLease,
            Measure::SignalToJob,
            Measure::RenewalToLease,
            Measure::RenewalToJob,
            Measure::LeaseToJob,
        ],
        Row::Standby => vec![
            Measure::LeaderResident,
            Measure::StandbyResident,
            Measure::StandbyToLeader,
        ],
        Row::Cascade3000 | Row::CascadeDefault | Row::Foreground3000 | Row::Orphan3000 => {
            vec![Measure::DeleteToEnd, Measure::CpuTimeToEnd, Measure::Peak]
        }
        Row::Memory500 | Row::Memory10000 | Row::MemoryEmpty | Row::Memory30000 | Row::Memory5000Large => {
            vec![Measure::Resident, Measure::Peak]
        }
        Row::Graph => vec![
            Measure::BytesANode,
            Measure::AddedASecond,
            Measure::ChangedASecond,
            Measure::RemovedASecond,
        ],
        Row::Foo1000 => vec![
            Measure::PostToDeployment,
            Measure::PostToStatus,
            Measure::CpuTimeToEnd,
            Measure::Peak,
        ],
        Row::FooMemory => vec![Measure::ResidentFirst, Measure::ResidentTenth, Measure::TenthToFirst],
        Row::Deployments50000 => vec![Measure::StartToWork, Measure::Resident, Measure::Peak],
        Row::Shell => vec![Measure::StartToWork, Measure::Resident, Measure::Peak, Measure::Binary],
        Row::Next => benchmarks(16, Measure::Search),
        Row::Store | Row::Queue => benchmarks(2, Measure::Rate),
    }
}

#[test]
fn a_full_report_has_at_most_250_lines() {
    let options = report(&[], &[]).options;
    let steps = steps(&options, &options.subjects());
    let mut pairs: Vec<(Row, Subject)> = steps.iter().map(|step| (step.work.row(), step.subject)).collect();
    let quiet = pairs.iter().filter(|(row, _)| *row == Row::Memory10000);
    let quiet: Vec<_> = quiet.map(|(_, subject)| (Row::Quiet, *subject)).collect();
    pairs.extend(quiet);
    pairs.extend([Row::Next, Row::Store, Row::Queue].map(|row| (row, Subject::Portreeve)));
    let mut samples = Vec::new();
    for (row, subject) in pairs {
        let measures = measures(row).into_iter();
        // The values miss every absolute upper bound. Equal values meet a target that compares
        // subjects.
        samples.extend(measures.map(|measure| (row, subject, measure, 1e9)));
    }
    let text = report(&[], &samples).render();
    for row in Row::value_variants() {
        assert!(
            text.contains(&format!("| `{}` | ", row.name())),
            "{row:?} is missing:\n{text}"
        );
    }
    for limit in ["memory-500", "next", "foo-1000", "foo-memory", "shell"] {
        assert!(text.contains(&format!("Missed by `{limit}`")), "{limit}:\n{text}");
    }
    let lines = text.lines().count();
    assert!(lines <= 250, "{lines} lines:\n{text}");
}
