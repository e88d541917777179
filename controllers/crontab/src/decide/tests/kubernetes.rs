//! The cases of Kubernetes' `TestControllerV2SyncCronJob`
//! (`pkg/controller/cronjob/cronjob_controllerv2_test.go`) as a table: the input, and the state
//! after the controller has converged.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use portreeve_reconcile::Next;
use serde_json::{Value, json};

use super::{
    samples::Sample,
    simulation::{Outcome, Simulation},
};
use crate::cronjob::CachedCronJob;

/// Columns: the case's name in Kubernetes | the input | the result in Kubernetes | the result here
/// if it differs, and the reason:
///
/// - miss: an expired run is reported, once. Kubernetes reports it only if a sync happens at the
///   right moment.
/// - stored: the status follows the Jobs, even if the plan that started the run could not write it.
/// - get: cached objects are not read again. A GET is only for objects that the cache lacks.
/// - every: a deadline shorter than the period of an `@every` does not prevent the run. In
///   Kubernetes this case is commented out, because it fails.
/// - reasons: a schedule that cannot be parsed is reported under both of Kubernetes' reasons.
/// - error: the worker retries the failed write, and no status reports an error in the meantime.
///
/// The schedule runs on the hour. It was created at 09:59, or at 08:59 if it has a Job for a time:
/// finished (`done`) or still active (`run`). With a Job, the recorded last time is `last`, by
/// default 09:01. Times are on 19 May 2016.
const SYNC: &str = "
    never ran, not valid schedule, A          | schedule=bad now=09:59                          | active=0 warn=1 next=- | active=0 warn=2 next=- reasons
    never ran, not valid schedule, F          | F schedule=bad now=09:59                        | active=0 warn=1 next=- | active=0 warn=2 next=- reasons
    never ran, not valid schedule, R          | R schedule=bad now=09:59                        | active=0 warn=1 next=- | active=0 warn=2 next=- reasons
    never ran, not valid time zone            | zone=bad now=09:59                              | active=0 warn=1 next=- |
    never ran, not time, A                    | now=09:59                                       | active=0 next=1m |
    never ran, not time, F                    | F now=09:59                                     | active=0 next=1m |
    never ran, not time, R                    | R now=09:59                                     | active=0 next=1m |
    never ran, not time in zone               | zone=America/New_York now=09:59                 | active=0 next=1m |
    never ran, is time, A                     | now=10:01                                       | create active=1 update next=59m |
    never ran, is time, F                     | F now=10:01                                     | create active=1 update next=59m |
    never ran, is time, R                     | R now=10:01                                     | create active=1 update next=59m |
    never ran, is time in zone, zone disabled | zone=America/New_York now=10:01                 | create active=1 update next=59m |
    never ran, is time in zone                | zone=America/New_York now=10:01                 | create active=1 update next=59m |
    never ran, is time in zone, TZ is also set| schedule=tz zone=America/New_York now=10:01     | create active=1 update warn=1 next=59m |
    never ran, is time, suspended             | suspend now=10:01                               | active=0 next=- |
    never ran, is time, past deadline         | deadline=10 now=10:12                           | active=0 next=48m | active=0 warn=1 next=48m miss
    never ran, is time, not past deadline     | deadline=1000000 now=10:01                      | create active=1 update next=59m |
    prev ran but done, not time, A            | done=09:01 now=09:59                            | active=0 update next=1m |
    prev ran but done, not time, F            | F done=09:01 now=09:59                          | active=0 update next=1m |
    prev ran but done, not time, R            | R done=09:01 now=09:59                          | active=0 update next=1m |
    prev ran but done, is time, A             | done=09:01 now=10:01                            | create active=1 update next=59m |
    prev ran but done, create job failed, A   | done=09:01 exists now=10:01                     | active=1 update next=59m |
    prev ran but done, not active, failed, A  | done=09:01 exists now=10:01                     | active=1 update next=59m |
    prev ran but done, is time, F             | F done=09:01 now=10:01                          | create active=1 update next=59m |
    prev ran but done, is time, R             | R done=09:01 now=10:01                          | create active=1 update next=59m |
    prev ran but done, is time, suspended     | suspend done=09:01 now=10:01                    | active=0 update next=- |
    prev ran but done, is time, past deadline | deadline=10 done=09:01 now=10:01                | active=0 update next=59m | active=0 update warn=1 next=59m miss
    prev ran but done, not past deadline      | deadline=1000000 done=09:01 now=10:01           | create active=1 update next=59m |
    still active, not time, A                 | run=09:01 now=09:59                             | active=1 next=1m |
    still active, not time, F                 | F run=09:01 now=09:59                           | active=1 next=1m |
    still active, not time, R                 | R run=09:01 now=09:59                           | active=1 next=1m |
    still active, is time, A                  | run=09:01 now=10:01                             | create active=2 update next=59m |
    still active, is time, F                  | F run=09:01 now=10:01                           | active=1 event=JobAlreadyActive next=59m |
    still active, is time, R                  | R run=09:01 now=10:01                           | create delete active=1 update next=59m |
    still active, is time, get job failed, R  | R run=09:01 unlisted reject now=10:01           | active=1 warn=1 next=- | active=1 warn=1 next=59m get
    still active, is time, suspended          | suspend run=09:01 now=10:01                     | active=1 next=- |
    still active, is time, past deadline      | deadline=10 run=09:01 now=10:01                 | active=1 next=59m | active=1 warn=1 next=59m miss
    still active, is time, not past deadline  | deadline=1000000 run=09:01 now=10:01            | create active=2 update next=59m |
    long overdue, not past deadline, A        | deadline=1000000 done=09:01 now=26T10:00        | create active=1 update warn=1 next=1h |
    long overdue, not past deadline, R        | R deadline=1000000 done=09:01 now=26T10:00      | create active=1 update warn=1 next=1h |
    long overdue, not past deadline, F        | F deadline=1000000 done=09:01 now=26T10:00      | create active=1 update warn=1 next=1h |
    long overdue, no deadline, A              | done=09:01 now=26T10:00                         | create active=1 update warn=1 next=1h |
    long overdue, no deadline, R              | R done=09:01 now=26T10:00                       | create active=1 update warn=1 next=1h |
    long overdue, no deadline, F              | F done=09:01 now=26T10:00                       | create active=1 update warn=1 next=1h |
    long overdue, past medium deadline, A     | deadline=7200 done=09:01 now=26T10:00           | create active=1 update next=1h |
    long overdue, past short deadline, A      | deadline=10 done=09:01 now=26T10:00             | create active=1 update next=1h |
    long overdue, past medium deadline, R     | R deadline=7200 done=09:01 now=26T10:00         | create active=1 update next=1h |
    long overdue, past short deadline, R      | R deadline=10 done=09:01 now=26T10:00           | create active=1 update next=1h |
    long overdue, past medium deadline, F     | F deadline=7200 done=09:01 now=26T10:00         | create active=1 update next=1h |
    long overdue, past short deadline, F      | F deadline=10 done=09:01 now=26T10:00           | create active=1 update next=1h |
    this ran but done, time drifted back, F   | F done=10:01 now=09:59                          | active=0 update next=1m |
    this started but went missing, A          | deadline=1000000 run=10:00 unlisted now=10:01:00.1   | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    this started but went missing, F          | F deadline=1000000 run=10:00 unlisted now=10:01:00.1 | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    this started but went missing, R          | R deadline=1000000 run=10:00 unlisted now=10:01:00.1 | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    this started, not in active list, A       | deadline=1000000 run=10:00 unknown now=10:01:00.1    | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    this started, not in active list, F       | F deadline=1000000 run=10:00 unknown now=10:01:00.1  | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    this started, not in active list, R       | R deadline=1000000 run=10:00 unknown now=10:01:00.1  | active=1 next=58m59s900ms | active=1 update next=58m59s900ms stored
    @every, never ran, not time               | schedule=every now=10:00                        | active=0 next=59m |
    @every, never ran, is time                | schedule=every created=08:59 now=09:59          | create active=1 update next=1h |
    @every, never ran, past deadline          | schedule=every created=08:59 deadline=10 now=09:59:11 | active=0 next=59m49s | active=0 warn=1 next=59m49s miss
    @every, never ran, not past deadline      | schedule=every created=08:59 deadline=1000000 now=09:59:09 | create active=1 update next=59m51s |
    @every, prev ran but done, not time       | schedule=every done=08:59 last=09:59 now=10:00  | active=0 update next=59m |
    @every, prev ran but done, is time        | schedule=every done=08:59 last=09:59 now=11:00  | create active=1 update next=59m |
    @every, prev ran but done, past deadline  | schedule=every deadline=10 done=08:59 last=09:59 now=10:59:11 | active=0 update next=59m49s | active=0 update warn=1 next=59m49s miss
    @every, prev ran but done, not past       | schedule=every deadline=10 done=08:59 last=09:59 now=10:59:09 | active=0 update next=59m51s | create active=1 update next=59m51s every
    @every, still active, not time            | schedule=every run=09:59 last=09:59 now=10:00   | active=1 next=59m |
    @every, still active, is time             | schedule=every run=08:59 last=08:59 now=10:01   | create active=2 update next=58m |
    @every, still active, past deadline       | schedule=every deadline=10 run=09:59 last=09:59 now=10:59:11 | active=1 next=59m49s | active=1 warn=1 next=59m49s miss
    @every, still active, not past deadline   | schedule=every deadline=1000000 run=09:59 last=09:59 now=10:59:09 | create active=2 update next=59m51s |
    @every, long overdue, no deadline         | schedule=every created=09:01 done=09:01 last=10:01 now=26T10:00 | create active=1 update warn=1 next=1m |
    @every, long overdue, past deadline       | schedule=every created=09:01 deadline=10 done=09:01 last=10:01 now=26T10:01:11 | active=0 update next=59m49s | active=0 update warn=1 next=59m49s miss
    the namespace is terminating              | run=09:01 terminating now=10:01                 | active=1 next=- | active=1 next=59m error
