//! A model of the apiserver and of one process that uses it. The apiserver rejects the same writes
//! as a real one. The process has two caches, which lag independently but never go back, and the
//! state that a process keeps in memory.

mod apiserver;
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use portreeve_api::Metadata;
use portreeve_informer::Projection;
use portreeve_reconcile::Effect;
use serde_json::{Value, json};

use super::samples::{Sample, at};
use crate::{
    input::ObservedRuns,
    job::CachedJob,
    job_names::{self, JobNames},
};

type Jobs = BTreeMap<String, Arc<CachedJob>>;

/// One schedule, the Jobs of its namespace, and a record of all writes and events.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Simulation<K> {
    pub(super) clock: Timestamp,
    pub(super) object: Value,
    pub(super) jobs: BTreeMap<String, Arc<Value>>,
    version: u32,
    /// All states of the object that the watch sent, the current one last.
    objects: Vec<Arc<K>>,
    /// The same states as an earlier version of the controller decides on them.
    earlier_objects: Vec<Arc<K>>,
    job_sets: Vec<Arc<Jobs>>,
    process: Process,
    pub(super) record: Record,
    /// How the texts of rejected effects start (`create`, `delete`, `check that` or
    /// `write status`), and the apiserver's messages.
    pub(super) rejections: Vec<(&'static str, &'static str)>,
    pub(super) is_namespace_terminating: bool,
    /// Whether the apiserver creates the next Job, and its answer is lost.
    pub(super) loses_answer: bool,
    /// Whether the process runs an earlier version, which does not know the format of Jobs' names.
    pub(super) is_earlier_version: bool,
    /// Whether the definition of CronTabs is that of the earlier version, without the field.
    pub(super) is_earlier_definition: bool,
}

/// The state that is lost when the process ends.
#[derive(Clone, Default)]
struct Process {
    /// The states that the caches have reached.
    object: usize,
    jobs: usize,
    /// The one-time events that were sent.
    reported: BTreeSet<(&'static str, String)>,
    observed_runs: BTreeMap<Arc<str>, ObservedRuns>,
    /// What a standby has observed, which sends no requests.
    standby_runs: BTreeMap<Arc<str>, ObservedRuns>,
}

/// A record of what the controller did.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// How often the controller created a Job of each name.
    pub(super) created: BTreeMap<String, u32>,
    /// The latest scheduled time for which the controller created a Job.
    pub(super) last_schedule: Option<Timestamp>,
    pub(super) deleted: Vec<String>,
    pub(super) events: Vec<RecordedEvent>,
    pub(super) missed: u64,
    /// The number of writes.
    pub(super) writes: u32,
}

#[derive(Clone, Debug)]
pub(super) struct RecordedEvent {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) is_warning: bool,
    /// Whether each process may send the event once, rather than all processes together.
    pub(super) is_deduplicated: bool,
}

/// The outcome of an effect or a plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Done,
    /// A 409 or 404: observe and decide again.
    Stale,
    /// There was no answer: observe and decide again.
    Unanswered,
    Rejected(Box<Effect>, &'static str),
    /// Nothing remains to be done for this object.
    Over,
}

impl<K> Clone for Simulation<K> {
    fn clone(&self) -> Self {
        Self {
            clock: self.clock,
            object: self.object.clone(),
            jobs: self.jobs.clone(),
            version: self.version,
            objects: self.objects.clone(),
            earlier_objects: self.earlier_objects.clone(),
            job_sets: self.job_sets.clone(),
            process: self.process.clone(),
            record: self.record.clone(),
            rejections: self.rejections.clone(),
            is_namespace_terminating: self.is_namespace_terminating,
            loses_answer: self.loses_answer,
            is_earlier_version: self.is_earlier_version,
            is_earlier_definition: self.is_earlier_definition,
        }
    }
}

/// Actions of users and other controllers.
impl<K: Sample> Simulation<K> {
    /// Creates a schedule `a` at the time `now`.
    pub(super) fn new(schedule: &str, now: &str) -> Self {
        let spec = json!({"schedule": schedule, "jobTemplate": K::template()});
        Self::of(json!({"metadata": {"name": "a"}, "spec": spec}), at(now))
    }

    pub(super) fn of(mut object: Value, now: Timestamp) -> Self {
        let metadata = &mut object["metadata"];
        metadata["namespace"] = "n".into();
        metadata["uid"] = "uid-1".into();
        metadata["generation"] = 1.into();
        metadata["creationTimestamp"] = format!("{now:.0}").into();
        metadata["resourceVersion"] = "1".into();
        Self {
            clock: now,
            objects: vec![Self::decode_object(&object)],
            earlier_objects: vec![Self::decode_object(&without_format(&object))],
            object,
            jobs: BTreeMap::new(),
            version: 1,
            // A starting process receives the latest state as a change, so there must always be an
            // earlier state.
            job_sets: vec![Arc::default(), Arc::default()],
            process: Process::default(),
            record: Record::default(),
            rejections: Vec::new(),
            is_namespace_terminating: false,
            loses_answer: false,
            is_earlier_version: false,
            is_earlier_definition: false,
        }
    }

