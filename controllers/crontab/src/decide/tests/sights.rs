//! What a schedule may see of the world, each under the name that the table gives it.

mod alone;

use serde_json::{Value, json};

use super::{
    samples::{Sample, at, slot},
    world::{Record, World},
};

pub(super) use alone::{of_a_cronjob, of_a_crontab};

const DELETED: &str = "2026-03-10T09:30:00Z";

pub(super) type Sights<K> = Vec<(&'static str, World<K>)>;

/// Hourly since 08:30, long settled: it ran at 09:00, that run succeeded, and now it is 09:30.
pub(super) fn routine<K: Sample>() -> World<K> {
    let mut world = running();
    world.finish(&slot("09:00"), "Complete");
    world.settle();
    world.record = Record::default();
    world.go("09:30");
    world
}

/// The same, with that run still under way.
pub(super) fn running<K: Sample>() -> World<K> {
    let mut world = World::new("0 * * * *", "08:30");
    world.settle();
    world.go("09:00:00");
    world.settle();
    world.pass(60);
    world.record = Record::default();
    world.go("09:30");
    world
}

/// At ten o'clock.
pub(super) fn due<K: Sample>(mut world: World<K>) -> World<K> {
    world.go("10:00");
    world
}

pub(super) fn with<K: Sample>(mut world: World<K>, field: &str, value: impl Into<Value>) -> World<K> {
    world.set(field, value);
    world
}

/// It was so for long already: that is stored, and no news.
pub(super) fn since_ever<K: Sample>(world: World<K>, field: &str, value: impl Into<Value>) -> World<K> {
    let mut world = with(world, field, value);
    world.settle();
    world.record = Record::default();
    world
}

fn after<K: Sample>(mut world: World<K>, change: impl FnOnce(&mut World<K>)) -> World<K> {
    change(&mut world);
    world
}

fn terminating<K: Sample>(world: World<K>) -> World<K> {
    after(world, |world| {
        world.touch(|object| object["metadata"]["deletionTimestamp"] = DELETED.into());
    })
}

/// What both kinds see.
pub(super) fn common<K: Sample>() -> Sights<K> {
    [
        times(),
        concurrency(),
        spec_faults(),
        foreign_jobs(),
        own_jobs(),
        histories(),
        changes(),
        misses(),
    ]
    .concat()
}

fn times<K: Sample>() -> Sights<K> {
    vec![
        ("new", World::new("0 * * * *", "08:30")),
        ("not due", routine()),
        ("due", due(routine())),
        ("due while another runs", due(running())),
        ("suspended", due(since_ever(routine(), "suspend", true))),
        ("terminating", due(terminating(routine()))),
        (
            "@every, counted from the creation",
            after(World::new("@every 1h", "08:30"), |world| world.go("09:30")),
        ),
        ("@every, counted from the last run", {
            let mut world = World::new("@every 1h", "08:30");
            world.go("09:30");
            world.settle();
            world.go("10:40");
            world
        }),
    ]
}

fn concurrency<K: Sample>() -> Sights<K> {
    let forbid = || since_ever(running(), "concurrencyPolicy", "Forbid");
    let replace = || since_ever(running(), "concurrencyPolicy", "Replace");
    let gone = |mut world: World<K>| {
        world.remove_job(&slot("09:00"));
        world
    };
    let dying = |mut world: World<K>| {
        world.change_job(
            &slot("09:00"),
            &json!({"metadata": {"deletionTimestamp": "2026-03-10T09:59:59Z"}}),
        );
        world
    };
    let with_deadline = |world| since_ever(world, "startingDeadlineSeconds", 120);
    vec![
        ("Forbid, due, active", due(forbid())),
        ("Forbid, due, the active one went missing", due(gone(forbid()))),
        ("Forbid, due, the active one is terminating", due(dying(forbid()))),
        ("Forbid, due, active, a deadline", due(with_deadline(forbid()))),
        (
            "Forbid, active, the deadline passed",
            after(with_deadline(forbid()), |world| world.go("10:02")),
        ),
        ("Replace, due, active", due(replace())),
        ("Replace, due, the active one went missing", due(gone(replace()))),
        ("Replace, due, the active one is terminating", due(dying(replace()))),
        (
            "Replace, due, the active one is not stored",
            after(since_ever(routine(), "concurrencyPolicy", "Replace"), |world| {
                world.go("10:00");
                world.step();
                world.go("11:00");
            }),
        ),
        (
            "Replace, due, the active one is of a time to come",
            after(since_ever(routine(), "concurrencyPolicy", "Replace"), |world| {
                world.go("12:00");
                world.step();
                world.go("11:00");
            }),
        ),
    ]
}

fn spec_faults<K: Sample>() -> Sights<K> {
    vec![
        ("bad schedule", due(with(routine(), "schedule", "61 * * * *"))),
        ("bad zone", due(with(routine(), "timeZone", "Mars/Olympus"))),
        ("never", due(with(routine(), "schedule", "0 0 31 2 *"))),
        ("bad template", due(with(routine(), "jobTemplate", json!([])))),
        (
            "bad schedule, suspended",
            due(with(with(routine(), "schedule", "61 * * * *"), "suspend", true)),
        ),
    ]
}

fn foreign_jobs<K: Sample>() -> Sights<K> {
    let taken = |owner: Option<&str>| {
        let mut world = due(routine());
        world.add_job(&slot("10:00"), owner, json!({}));
        world
    };
    vec![
        ("the name is taken by a Job of nobody", taken(None)),
        ("the name is taken by a Job of another", taken(Some("uid-9"))),
        (
            "the name was taken",
            after(taken(Some("uid-0")), |world| {
                world.settle();
                world.remove_job(&slot("10:00"));
            }),
        ),
        (
            "Jobs of an earlier namesake",
            after(World::new("0 * * * *", "09:30"), |world| {
                world.add_job(&slot("09:00"), Some("uid-0"), json!({}));
                world.add_job(&slot("08:00"), Some("uid-0"), json!({}));
                world.go("10:00");
            }),
        ),
    ]
}

fn own_jobs<K: Sample>() -> Sights<K> {
    let mine = Some("uid-1");
    let by_hand = json!({"metadata": {"annotations": {"cronjob.kubernetes.io/instantiate": "manual"}}});
    vec![
        (
            "the Job is there, the status does not know",
            after(due(routine()), |world| {
                world.add_job(&slot("10:00"), mine, json!({}));
            }),
        ),
        (
            "a manual Job",
            after(routine(), |world| world.add_job("by-hand", mine, by_hand.clone())),
        ),
        (
            "Forbid, due, a manual Job",
            after(due(since_ever(routine(), "concurrencyPolicy", "Forbid")), |world| {
                world.add_job("by-hand", mine, by_hand.clone());
            }),
        ),
        (
            "due, a manual Job is called like the due one",
            after(due(routine()), |world| {
                world.add_job(&slot("10:00"), mine, by_hand.clone());
            }),
        ),
        (
            "an unexpected Job",
            after(routine(), |world| world.add_job("whose", mine, json!({}))),
        ),
        (
            "a Job of a time to come",
            after(due(routine()), |world| world.add_job(&slot("23:00"), mine, json!({}))),
        ),
        (
            "a completed Job",
            after(running(), |world| world.finish(&slot("09:00"), "Complete")),
        ),
        (
            "a failed Job",
            after(running(), |world| world.finish(&slot("09:00"), "Failed")),
        ),
        (
            "a missing Job",
            after(running(), |world| world.remove_job(&slot("09:00"))),
        ),
        (
            "an active Job that nobody owns any more",
            after(running(), |world| {
                world.change_job(&slot("09:00"), &json!({"metadata": {"ownerReferences": []}}));
            }),
        ),
        (
            "all Jobs are gone",
            after(due(routine()), |world| world.remove_job(&slot("09:00"))),
        ),
    ]
}

/// A Job that began at that time and ended.
pub(super) fn ended<K: Sample>(world: &mut World<K>, name: &str, began: &str, how: &str) {
    let began = format!("{:.0}", at(began));
    world.add_job(
        name,
        Some("uid-1"),
        json!({"metadata": {"creationTimestamp": began}, "status": {"startTime": began}}),
    );
    world.finish(name, how);
}

fn histories<K: Sample>() -> Sights<K> {
    let long = |limits: Value| {
        let mut world = with(routine(), "successfulJobsHistoryLimit", limits[0].clone());
        world.set("failedJobsHistoryLimit", limits[1].clone());
        world.settle();
        for time in ["05:00", "04:00", "06:00", "07:00"] {
            ended(&mut world, &slot(time), time, "Complete");
        }
        for time in ["03:00", "02:00"] {
            ended(&mut world, &slot(time), time, "Failed");
        }
        ended(&mut world, "by-hand", "01:00", "Complete");
        world.record = Record::default();
        world
    };
    vec![
        ("history, no limits", long(json!([null, null]))),
        ("history, 3 and 1", long(json!([3, 1]))),
        ("history, 0 and 0", long(json!([0, 0]))),
        (
            "history, the last run is not stored",
            after(long(json!([0, 0])), |world| {
                world.settle();
                world.go("10:00");
                ended(world, &slot("10:00"), "10:00", "Complete");
            }),
        ),
        ("history, terminating", terminating(long(json!([0, 0])))),
    ]
}

fn changes<K: Sample>() -> Sights<K> {
    let to_ten_minutes = || with(routine::<K>(), "schedule", "*/10 * * * *");
    vec![
        ("rescheduled", to_ten_minutes()),
        (
            "rescheduled, and due",
            after(to_ten_minutes(), |world| {
                world.settle();
                world.go("09:40");
            }),
        ),
        ("rescheduled, and due before that was stored", {
            let mut world = to_ten_minutes();
            world.sync();
            world.go("09:40");
            world
        }),
        ("rescheduled while nobody looked", {
            let mut world = to_ten_minutes();
            world.restart();
            world
        }),
        ("another zone", with(routine(), "timeZone", "Asia/Kolkata")),
        ("the clock was set back", {
            let mut world = due(routine());
            world.settle();
            world.go("08:59:59");
            world
        }),
        ("the clock was set back before that was stored", {
            let mut world = due(routine());
            world.step();
            world.go("09:59:59");
            world
        }),
        (
            "the clock was set forward",
            after(routine(), |world| world.go("2026-03-12T10:00:00.5Z")),
        ),
    ]
}

fn misses<K: Sample>() -> Sights<K> {
    let with_deadline = || since_ever(routine::<K>(), "startingDeadlineSeconds", 60);
    vec![
        ("several missed", after(routine(), |world| world.go("12:10"))),
        (
            "more than a hundred missed",
            after(since_ever(routine(), "startingDeadlineSeconds", 1_000_000), |world| {
                world.go("2026-03-19T10:00:00Z");
            }),
        ),
        (
            "just within the deadline",
            after(with_deadline(), |world| world.go("10:00:59")),
        ),
        ("the deadline passed", after(with_deadline(), |world| world.go("10:01"))),
        (
            "the deadline passed thrice",
            after(with_deadline(), |world| world.go("12:01")),
        ),
        (
            "a miss that was reported",
            after(with_deadline(), |world| {
                world.go("10:01");
                world.settle();
            }),
        ),
        (
            "missed while it was suspended",
            after(since_ever(with_deadline(), "suspend", true), |world| {
                world.go("12:10");
                world.set("suspend", false);
            }),
        ),
        (
            "due while it was suspended",
            after(since_ever(routine(), "suspend", true), |world| {
                world.go("12:10");
                world.set("suspend", false);
            }),
        ),
    ]
}