";

#[test]
fn cronjob_is_synced_as_in_kubernetes() {
    let mut cases = 0;
    for line in SYNC.lines().filter(|line| !line.trim().is_empty()) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [case, input, theirs, ours] = cells[..] else {
            panic!("the line must have four columns: {line}");
        };
        let (ours, reason) = ours.rsplit_once(' ').unwrap_or((theirs, "equal"));
        assert!(
            ["equal", "error", "every", "get", "miss", "reasons", "stored"].contains(&reason),
            "{case}: {reason}"
        );
        assert!(
            reason == "equal" || ours != theirs,
            "{case}: the result is the same as in Kubernetes"
        );
        assert_eq!(run_case(input), ours, "{case}");
        cases += 1;
    }
    assert_eq!(cases, 72);
}

/// Parses a time on 19 May 2016, or on another day of that month: `26T10:00`.
pub(super) fn at(text: &str) -> Timestamp {
    let (day, time) = text.split_once('T').unwrap_or(("19", text));
    let seconds = if time.len() == 5 { ":00" } else { "" };
    format!("2016-05-{day}T{time}{seconds}Z")
        .parse()
        .expect("the text is a time")
}

/// The words of an input cell: flags, and names with values.
struct Input<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Input<'a> {
    fn of(cell: &'a str) -> Self {
        let words = cell.split_whitespace();
        Self(words.map(|word| word.split_once('=').unwrap_or((word, ""))).collect())
    }

    fn has(&self, flag: &str) -> bool {
        self.0.contains_key(flag)
    }

    fn time(&self, name: &str) -> Option<Timestamp> {
        self.0.get(name).map(|text| at(text))
    }

    fn spec(&self) -> Value {
        let flag = |flag: &str, value: &'static str| self.has(flag).then_some(value);
        let zone = self
            .0
            .get("zone")
            .map(|zone| if *zone == "bad" { "bad timezone" } else { zone });
        json!({
            "schedule": match self.0.get("schedule") {
                None => "0 * * * ?",
                Some(&"bad") => "obvious error schedule",
                Some(&"every") => "@every 1h",
                Some(&"tz") => "TZ=UTC 0 * * * ?",
                Some(other) => panic!("unknown schedule {other}"),
            },
            "concurrencyPolicy": flag("F", "Forbid").or(flag("R", "Replace")).unwrap_or("Allow"),
            "suspend": self.has("suspend"),
            "timeZone": zone,
            "startingDeadlineSeconds": self.0.get("deadline").map(|seconds| seconds.parse::<i64>().expect("seconds")),
            "jobTemplate": CachedCronJob::template(),
        })
    }

    /// Builds the simulation. `unknown` and `unlisted` withhold the current object or Jobs from the
    /// caches.
    fn simulation(&self) -> Simulation<CachedCronJob> {
        let job = self.time("done").or_else(|| self.time("run"));
        let created = self
            .time("created")
            .unwrap_or_else(|| at(if job.is_some() { "08:59" } else { "09:59" }));
        let mut simulation = Simulation::of(json!({"metadata": {"name": "a"}, "spec": self.spec()}), created);
        if let Some(time) = job {
            let last = self.time("last").unwrap_or_else(|| at("09:01"));
            simulation.touch(|object| object["status"] = json!({"lastScheduleTime": last.to_string()}));
            simulation.sync();
            simulation.clock = time;
            let name = add_job(&mut simulation, time);
            if self.has("run") {
                let uid = simulation.jobs[&name]["metadata"]["uid"].clone();
                let reference = json!({"name": name, "uid": uid, "namespace": "n"});
                simulation.touch(|object| object["status"]["active"] = json!([reference]));
            } else {
                simulation.clock = time + SignedDuration::from_secs(10);
                simulation.finish(&name, "Complete");
            }
        }
        simulation.clock = self.time("now").expect("the input has a time");
        if !self.has("unknown") {
            simulation.deliver(usize::MAX, 0);
        }
        if !self.has("unlisted") {
            simulation.deliver(0, usize::MAX);
        }
        if self.has("exists") {
            add_job(&mut simulation, at("10:00"));
        }
        let rejected = self.has("reject").then_some(("check that", "request is invalid"));
        simulation.rejections = rejected.into_iter().collect();
        simulation.is_namespace_terminating = self.has("terminating");
        simulation
    }
}

