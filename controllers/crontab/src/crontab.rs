//! Our own CronTab, `stable.example.com`, in both versions.
//!
//! Architecture Invariant: pure.

mod cached;
mod decode;
mod spec;

use std::sync::{Arc, LazyLock};

use jiff::{Timestamp, tz::TimeZone};
use portreeve_api::{
    LazyValue, Resource,
    conditions::{self, ConditionStatus, ConditionUpdate},
};
use portreeve_reconcile::{LATENCY_BUCKETS, Object};
use serde_json::{Value, json};

pub(crate) use self::cached::CachedCronTab;
use self::spec::{DEFAULT, Version};
use crate::{
    api::{CRONTABS, CRONTABS_V2, CronTabV2Status, DEFAULT_SCHEDULE, JobNameFormat, RunsStatus, ScheduleStatus},
    assess::{AssessedSchedule, Assessment},
    conversion::{self, fields::STATUS_FIELDS},
    input::{DesiredRuns, DesiredSchedule, Fault, RecordedSchedule, RecordedStatus},
    job::{self, Run},
    schedule_resource::ScheduleResource,
};

/// The label that selects the Jobs and Pods of a CronTab.
const LABEL: &str = "stable.example.com/crontab";

/// The reason of condition Ready while all schedules are suspended. The next decision reads it from
/// the status.
const SUSPENDED: &str = "Suspended";

impl CachedCronTab {
    fn name(&self) -> &str {
        &self.metadata.base.name
    }

    fn current_status(&self) -> &CronTabV2Status {
        static EMPTY: LazyLock<CronTabV2Status> = LazyLock::new(CronTabV2Status::default);
        self.status.as_ref().unwrap_or(&EMPTY)
    }

    /// Returns the fault of a CronTab without a spec, which the apiserver accepts.
    fn no_spec(&self) -> Fault {
        let fields = match self.version {
            Version::V1 => ".spec.schedule and .spec.jobTemplate",
            Version::V2 => ".spec.schedules and .spec.template",
        };
        Fault {
            reason: "MissingSpec",
            message: format!("the CronTab has no spec: set {fields}"),
        }
    }

    /// Returns the facts that the status records about a schedule. If the status was written for
    /// other fields, or without the schedule, the current ones apply since `rescheduled`.
    fn recorded_schedule(&self, name: &str, fields: &str, rescheduled: Timestamp) -> RecordedSchedule {
        let Some(status) = &self.status else {
            return RecordedSchedule::default();
        };
        let recorded = status.schedules.iter().find(|schedule| schedule.name == name);
        let ready = conditions::find_status_condition(&status.runs.conditions, "Ready");
        RecordedSchedule {
            last_schedule: recorded.and_then(|recorded| recorded.last_schedule_time),
            last_missed: recorded.and_then(|recorded| recorded.last_missed_time),
            scheduled_since: if self.is_changed(name, fields) {
                Timestamp::from_second(rescheduled.as_second()).ok()
            } else {
                recorded.and_then(|recorded| recorded.scheduled_since)
            },
            was_suspended: recorded
                .is_some_and(|recorded| recorded.suspended || ready.is_some_and(|ready| ready.reason == SUSPENDED)),
        }
    }

    /// Returns whether the status was written for other fields of a schedule, or without it.
    fn is_changed(&self, name: &str, fields: &str) -> bool {
        let Some(status) = &self.status else { return false };
        let recorded = status.schedules.iter().find(|schedule| schedule.name == name);
        let observed = recorded.and_then(|recorded| recorded.observed_schedule.as_deref());
        // Adding a spec to an existing object changes the schedule, too.
        self.spec.is_some() && observed != Some(fields)
    }

    /// Returns the new status of a schedule.
    fn schedule_status(
        &self,
        desired: &DesiredSchedule,
        fields: String,
        assessed: AssessedSchedule,
        active: i64,
    ) -> ScheduleStatus {
        let current = self.current_status().schedules.iter();
        let current = current.clone().find(|schedule| *schedule.name == *desired.name);
        let missed = assessed.missed;
        let missed_runs = current.map_or(0, |current| current.missed_runs);
        ScheduleStatus {
            name: desired.name.to_string(),
            last_schedule_time: assessed.last_schedule,
            next_schedule_time: assessed.times.and_then(|times| times.next),
            last_missed_time: missed
                .map(|missed| missed.last)
                .or_else(|| current.and_then(|current| current.last_missed_time)),
            missed_runs: missed_runs.saturating_add(missed.map_or(0, |missed| missed.count.into())),
            active,
            suspended: desired.suspend,
            observed_schedule: self.spec.is_some().then_some(fields),
            scheduled_since: assessed.scheduled_since,
        }
    }

