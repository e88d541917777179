use portreeve_api::ObjectKey;
use portreeve_informer::Trouble;

use super::*;

const STALE: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(1);

fn synced() -> Report {
    Report {
        name: "foos".to_owned(),
        synced: true,
        last_contact: Some(Instant::now()),
        trouble: None,
        undecodable: Vec::new(),
        objects: 1,
    }
}

fn unsynced() -> Report {
    Report {
        synced: false,
        ..synced()
    }
}

fn troubled(answer: Answer, report: Report) -> Report {
    let message = "why".to_owned();
    let trouble = Some(Trouble { answer, message });
    Report { trouble, ..report }
}

fn fails(report: &Report, after: Duration) -> bool {
    let now = report.last_contact.unwrap_or_else(Instant::now) + after;
    matches!(watch(report, STALE, now), State::Failed(_))
}

#[test]
fn readiness_fails_for_what_an_operator_must_look_at_and_for_nothing_else() {
    let undecodable = vec![(ObjectKey::namespaced("n", "a"), "bad".to_owned())];
    let bad = Report {
        undecodable,
        ..synced()
    };
    let table = [
        ("synced", synced(), SOON, false),
        ("silent for too long", synced(), STALE + SOON, true),
        ("first list under way", unsynced(), SOON, true),
        ("forbidden", troubled(Answer::Forbidden, synced()), SOON, true),
        ("not served", troubled(Answer::NotFound, unsynced()), SOON, false),
        (
            "not served any more",
            troubled(Answer::NotFound, synced()),
            STALE * 9,
            false,
        ),
        ("reconnecting", troubled(Answer::Transient, synced()), SOON, false),
        (
            "reconnecting for too long",
            troubled(Answer::Transient, synced()),
            STALE * 2,
            true,
        ),
        (
            "unreachable from the start",
            troubled(Answer::Transient, unsynced()),
            SOON,
            true,
        ),
        ("an object that cannot be decoded", bad, SOON, false),
    ];
    for (case, report, after, expected) in table {
        assert_eq!(fails(&report, after), expected, "{case}");
    }
}

#[test]
fn liveness_fails_for_a_stuck_worker_and_not_for_a_busy_one() {
    let running = |seconds| Vitals {
        longest_running: Some(Duration::from_secs(seconds)),
    };
    assert!(matches!(worker(&[running(299)]), State::Ok));
    assert!(matches!(worker(&[running(1), running(301)]), State::Failed(_)));
}
