//! Objects with several schedules, and both versions of one object.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{decide, refused, samples::at};
use crate::{
    conversion::tests::to as converted,
    crontab::CachedCronTab,
    input::ObservedRuns,
    job::CachedJob,
    schedule_resource::{Observed, ScheduleResource},
};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Next, Target};

const V1: &str = "stable.example.com/v1";
const V2: &str = "stable.example.com/v2";

/// A CronTab of v2 whose status records both schedules since 08:30.
fn two_schedules() -> Value {
    json!({
        "apiVersion": V2,
        "kind": "CronTab",
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "1", "generation": 1,
            "creationTimestamp": "2026-03-10T08:30:00Z"},
        "spec": {
            "schedules": [
                {"name": "default", "schedule": "0 * * * *"},
                {"name": "other", "schedule": "0 9 * * *", "timeZone": "UTC"},
            ],
            "template": {
                "metadata": {"labels": {"team": "x"}},
                "spec": {"parallelism": 2, "template": {
                    "metadata": {"annotations": {"k": "v"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                }},
            },
        },
        "status": {
            "jobNameFormat": "Hashed", "observedGeneration": 1,
            "schedules": [
                {"name": "default", "observedSchedule": "0 * * * * UTC"},
                {"name": "other", "observedSchedule": "0 9 * * * UTC"},
            ],
        },
    })
}

fn observed(object: &Value, jobs: &[Value]) -> Observed<CachedCronTab> {
    let jobs = jobs.iter().map(|job| {
        let mut job = job.clone();
        job["metadata"]["uid"] = job["metadata"]["name"].clone();
        let job: CachedJob = serde_json::from_str(&job.to_string()).expect("the JSON is a Job");
        Arc::new(job)
    });
    let object = serde_json::from_str(&object.to_string()).expect("the JSON is a CronTab");
    Observed::new(Arc::new(object), jobs.collect(), ObservedRuns::default())
}

fn created(observed: &Observed<CachedCronTab>, time: &str) -> Vec<Value> {
    bodies(decide(observed, at(time)).effects).collect()
}

/// Returns the Jobs that these effects create.
fn bodies(effects: Vec<Effect>) -> impl Iterator<Item = Value> {
    effects.into_iter().filter_map(|effect| match effect {
        Effect::Create(job) => Some(job.body),
        _ => None,
    })
}

fn names(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().filter_map(|job| job["metadata"]["name"].as_str()).collect()
}

fn status(observed: &Observed<CachedCronTab>, time: &str) -> Value {
    let mut effects = decide(observed, at(time)).effects.into_iter();
    let patched = effects.find_map(|effect| match effect {
        Effect::PatchStatus { target, status } => Some(json!([target.resource.version, status])),
        _ => None,
    });
    patched.expect("the status changes")
}

#[test]
fn schedules_with_the_same_time_start_a_run_each() {
    let jobs = created(&observed(&two_schedules(), &[]), "09:00");
    assert_eq!(names(&jobs), ["a-a299e94a-t29552220", "a-e44c9189-t29552220"]);
    let schedule = |job: &Value| job["metadata"]["annotations"]["stable.example.com/schedule"].clone();
    assert_eq!(
        jobs.iter().map(schedule).collect::<Vec<_>>(),
        [Value::Null, "other".into()]
    );
    for job in &jobs {
        assert_eq!(
            job["metadata"]["labels"],
            json!({"team": "x", "stable.example.com/crontab": "a"})
        );
        assert_eq!(job["metadata"]["ownerReferences"][0]["apiVersion"], V1);
        assert_eq!(job["spec"]["parallelism"], 2);
        let pods = &job["spec"]["template"];
        assert_eq!(pods["metadata"]["labels"]["stable.example.com/crontab"], "a");
        assert_eq!(pods["metadata"]["annotations"]["k"], "v");
        assert_eq!(pods["spec"]["restartPolicy"], "Never");
    }
    // Each has started once, and the next time is that of `default` alone.
    let started = observed(&two_schedules(), &jobs);
    assert!(created(&started, "09:30").is_empty());
    assert_eq!(decide(&started, at("09:30")).next, Next::At(at("10:00")));
    assert_eq!(created(&started, "10:00").len(), 1);
}

#[test]
fn both_versions_of_an_object_have_the_same_runs() {
    let v2 = two_schedules();
    let v1 = converted(V1, &v2);
    let jobs = created(&observed(&v2, &[]), "09:00");
    assert_eq!(created(&observed(&v1, &[]), "09:00"), jobs);
    // Each status is written in the version of the object, and says the same.
    let (mut patched_1, patched_2) = (
        status(&observed(&v1, &jobs), "09:30"),
        status(&observed(&v2, &jobs), "09:30"),
    );
    assert_eq!((&patched_1[0], &patched_2[0]), (&json!("v1"), &json!("v2")));
    let top = &patched_1[1];
    assert_eq!(top["lastScheduleTime"], "2026-03-10T09:00:00Z");
    assert_eq!(top["nextScheduleTime"], "2026-03-10T10:00:00Z");
    assert_eq!(
        patched_2[1]["schedules"],
        json!([
            {"name": "default", "lastScheduleTime": "2026-03-10T09:00:00Z", "nextScheduleTime": "2026-03-10T10:00:00Z",
             "active": 1, "observedSchedule": "0 * * * * UTC"},
            {"name": "other", "lastScheduleTime": "2026-03-10T09:00:00Z", "nextScheduleTime": "2026-03-11T09:00:00Z",
             "active": 1, "observedSchedule": "0 9 * * * UTC"},
        ])
    );
    // A merge patch of v1 removes absent times with null.
    let status_1 = patched_1[1].as_object_mut().expect("an object");
    assert_eq!(status_1.get("lastMissedTime"), Some(&Value::Null));
    for absent in ["lastMissedTime", "scheduledSince"] {
        status_1.remove(absent);
    }
    assert_eq!(status_1.remove("missedRuns"), Some(0.into()));
    let in_v2 = converted(V2, &json!({"status": patched_1[1]}));
    assert_eq!(in_v2["status"], patched_2[1]);
}

#[test]
fn forbid_and_replace_apply_across_schedules() {
    let with_policy = |policy: &str| {
        let mut object = two_schedules();
        object["spec"]["runPolicy"] = json!({"concurrencyPolicy": policy});
        object
    };
    let forbid = with_policy("Forbid");
    let first = created(&observed(&forbid, &[]), "09:00");
    assert_eq!(names(&first), ["a-a299e94a-t29552220"]);
    assert!(
        created(&observed(&forbid, &first), "09:00").is_empty(),
        "the first run is active"
    );
    let mut finished = first.clone();
    finished[0]["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    let second = created(&observed(&forbid, &finished), "09:10");
    assert_eq!(
        names(&second),
        ["a-e44c9189-t29552220"],
        "it starts once the other has ended"
    );

    let mut replace = with_policy("Replace");
    let first = created(&observed(&replace, &[]), "09:00");
    assert_eq!(first.len(), 1);
    // The status records the run first, because nothing else does once its Job is deleted.
    assert!(created(&observed(&replace, &first), "09:00").is_empty());
    replace["status"]["schedules"][0]["lastScheduleTime"] = "2026-03-10T09:00:00Z".into();
    let plan = decide(&observed(&replace, &first), at("09:00")).to_string();
    assert!(plan.contains("delete Job n/a-a299e94a-t29552220"), "{plan}");
    assert!(plan.contains("create Job n/a-e44c9189-t29552220"), "{plan}");
}

#[test]
fn a_run_of_one_schedule_that_replaced_another_records_it() {
    let mut object = two_schedules();
    object["spec"]["runPolicy"] = json!({"concurrencyPolicy": "Replace"});
    let first = created(&observed(&object, &[]), "09:00");
    let replacing = observed(&object, &first);
    let target = Target::of(&replacing.object.resource(), replacing.object.metadata());
    let rejected = Effect::PatchStatus {
        target,
        status: Value::Null,
    };
    let plan = refused(&replacing, &rejected, "no", at("09:00"));
    let text = plan.to_string();
    let create = text.find("create Job n/a-e44c9189-t29552220");
    assert!(
        create.is_some() && create < text.find("delete Job n/a-a299e94a-t29552220"),
        "{text}"
    );
    let jobs: Vec<_> = bodies(plan.effects).collect();
    let annotations = &jobs[0]["metadata"]["annotations"];
    assert_eq!(
        annotations["stable.example.com/replaced-runs"],
        r#"{"jobs":["a-a299e94a-t29552220"],"scheduled":{"default":["2026-03-10T09:00:00Z"]}}"#
    );

    // Another process finds only the second Job.
    let later = observed(&object, &jobs);
    assert!(created(&later, "09:10").is_empty());
    let patched = status(&later, "09:10");
    let last = |index: usize| &patched[1]["schedules"][index]["lastScheduleTime"];
    assert_eq!(
        (last(0), last(1)),
        (&json!("2026-03-10T09:00:00Z"), &json!("2026-03-10T09:00:00Z"))
    );
    assert_eq!(patched[1]["schedules"][0].get("missedRuns"), None, "{patched}");
    assert_eq!(patched[1]["schedules"][0].get("active"), None, "{patched}");
}

/// `kubectl wait`, Helm and Flux wait for Ready.
#[test]
fn a_suspended_crontab_is_ready() {
    let mut whole = two_schedules();
    whole["spec"]["suspend"] = true.into();
    let mut each = two_schedules();
    for index in [0, 1] {
        each["spec"]["schedules"][index]["suspend"] = true.into();
    }
    let mut one = two_schedules();
    one["spec"]["schedules"][0]["suspend"] = true.into();
    let mut invalid = whole.clone();
    invalid["spec"]["schedules"][1]["schedule"] = "61 * * * *".into();
    for (object, expected, reason) in [
        (&whole, "True", "Suspended"),
        (&each, "True", "Suspended"),
        (&one, "True", "Scheduled"),
        (&invalid, "False", "InvalidSchedule"),
    ] {
        let patched = status(&observed(object, &[]), "08:45");
        let ready = &patched[1]["conditions"][1];
        assert_eq!(
            (&ready["type"], &ready["status"]),
            (&json!("Ready"), &json!(expected)),
            "{ready}"
        );
        assert_eq!(ready["reason"], reason, "{ready}");
    }
}

#[test]
fn one_schedule_can_be_suspended_invalid_added_and_removed() {
    let mut suspended = two_schedules();
    suspended["spec"]["schedules"][1]["suspend"] = true.into();
    assert_eq!(created(&observed(&suspended, &[]), "09:00").len(), 1);
    let patched = status(&observed(&suspended, &[]), "08:45");
    assert_eq!(patched[1]["schedules"][1]["suspended"], true);
    assert_eq!(patched[1]["schedules"][1].get("nextScheduleTime"), None);

    let mut invalid = two_schedules();
    invalid["spec"]["schedules"][1]["schedule"] = "nonsense".into();
    assert_eq!(created(&observed(&invalid, &[]), "09:00").len(), 1, "the others start");
    let patched = status(&observed(&invalid, &[]), "08:45");
    let message = patched[1]["conditions"][0]["message"].as_str().expect("a message");
    assert!(message.starts_with(".spec.schedules[other].schedule: "), "{message}");

    // Times before a schedule was added are not caught up.
    let mut added = two_schedules();
    added["status"]["schedules"].as_array_mut().expect("a list").truncate(1);
    added["spec"]["schedules"][1]["schedule"] = "45 8 * * *".into();
    assert!(created(&observed(&added, &[]), "08:50").is_empty());

    // The runs of a removed schedule are history.
    let jobs = created(&observed(&two_schedules(), &[]), "09:00");
    let mut removed = two_schedules();
    removed["spec"]["schedules"].as_array_mut().expect("a list").truncate(1);
    let patched = status(&observed(&removed, &jobs), "09:10");
    assert_eq!(patched[1]["schedules"].as_array().map(Vec::len), Some(1));
    assert_eq!(patched[1]["activeCount"], 2);
}

#[test]
fn the_names_of_default_keep_their_format() {
    let mut object = two_schedules();
    object["status"]["jobNameFormat"] = Value::Null;
    let jobs = created(&observed(&object, &[]), "09:00");
    assert_eq!(names(&jobs), ["a-29552220", "a-e44c9189-t29552220"]);
    let prefixes = observed(&object, &[]);
    let schedules = prefixes.object.schedule_fields();
    let prefixes = prefixes.names().prefixes(schedules.iter().map(|(name, _)| &**name));
    assert_eq!(prefixes, ["a-e44c9189", "a"]);
}