    /// Returns the merge patch of a status, in the version that the object was read in.
    fn status_patch(&self, status: &CronTabV2Status) -> Value {
        let patch = json!(status);
        if self.version == Version::V2 {
            return patch;
        }
        let encoded = patch.to_string();
        let mut converted = serde_json::from_str(&encoded).unwrap_or_else(|_| LazyValue::null());
        conversion::status_to_v1(&mut converted);
        let mut patch = json!(converted);
        // Null removes what the status recorded before.
        let had_list = self.status.as_ref().is_some_and(|recorded| {
            let mut schedules = recorded.schedules.iter();
            recorded.schedules.len() > 1 || schedules.any(|schedule| schedule.active > 0 || schedule.suspended)
        });
        let absent = STATUS_FIELDS.iter().map(|field| (field.v1, Value::Null));
        let absent = absent.map(|(name, value)| (name, if name == "missedRuns" { 0.into() } else { value }));
        if let Value::Object(patch) = &mut patch {
            for (name, value) in absent.chain(had_list.then_some(("schedules", Value::Null))) {
                patch.entry(name).or_insert(value);
            }
        }
        patch
    }

    fn conditions(&self, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Vec<conditions::Condition> {
        let valid = match &assessment.spec_fault {
            Some(fault) => condition_update("Valid", ConditionStatus::False, fault.reason, &fault.message),
            None => condition_update("Valid", ConditionStatus::True, "Parsed", ""),
        };
        let ready = match fault {
            Some(fault) => condition_update("Ready", ConditionStatus::False, fault.reason, &fault.message),
            // True: kubectl wait, Helm and Flux take False for "not done yet".
            None if assessment.input.desired.is_wholly_suspended() => {
                condition_update("Ready", ConditionStatus::True, SUSPENDED, "all schedules are suspended")
            }
            None => condition_update("Ready", ConditionStatus::True, "Scheduled", ""),
        };
        let generation = self.metadata.base.generation;
        let before = &self.current_status().runs.conditions;
        // The apiserver may reject each attempt with another message. Keep the first message,
        // because every change of the status triggers another sync at once.
        let reported = conditions::find_status_condition(before, "Ready").filter(|known| {
            assessment.spec_fault.is_none() && known.reason == "FailedCreate" && known.observed_generation == generation
        });
        let ready = match reported {
            Some(known) if ready.reason == known.reason => {
                condition_update("Ready", ready.status, ready.reason, &known.message)
            }
            _ => ready,
        };
        conditions::set_status_conditions(before, &[valid, ready], generation, assessment.input.now)
    }
}

fn condition_update<'a>(
    type_: &'a str,
    status: ConditionStatus,
    reason: &'a str,
    message: &'a str,
) -> ConditionUpdate<'a> {
    ConditionUpdate {
        type_,
        status,
        reason,
        message,
    }
}

