use expect_test::{Expect, expect};
use portreeve_api::ObjectKey;
use portreeve_informer::{Reconnects, WatchFailure};
use tokio::time::Instant;

use super::*;

const STALE: Duration = Duration::from_mins(2);
const SOON: Duration = Duration::from_secs(1);

fn synced() -> Report {
    Report {
        name: "foos".to_owned(),
        resource: portreeve_api::CRDS,
        synced: true,
        last_contact: Some(Instant::now()),
        failure: None,
        conversion: None,
        undecodable: Vec::new(),
        objects: 1,
        reconnects: Reconnects::default(),
        resource_version: None,
        processing: None,
    }
}

fn unsynced() -> Report {
    Report {
        synced: false,
        ..synced()
    }
}

fn troubled(kind: ApiErrorKind, report: Report) -> Report {
    let message = "why".to_owned();
    let failure = Some(WatchFailure { kind, message });
    Report { failure, ..report }
}

fn fails(report: &Report, after: Duration) -> bool {
    let age = report.last_contact.map(|_| after);
    matches!(watch(report, STALE, age), HealthStatus::Failed(_))
}

#[test]
fn readiness_fails_only_for_conditions_that_an_operator_must_fix() {
    let undecodable = vec![(ObjectKey::namespaced("n", "a"), "bad".to_owned())];
    let bad = Report {
        undecodable,
        ..synced()
    };
    let table = [
        ("synced", synced(), SOON, false),
        ("silent for too long", synced(), STALE + SOON, true),
        ("first list in progress", unsynced(), SOON, true),
        ("forbidden", troubled(ApiErrorKind::Forbidden, synced()), SOON, true),
        ("not served", troubled(ApiErrorKind::NotFound, unsynced()), SOON, false),
        (
            "no longer served",
            troubled(ApiErrorKind::NotFound, synced()),
            STALE * 9,
            false,
        ),
        ("reconnecting", troubled(ApiErrorKind::Transient, synced()), SOON, false),
        (
            "reconnecting for too long",
            troubled(ApiErrorKind::Transient, synced()),
            STALE * 2,
            true,
        ),
        (
            "unreachable from the start",
            troubled(ApiErrorKind::Transient, unsynced()),
            SOON,
            true,
        ),
        ("an object that cannot be decoded", bad, SOON, false),
    ];
    for (case, report, after, expected) in table {
        assert_eq!(fails(&report, after), expected, "{case}");
    }
}

const LIMITS: Limits = Limits {
    item: Duration::from_mins(5),
    queue: Duration::from_mins(5),
};

/// A queue of Foos. Ages are in seconds: since the last progress of the running item, since the
/// oldest ready item was due, and since the last progress of the queue.
fn queue(still: Option<u64>, oldest: Option<u64>, since_progress: Option<u64>) -> QueueHealth {
    QueueHealth {
        queue: "foo",
        longest_stalled: still.map(|still| ("default/web".to_owned(), Duration::from_secs(still))),
        ready: usize::from(oldest.is_some()) * 1000,
        oldest_ready: oldest.map(Duration::from_secs),
        since_progress: since_progress.map(Duration::from_secs),
    }
}

fn shown(state: &HealthStatus) -> String {
    match state {
        HealthStatus::Ok => "ok".to_owned(),
        HealthStatus::Note(note) => format!("note: {note}"),
        HealthStatus::Failed(reason) => format!("failed: {reason}"),
    }
}

