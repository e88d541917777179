use clap::Parser;
use expect_test::expect_file;

use super::*;
use crate::tables::row;

fn report(samples: Vec<Sample>) -> Report {
    let text = |text: &str| text.to_owned();
    let machine = [
        ("cores", "2"),
        ("cpu", "A CPU"),
        ("memory", "23.5 GiB"),
        ("kernel", "Linux 6.1"),
        ("kubernetes", "v1.36.3"),
        ("etcd", "3.6.8"),
        ("rustc", "1.95.0"),
        ("commit", "abc"),
    ];
    Report {
        machine: machine.map(|(name, value)| (name, text(value))).into(),
        command: text("portreeve-bench daemon"),
        date: text("2026-11-21"),
        options: Options::try_parse_from(["portreeve-bench", "daemon"]).unwrap(),
        samples,
        failures: vec![text("round 1, due, peer: it ended")],
        busiest: 0.02,
    }
}

fn sample(id: &str, subject: Subject, value: Value) -> Sample {
    let row = row(id).unwrap();
    Sample { row, subject, value }
}

#[test]
fn a_report_has_tables_per_family_with_notes_and_runs() {
    let mut samples = Vec::new();
    for (subject, p99s) in [
        (Subject::Floor, [0.5, 0.4, 0.6]),
        (Subject::Peer, [2.0, 1.0, 3.0]),
        (Subject::Portreeve, [1.0, 1.5, 0.9]),
    ] {
        samples.extend(p99s.map(|p99| sample("due", subject, Unit::Seconds.of("p99", p99))));
        samples.push(sample("due", subject, Unit::Count.of("made within the minute", 500.0)));
    }
    for (subject, resident) in [(Subject::Peer, 81_920.0), (Subject::PortreeveCrontab, 20_480.0)] {
        let resident = Unit::Kibibytes.of("resident memory", resident);
        samples.push(sample("memory-500", subject, resident));
    }
    let search = Unit::Seconds.of("*/5 * * * *", 2.5e-7);
    samples.push(sample("next", Subject::Portreeve, search));
    expect_file!["expected.md"].assert_eq(&report(samples).render());
}

#[test]
fn a_full_report_has_every_row_and_the_reasons_of_missed_targets() {
    let mut samples = Vec::new();
    for row in rows() {
        for subject in row.subjects.iter().copied() {
            // The values miss every absolute upper bound. Equal values meet a target that compares
            // subjects.
            let values = row.targets.keys().map(|measure| Unit::Seconds.of(measure, 1e9));
            let values = values.chain([Unit::Count.of("another measure", 1.0)]);
            samples.extend(values.map(|value| Sample { row, subject, value }));
        }
    }
    let text = report(samples).render();
    for row in rows() {
        let family = row.family().unwrap();
        let is_described = |subject: &Subject| !family.legend(*subject).is_empty();
        assert!(row.subjects.iter().all(is_described) && !row.method().is_empty());
        assert!(
            text.contains(&format!("| `{}` | ", row.id)),
            "{} is missing:\n{text}",
            row.id
        );
        let has_reason = text.contains(&format!("Missed by `{}`", row.id));
        assert_eq!(has_reason, row.missed.is_some(), "{}", row.id);
    }
    let prose = text.lines().filter(|line| !line.starts_with('|'));
    for line in prose {
        assert!(!line.contains('{'), "a placeholder is left: {line}");
    }
}