impl ScheduleResource for CachedCronTab {
    const RESOURCE: Resource = CRONTABS;
    const VERSIONS: &'static [&'static str] = &["v1", "v2"];
    const SKEW_METRIC: &'static str = "crontab_controller_job_creation_skew_duration_seconds";
    const SKEW_BUCKETS: &'static [f64] = LATENCY_BUCKETS;
    const MISSED_METRIC: Option<&'static str> = Some("crontab_controller_missed_runs_total");

    fn resource(&self) -> Resource {
        match self.version {
            Version::V1 => CRONTABS,
            Version::V2 => CRONTABS_V2,
        }
    }

    fn desired(&self) -> DesiredRuns {
        let spec = self.spec.as_ref();
        let annotations = self.metadata.annotations.as_ref();
        let run_now = annotations.and_then(|annotations| annotations.run_now.clone());
        let no_schedule = || {
            vec![DesiredSchedule {
                name: Arc::clone(&DEFAULT),
                timetable: Err(self.no_spec()),
                suspend: false,
            }]
        };
        DesiredRuns {
            schedules: spec.map_or_else(no_schedule, |spec| {
                spec.schedules(self.version, &self.metadata.base.uid)
            }),
            suspend: spec.is_some_and(|spec| spec.suspend),
            concurrency: spec.map(|spec| spec.concurrency).unwrap_or_default(),
            keep_successful: spec.and_then(|spec| spec.keep_successful),
            keep_failed: spec.and_then(|spec| spec.keep_failed),
            run_now: run_now.filter(|value| !value.is_empty()),
            warning: None,
        }
    }

    fn schedule_names(&self) -> Vec<Arc<str>> {
        match &self.spec {
            Some(spec) => spec
                .schedules
                .iter()
                .map(|schedule| Arc::clone(&schedule.name))
                .collect(),
            None => vec![Arc::clone(&DEFAULT)],
        }
    }

    fn schedule_fields(&self) -> Vec<(Arc<str>, String)> {
        match &self.spec {
            Some(spec) => spec.schedule_fields(),
            None => vec![(Arc::clone(&DEFAULT), String::new())],
        }
    }

    fn recorded(&self, rescheduled: &dyn Fn(&str) -> Timestamp) -> RecordedStatus<'_> {
        let current = &self.current_status().runs;
        let ready = conditions::find_status_condition(&current.conditions, "Ready");
        let schedules = self.schedule_fields().into_iter();
        RecordedStatus {
            active: &current.active,
            schedules: schedules
                .map(|(name, fields)| self.recorded_schedule(&name, &fields, rescheduled(&name)))
                .collect(),
            last_success: current.last_successful_time,
            last_failure: current.last_failure_time,
            last_run_now: current.last_run_now.as_deref(),
            last_reported: ready.map(|ready| (&*ready.reason, &*ready.message)),
        }
    }

    fn unrecorded_schedules(&self) -> Vec<Arc<str>> {
        let schedules = self.schedule_fields().into_iter();
        let changed = schedules.filter(|(name, fields)| self.is_changed(name, fields));
        changed.map(|(name, _)| name).collect()
    }

    fn is_unrecorded(&self) -> bool {
        self.current_status().runs.observed_generation == 0
    }

    fn job_name_format(&self) -> Option<JobNameFormat> {
        self.current_status().runs.job_name_format
    }

    fn job(&self, run: &Run, name: &str) -> Result<Object, Fault> {
        let spec = self.spec.as_ref().ok_or_else(|| self.no_spec())?;
        let zone = spec
            .zone(run.schedule().unwrap_or(DEFAULT_SCHEDULE))
            .unwrap_or(TimeZone::UTC);
        let mut parts = spec.template.job(LABEL, self.name())?;
        parts.labels.insert(LABEL.to_owned(), self.name().into());
        // Jobs refer to v1 in both versions, so that they keep their owner when v2 is removed.
        let owner = &self.metadata.base;
        Ok(job::job_from_template(&CRONTABS, owner, run, name, &zone, parts))
    }

    fn status(&self, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Option<Value> {
        let (input, summary) = (assessment.input, &assessment.summary);
        let active = summary.active_references();
        let schedules = input.desired.schedules.iter().zip(self.schedule_fields());
        let facts = assessment.schedules.iter().zip(&summary.schedules);
        let schedules = schedules
            .zip(facts)
            .map(|((desired, (_, fields)), (assessed, summary))| {
                self.schedule_status(desired, fields, *assessed, summary.active)
            });
        let status = CronTabV2Status {
            schedules: schedules.collect(),
            runs: RunsStatus {
                active_count: i32::try_from(active.len()).unwrap_or(i32::MAX),
                active,
                last_successful_time: summary.last_success,
                last_failure_time: summary.last_failure,
                last_run_now: summary.last_run_now.map(str::to_owned),
                job_name_format: input.names.format,
                observed_generation: self.metadata.base.generation,
                conditions: self.conditions(assessment, fault),
            },
        };
        (self.status.as_ref() != Some(&status)).then(|| self.status_patch(&status))
    }
}