    pub(super) fn set_clock(&mut self, time: &str) {
        self.clock = at(time);
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.clock += SignedDuration::from_secs(seconds);
    }

    /// A user edits the spec; null removes a field.
    pub(super) fn set(&mut self, field: &str, value: impl Into<Value>) {
        let value = value.into();
        self.touch(|object| {
            merge(&mut object["spec"], &json!({ field: value }));
            let generation = object["metadata"]["generation"]
                .as_i64()
                .expect("the generation is a number");
            object["metadata"]["generation"] = (generation + 1).into();
        });
    }

    /// Changes the object in any other way than an edit of its spec.
    pub(super) fn touch(&mut self, change: impl FnOnce(&mut Value)) {
        change(&mut self.object);
        self.object["metadata"]["resourceVersion"] = self.next_version().into();
        self.objects.push(Self::decode_object(&self.object));
        let earlier = Self::decode_object(&without_format(&self.object));
        self.earlier_objects.push(earlier);
    }

    pub(super) fn run_now(&mut self, value: &str) {
        self.touch(|object| object["metadata"]["annotations"]["stable.example.com/run-now"] = value.into());
    }

    /// Somebody creates a Job. If `owner` is given, the schedule with that UID controls it.
    pub(super) fn add_job(&mut self, name: &str, owner: Option<&str>, mut body: Value) {
        let owner = owner.map(|uid| {
            json!({"apiVersion": K::RESOURCE.api_version(), "kind": K::RESOURCE.kind,
                "name": self.object["metadata"]["name"], "uid": uid, "controller": true})
        });
        body["metadata"]["name"] = name.into();
        body["metadata"]["namespace"] = "n".into();
        body["metadata"]["ownerReferences"] = owner.into_iter().collect();
        self.insert(name, body);
    }

    /// Changes a Job: it starts, finishes or is annotated.
    pub(super) fn change_job(&mut self, name: &str, patch: &Value) {
        let version = self.next_version();
        let job = Arc::make_mut(self.jobs.get_mut(name).expect("the Job exists"));
        merge(job, patch);
        job["metadata"]["resourceVersion"] = version.into();
        let decoded = Self::decode_job(job);
        self.update_jobs(|jobs| jobs.insert(name.to_owned(), decoded));
    }

    /// A Job finishes, as `Complete` or as `Failed`.
    pub(super) fn finish(&mut self, name: &str, how: &str) {
        let now = format!("{:.0}", self.clock);
        let completion = (how == "Complete").then_some(&now);
        let condition = json!({"type": how, "status": "True", "lastTransitionTime": now});
        self.change_job(
            name,
            &json!({"status": {"completionTime": completion, "conditions": [condition]}}),
        );
    }

    /// Somebody else deletes a Job.
    pub(super) fn remove_job(&mut self, name: &str) {
        assert!(self.jobs.remove(name).is_some(), "{name} does not exist");
        self.next_version();
        self.update_jobs(|jobs| jobs.remove(name));
    }
}

impl<K: Sample> Simulation<K> {
    fn insert(&mut self, name: &str, mut body: Value) {
        let version = self.next_version();
        body["metadata"]["uid"] = format!("job-{version}").into();
        body["metadata"]["resourceVersion"] = version.into();
        if body["metadata"].get("creationTimestamp").is_none() {
            body["metadata"]["creationTimestamp"] = format!("{:.0}", self.clock).into();
        }
        let decoded = Self::decode_job(&body);
        self.jobs.insert(name.to_owned(), Arc::new(body));
        self.update_jobs(|jobs| jobs.insert(name.to_owned(), decoded));
    }

    fn update_jobs<T>(&mut self, change: impl FnOnce(&mut Jobs) -> T) {
        let mut jobs = Jobs::clone(self.job_sets.last().expect("there is a first state"));
        change(&mut jobs);
        self.job_sets.push(Arc::new(jobs));
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    /// Projections must be decoded from text, because a raw value cannot be decoded from a `Value`.
    fn decode_object(object: &Value) -> Arc<K> {
        Arc::new(serde_json::from_str(&object.to_string()).expect("the JSON is an object of this kind"))
    }

    fn decode_job(job: &Value) -> Arc<CachedJob> {
        Arc::new(serde_json::from_str(&job.to_string()).expect("the JSON is a Job"))
    }
}

/// Queries of tests.
impl<K: Sample> Simulation<K> {
    /// Returns the current object.
    pub(super) fn current_object(&self) -> Arc<K> {
        Arc::clone(self.objects.last().expect("there is a first state"))
    }

