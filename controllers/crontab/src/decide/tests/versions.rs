//! CronTabs whose first status was written by an earlier version or by the current one, rolling
//! updates and rollbacks between the two, and CronTabs that are restored from a backup.

use proptest::{prelude::*, sample::select};
use serde_json::Value;

use super::{
    clock::{CheckedSimulation, Event, check_runs_of, events, fields},
    simulation::Simulation,
};
use crate::{api::JobNameFormat, crontab::CachedCronTab, schedule_resource::ScheduleResource as _};

type CronTab = Simulation<CachedCronTab>;

/// Returns an hourly CronTab, created at 08:30, that no process has reconciled.
fn new() -> CronTab {
    Simulation::new("0 * * * *", "08:30")
}

fn format(simulation: &CronTab) -> Option<JobNameFormat> {
    simulation.current_object().job_name_format()
}

fn created(simulation: &CronTab) -> Vec<&str> {
    simulation.record.created.keys().map(|name| &**name).collect()
}

#[test]
fn jobs_have_the_other_format_if_the_definition_drops_the_field() {
    let mut simulation = new();
    simulation.is_earlier_definition = true;
    simulation.converge_at("09:00");
    assert_eq!((format(&simulation), created(&simulation)), (None, vec!["a-29552220"]));
}

#[test]
fn rollback_of_a_suspended_and_idle_crontab_starts_no_run_twice() {
    let mut simulation = new();
    simulation.converge();
    simulation.converge_at("09:00");
    simulation.set("suspend", true);
    simulation.finish("a-a299e94a-t29552220", "Complete");
    simulation.converge();
    simulation.restart_as(true);
    simulation.set("suspend", false);
    simulation.converge();
    assert_eq!(created(&simulation), ["a-a299e94a-t29552220"]);
    simulation.converge_at("10:00");
    assert_eq!(created(&simulation), ["a-29552280", "a-a299e94a-t29552220"]);
    // The next update continues with the recorded format.
    simulation.restart_as(false);
    simulation.converge();
    simulation.converge_at("11:00");
    assert_eq!(
        (format(&simulation), created(&simulation).len()),
        (Some(JobNameFormat::Hashed), 3)
    );
    assert!(
        created(&simulation).contains(&"a-a299e94a-t29552340"),
        "{:?}",
        created(&simulation)
    );
}

/// Returns the object as a backup has it, with a new identity. Without its status, as the apiserver
/// creates it.
fn restored(simulation: &CronTab) -> CronTab {
    let mut object = simulation.object.clone();
    object["status"] = Value::Null;
    let mut restored = Simulation::of(object, simulation.clock);
    restored.touch(|object| object["metadata"]["uid"] = "uid-2".into());
    restored
}

#[test]
fn restored_crontab_does_not_repeat_its_last_requested_run() {
    for suspend in [false, true] {
        let mut simulation = new();
        simulation.set("suspend", suspend);
        simulation.converge();
        simulation.run_now("1");
        simulation.converge();
        assert_eq!(created(&simulation), ["a-a299e94a-r340ca71c"]);
        let mut restored = restored(&simulation);
        restored.converge();
        assert_eq!(created(&restored), [""; 0], "suspended: {suspend}");
        assert_eq!(restored.reasons(), ["SkippedRunNow"]);
        assert_eq!(restored.object["status"]["lastRunNow"], "1");
        restored.restart();
        restored.converge();
        assert_eq!(restored.reasons(), ["SkippedRunNow"], "the status records it");
        restored.run_now("2");
        restored.converge();
        assert_eq!(created(&restored), ["a-a299e94a-r370cabd5"], "suspended: {suspend}");
    }
}

#[test]
fn takeover_does_not_lose_a_requested_run() {
    // An earlier version has started a run and written no status yet.
    for is_same_run in [false, true] {
        let mut simulation = new();
        simulation.is_earlier_version = true;
        let mut expected = vec!["a-run-340ca71c"];
        if is_same_run {
            simulation.run_now("1");
            simulation.step();
        } else {
            simulation.set_clock("09:00");
            simulation.step();
            simulation.run_now("1");
            expected.insert(0, "a-29552220");
        }
        assert!(simulation.object["status"].is_null());
        simulation.restart_as(false);
        simulation.converge();
        assert_eq!(created(&simulation), expected);
        assert!(!simulation.reasons().contains(&"SkippedRunNow"));
    }
}

/// Inserts the takeovers by the other version at these positions.
fn with_switches(events: Vec<Event>, switches: Vec<(usize, bool)>) -> Vec<Event> {
    let is_request = |event: &Event| matches!(event, Event::RunNow);
    let mut events: Vec<_> = events.into_iter().filter(|event| !is_request(event)).collect();
    for (index, is_earlier) in switches {
        let index = index % (events.len() + 1);
        events.insert(index, Event::SwitchVersion { is_earlier });
    }
    events
}

fn schedules() -> impl Strategy<Value = &'static str> {
    select(vec![
        "* * * * *",
        "*/5 * * * *",
        "30 2 * * *",
        "0 * * * *",
        "@every 1m30s",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rolling_update_creates_one_job_per_time(
        schedule in schedules(),
        fields in fields(),
        events in events(),
        update: usize,
    ) {
        let mut checked = CheckedSimulation::<CachedCronTab>::new(schedule, &fields);
        checked.simulation.is_earlier_version = true;
        check_runs_of(checked, &fields, &with_switches(events, vec![(update, false)]));
    }

    #[test]
    fn updates_and_rollbacks_create_one_job_per_time_under_names_of_the_earlier_format(
        schedule in schedules(),
        fields in fields(),
        events in events(),
        switches in proptest::collection::vec(any::<(usize, bool)>(), 0..6),
    ) {
        let mut checked = CheckedSimulation::<CachedCronTab>::new(schedule, &fields);
        checked.simulation.is_earlier_version = true;
        checked.converge();
        assert_eq!(checked.simulation.object["status"].get("jobNameFormat"), None);
        check_runs_of(checked, &fields, &with_switches(events, switches));
    }
}
