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
fn a_report_has_a_table_and_says_how_each_row_is_measured() {
    let mut samples = Vec::new();
    for (subject, p99s) in [
        (Subject::Floor, [0.5, 0.4, 0.6]),
        (Subject::Peer, [2.0, 1.0, 3.0]),
        (Subject::Portreeve, [1.0, 1.5, 0.9]),
    ] {
        samples.extend(p99s.map(|p99| sample("due", subject, Unit::Seconds.of("p99", p99))));
        samples.push(sample(
            "due",
            subject,
            Unit::Count.of("a measure that is not shown", 500.0),
        ));
    }
    samples.push(sample("due", Subject::PortreeveCrontab, Unit::Seconds.of("p99", 0.55)));
    for (subject, max) in [(Subject::Floor, 4.0), (Subject::PortreeveCrontab, 4.4)] {
        samples.push(sample("due-5000", subject, Unit::Seconds.of("max", max)));
    }
    for (subject, resident) in [(Subject::Peer, 81_920.0), (Subject::Portreeve, 20_480.0)] {
        let resident = Unit::Kibibytes.of("resident memory", resident);
        samples.push(sample("shell", subject, resident));
    }
    expect_file!["expected.md"].assert_eq(&report(samples).render());
}

#[test]
fn a_full_report_has_every_row_and_the_reasons_of_missed_targets() {
    let mut samples = Vec::new();
    for row in rows() {
        for subject in row.subjects.iter().copied() {
            // Portreeve misses every target.
            let number = if subject.is_ours() { 1e9 } else { 1e8 };
            let values = row
                .measures
                .iter()
                .map(|measure| Unit::Seconds.of(&measure.name, number));
            samples.extend(values.map(|value| Sample { row, subject, value }));
        }
    }
    let text = report(samples).render();
    for row in rows() {
        assert!(row.family().is_ok() && !row.method().is_empty());
        assert!(
            text.contains(&format!("| `{}` | ", row.id)),
            "{} is missing:\n{text}",
            row.id
        );
        let reason = format!("- `{}`: ", row.id);
        let (_, reasons) = text.split_once("## What is missed").unwrap();
        assert_eq!(reasons.contains(&reason), row.missed.is_some(), "{}", row.id);
    }
    let (lines, rows) = (
        text.lines().count(),
        text.lines().filter(|line| line.starts_with("| `")).count(),
    );
    assert!(
        lines <= 150 && rows <= 40,
        "the report has {lines} lines and {rows} rows:\n{text}"
    );
    let prose = text.lines().filter(|line| !line.starts_with('|'));
    for line in prose {
        assert!(!line.contains('{'), "a placeholder is left: {line}");
    }
}