    /// Returns the object in the process's cache.
    pub(super) fn cached_object(&self) -> Arc<K> {
        Arc::clone(&self.objects[self.process.object])
    }

    /// Returns the names of Jobs in the format that the status records.
    pub(super) fn names(&self) -> JobNames<'static> {
        let format = self.current_object().job_name_format();
        JobNames { owner: "a", format }
    }

    /// Returns how many Jobs the controller created for the scheduled time, under any name.
    pub(super) fn starts(&self, slot: Timestamp) -> u32 {
        let minutes = Some(slot.as_second().div_euclid(60));
        let created = self.record.created.iter();
        let created = created.filter(|(name, _)| job_names::minutes("a", "default", name) == minutes);
        created.map(|(_, times)| times).sum()
    }

    /// Returns the last scheduled time that the status records.
    pub(super) fn last_schedule_time(&self) -> Option<Timestamp> {
        Some(at(self.object["status"]["lastScheduleTime"].as_str()?))
    }

    /// Returns the reasons of the events, in order.
    pub(super) fn reasons(&self) -> Vec<&str> {
        self.record.events.iter().map(|event| event.reason).collect()
    }

    /// Returns the names of the unfinished Jobs.
    pub(super) fn active(&self) -> Vec<String> {
        let jobs = self.jobs.iter();
        let active = jobs.filter(|(_, job)| job["status"].get("conditions").is_none());
        active.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the Jobs whose runs the status records.
    pub(super) fn recorded_jobs(&self) -> Vec<String> {
        let object = self.current_object();
        let recorded = object.recorded(&|_| self.clock);
        let is_recorded = |name: &str, job: &Value| match slot_of(job) {
            Some(slot) => Some(slot) <= recorded.schedules[0].last_schedule,
            None => recorded
                .last_run_now
                .is_some_and(|value| name == self.names().run_now(value)),
        };
        let recorded = self.jobs.iter().filter(|(name, job)| is_recorded(name, job));
        recorded.map(|(name, _)| name.clone()).collect()
    }

    /// Returns when the process observed a change of the schedule.
    pub(super) fn rescheduled(&self) -> Option<Timestamp> {
        self.observed_runs().rescheduled("default")
    }

    /// Returns the Jobs that finished in this way.
    pub(super) fn ended(&self, how: &str) -> impl Iterator<Item = &Value> {
        let jobs = self.jobs.values().map(|job| &**job);
        jobs.filter(move |job| job["status"]["conditions"][0]["type"] == how)
    }

    /// Returns all objects without the fields that differ between runs: UIDs and versions.
    pub(super) fn snapshot(&self) -> Value {
        let jobs = self.jobs.values().map(|job| Value::clone(job));
        let mut objects = [self.object.clone()].into_iter().chain(jobs).collect();
        remove_identities(&mut objects);
        objects
    }
}

/// Returns an object as an earlier version decides on it: it does not know the format of Jobs'
/// names, and no object is new for it.
fn without_format(object: &Value) -> Value {
    let mut object = object.clone();
    if object["status"].is_null() {
        let spec = &object["spec"];
        let zone = spec["timeZone"].as_str().unwrap_or("UTC");
        let schedule = format!("{} {zone}", spec["schedule"].as_str().unwrap_or_default());
        object["status"] = json!({"observedGeneration": -1, "observedSchedule": schedule});
    }
    let status = object["status"].as_object_mut().expect("the status is an object");
    status.remove("jobNameFormat");
    object
}

fn remove_identities(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|field, _| field != "uid" && field != "resourceVersion");
            fields.values_mut().for_each(remove_identities);
        }
        Value::Array(elements) => elements.iter_mut().for_each(remove_identities),
        _ => {}
    }
}

fn is_owned(job: &CachedJob, owner: &Metadata) -> bool {
    let controller = job.metadata().controller();
    controller.is_some_and(|controller| *controller.uid == *owner.uid)
}

/// Returns the scheduled time in a Job's annotation.
pub(super) fn slot_of(job: &Value) -> Option<Timestamp> {
    let annotation = &job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
    annotation.as_str().map(at)
}

/// Returns the UID and version of an object.
pub(super) fn identity(object: &Value) -> (Arc<str>, Arc<str>) {
    let text = |field: &str| Arc::from(object["metadata"][field].as_str().expect("the field is set"));
    (text("uid"), text("resourceVersion"))
}

/// Merges as a JSON merge patch does: null removes a field.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let into = into.as_object_mut().expect("it is an object now");
    for (field, value) in patch {
        if value.is_null() {
            into.remove(field);
        } else {
            merge(into.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}