#[test]
fn liveness_fails_for_stuck_queues_and_not_for_busy_ones() {
    let table = [
        ("never used", queue(None, None, None), false),
        ("nothing to do for a day", queue(None, None, Some(86_400)), false),
        (
            "a new item after a quiet day",
            queue(None, Some(1), Some(86_400)),
            false,
        ),
        ("a slow item", queue(Some(300), None, Some(300)), false),
        ("an item that hangs", queue(Some(301), None, Some(301)), true),
        (
            "an item that hangs while others make progress",
            queue(Some(301), Some(2), Some(1)),
            true,
        ),
        (
            "a long queue that makes progress",
            queue(Some(1), Some(9_000), Some(1)),
            false,
        ),
        (
            "a lane that is not served for hours",
            queue(Some(0), Some(90_000), Some(0)),
            false,
        ),
        (
            "a long queue with slow items",
            queue(Some(290), Some(9_000), Some(290)),
            false,
        ),
        (
            "due items without any worker left",
            queue(None, Some(301), Some(400)),
            true,
        ),
        ("due items that never had a worker", queue(None, Some(301), None), true),
        (
            "due for no longer than the limit",
            queue(None, Some(300), Some(301)),
            false,
        ),
        ("progress within the limit", queue(None, Some(301), Some(300)), false),
    ];
    for (case, health, expected) in table {
        let state = workers(&[queue(None, None, None), health], LIMITS, false);
        assert_eq!(
            matches!(state, HealthStatus::Failed(_)),
            expected,
            "{case}: {}",
            shown(&state)
        );
        assert_eq!(
            matches!(state, HealthStatus::Ok),
            !expected,
            "{case}: {}",
            shown(&state)
        );
    }
}

#[test]
fn each_limit_can_be_disabled() {
    let lifted = Duration::ZERO;
    let of_items = Limits { item: lifted, ..LIMITS };
    let of_queues = Limits {
        queue: lifted,
        ..LIMITS
    };
    let hangs = queue(Some(9_999), None, Some(9_999));
    let waits = queue(None, Some(9_999), None);
    let fails = |health: &QueueHealth, limits| {
        matches!(
            workers(std::slice::from_ref(health), limits, false),
            HealthStatus::Failed(_)
        )
    };
    assert!(!fails(&hangs, of_items) && fails(&waits, of_items));
    assert!(fails(&hangs, of_queues) && !fails(&waits, of_queues));
}

#[test]
fn stuck_workers_do_not_fail_the_check_during_shutdown() {
    let hangs = queue(Some(301), None, Some(301));
    assert!(matches!(workers(&[hangs], LIMITS, true), HealthStatus::Note(_)));
    assert!(matches!(
        workers(&[queue(Some(1), None, None)], LIMITS, true),
        HealthStatus::Ok
    ));
}

fn check(health: &[QueueHealth], limits: Limits, expected: &Expect) {
    expected.assert_eq(&shown(&workers(health, limits, false)));
}

#[test]
fn reason_names_the_queue_the_item_the_limit_and_the_remedy() {
    check(
        &[queue(Some(312), Some(20), Some(312))],
        LIMITS,
        &expect![
            "failed: item default/web of queue foo has made no progress for 312 s, longer than 300s (--controller-stuck-timeout): the worker is stuck. Restart the process; the last log lines of the controller show the cause"
        ],
    );
    check(
        &[queue(None, Some(320), Some(312))],
        LIMITS,
        &expect![
            "failed: queue foo has 1000 items due, the oldest for 320 s, and has made no progress for 312 s, longer than 300s (--queue-stuck-timeout): no worker takes items. Restart the process; the last log lines of the controller show the cause"
        ],
    );
    let patient = Limits {
        item: Duration::from_hours(1),
        ..LIMITS
    };
    check(
        &[queue(Some(312), Some(320), Some(312))],
        patient,
        &expect![
            "failed: queue foo has 1000 items due, the oldest for 320 s, and has made no progress for 312 s, longer than 300s (--queue-stuck-timeout): item default/web of queue foo has made no progress for 312 s. Restart the process; the last log lines of the controller show the cause"
        ],
    );
    check(
        &[queue(Some(400), None, Some(400)), queue(None, Some(301), None)],
        LIMITS,
        &expect![
            "failed: item default/web of queue foo has made no progress for 400 s, longer than 300s (--controller-stuck-timeout): the worker is stuck; queue foo has 1000 items due, the oldest for 301 s, and has made no progress for 301 s, longer than 300s (--queue-stuck-timeout): no worker takes items. Restart the process; the last log lines of the controller show the cause"
        ],
    );
}

#[test]
fn blocked_runtime_fails_the_check_after_the_limit() {
    let limit = Duration::from_mins(5);
    let is_failed = |age, limit| matches!(runtime(age, limit), HealthStatus::Failed(_));
    for (age, limit, expected) in [
        (limit, limit, false),
        (limit + SOON, limit, true),
        (limit * 9, Duration::ZERO, false),
    ] {
        assert_eq!(is_failed(age, limit), expected, "{age:?} {limit:?}");
    }
}