/// Adds a Job for that time, as the controller would have created it.
fn add_job(simulation: &mut Simulation<CachedCronJob>, time: Timestamp) -> String {
    let name = format!("a-{}", time.as_second() / 60);
    let annotations = json!({"batch.kubernetes.io/cronjob-scheduled-timestamp": time.to_string()});
    simulation.add_job(
        &name,
        Some("uid-1"),
        json!({"metadata": {"annotations": annotations, "creationTimestamp": time.to_string()}}),
    );
    name
}

/// Carries out the plans and returns the result as words of the table.
fn run_case(input: &str) -> String {
    let input = Input::of(input);
    let mut simulation = input.simulation();
    let before = simulation.object["status"].clone();
    if input.has("reject") {
        simulation.reconcile();
    } else {
        let effects = simulation.plan().effects;
        assert!(!matches!(simulation.carry_out(&effects), Outcome::Rejected(..)));
        if !simulation.is_namespace_terminating {
            simulation.converge();
        }
    }
    let status = &simulation.object["status"];
    if let Some(done) = input.time("done") {
        let ended = done + SignedDuration::from_secs(10);
        assert_eq!(status["lastSuccessfulTime"], ended.to_string());
    }
    let record = &simulation.record;
    assert!(record.created.values().sum::<u32>() <= 1, "{record:?}");
    let count = |name: &str, count: usize| (count > 0).then(|| format!("{name}={count}"));
    let normal_event = record
        .events
        .iter()
        .find(|event| !event.is_warning && !event.reason.starts_with("Successful"));
    let next = match simulation.plan().next {
        Next::OnChange => "-".to_owned(),
        Next::At(time) => format!("{:#}", time.duration_since(simulation.clock)).replace(' ', ""),
    };
    let words = [
        (!record.created.is_empty()).then(|| "create".to_owned()),
        (!record.deleted.is_empty()).then(|| "delete".to_owned()),
        Some(format!("active={}", status["active"].as_array().map_or(0, Vec::len))),
        (*status != before).then(|| "update".to_owned()),
        count("warn", record.events.iter().filter(|event| event.is_warning).count()),
        normal_event.map(|event| format!("event={}", event.reason)),
        Some(format!("next={next}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}
