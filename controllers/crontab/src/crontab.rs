//! Our own CronTab, `stable.example.com/v1`.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_api::{
    AnnotatedMetadata, CRONTABS, ConcurrencyPolicy, CronTabStatus, DstPolicyName, JobNameFormat, Metadata, Resource,
    conditions::{self, ConditionStatus, ConditionUpdate},
};
use portreeve_cron::{Dialect, DstPolicy, Schedule};
use portreeve_informer::Projection;
use portreeve_reconcile::{LATENCY_BUCKETS, Object};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    assess::Assessment,
    input::{DesiredSchedule, Fault, RecordedStatus},
    job::{self, Run},
    schedule_resource::{ScheduleResource, decode_template},
    scheduled_times::{Timetable, load_zone},
};

/// The label that selects the Jobs and Pods of a CronTab.
const LABEL: &str = "stable.example.com/crontab";

/// The reason of condition Ready while the CronTab is suspended. The next decision reads it from
/// the status.
const SUSPENDED: &str = "Suspended";

/// The fields of a CronTab that the informer stores.
#[derive(Debug, Deserialize)]
pub(crate) struct CachedCronTab {
    metadata: AnnotatedMetadata<Annotations>,
    #[serde(default)]
    spec: Option<Spec>,
    #[serde(default)]
    status: Option<CronTabStatus>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "stable.example.com/run-now")]
    run_now: Option<Arc<str>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    schedule: Box<str>,
    /// The raw JSON: decoded it would take ten times the memory.
    job_template: Box<RawValue>,
    #[serde(default)]
    time_zone: Option<Box<str>>,
    #[serde(default)]
    suspend: Option<bool>,
    #[serde(default)]
    concurrency_policy: ConcurrencyPolicy,
    #[serde(default)]
    starting_deadline_seconds: Option<i64>,
    #[serde(default)]
    successful_jobs_history_limit: Option<usize>,
    #[serde(default)]
    failed_jobs_history_limit: Option<usize>,
    #[serde(default)]
    dst_policy: DstPolicyName,
    #[serde(default)]
    backoff_limit: Option<i32>,
    #[serde(default)]
    active_deadline_seconds: Option<i64>,
    #[serde(default)]
    ttl_seconds_after_finished: Option<i32>,
}

impl Projection for CachedCronTab {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}

impl Spec {
    fn zone(&self) -> Result<TimeZone, Fault> {
        load_zone(self.time_zone.as_deref()).map_err(|error| Fault {
            reason: "UnknownTimeZone",
            message: format!(".spec.timeZone: {error}"),
        })
    }

    fn timetable(&self, uid: &str) -> Result<Timetable, Fault> {
        let zone = self.zone()?;
        let text = self.schedule.to_string();
        let schedule = Schedule::parse(&text, Dialect::CronTab { uid }).map_err(|error| Fault {
            reason: "InvalidSchedule",
            message: format!(".spec.schedule: {error}"),
        })?;
        let policy = match self.dst_policy {
            DstPolicyName::Once => DstPolicy::Once,
            DstPolicyName::Kubernetes => DstPolicy::Kubernetes,
        };
        Ok(Timetable {
            text,
            schedule,
            zone,
            policy,
            deadline: self.starting_deadline_seconds.map(SignedDuration::from_secs),
        })
    }

    /// Returns all fields that determine the scheduled times, in the form that the status stores.
    fn schedule_fields(&self) -> String {
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        let policy = match self.dst_policy {
            DstPolicyName::Once => "",
            DstPolicyName::Kubernetes => " Kubernetes",
        };
        format!("{} {zone}{policy}", self.schedule)
    }

    fn job_spec(&self, name: &str) -> Result<Value, Fault> {
        let mut pod: Map<String, Value> = decode_template(&self.job_template)?;
        pod.entry("restartPolicy").or_insert_with(|| "Never".into());
        let mut spec = json!({ "template": { "metadata": { "labels": { LABEL: name } }, "spec": pod } });
        let fields = [
            ("backoffLimit", self.backoff_limit.map(i64::from)),
            ("activeDeadlineSeconds", self.active_deadline_seconds),
            (
                "ttlSecondsAfterFinished",
                self.ttl_seconds_after_finished.map(i64::from),
            ),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                spec[field] = value.into();
            }
        }
        Ok(spec)
    }
}

/// Returns the fault of a CronTab without a spec, which the apiserver accepts.
fn no_spec() -> Fault {
    Fault {
        reason: "MissingSpec",
        message: "the CronTab has no spec: set .spec.schedule and .spec.jobTemplate".to_owned(),
    }
}

impl CachedCronTab {
    fn name(&self) -> &str {
        &self.metadata.base.name
    }

    fn current_status(&self) -> &CronTabStatus {
        static EMPTY: std::sync::LazyLock<CronTabStatus> = std::sync::LazyLock::new(CronTabStatus::default);
        self.status.as_ref().unwrap_or(&EMPTY)
    }

    /// Returns the time since which the current schedule applies, if the status records one. It is
    /// `rescheduled` if the status was written for another schedule.
    fn scheduled_since(&self, rescheduled: Timestamp) -> Option<Timestamp> {
        let status = self.status.as_ref()?;
        let observed = status.observed_schedule.as_deref();
        // Adding a spec to an existing object changes the schedule, too.
        let is_changed = |spec: &Spec| observed != Some(&*spec.schedule_fields());
        if self.spec.as_ref().is_some_and(is_changed) {
            return Timestamp::from_second(rescheduled.as_second()).ok();
        }
        status.scheduled_since
    }

    fn conditions(&self, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Vec<conditions::Condition> {
        let valid = match &assessment.spec_fault {
            Some(fault) => condition_update("Valid", ConditionStatus::False, fault.reason, &fault.message),
            None => condition_update("Valid", ConditionStatus::True, "Parsed", ""),
        };
        let ready = match fault {
            Some(fault) => condition_update("Ready", ConditionStatus::False, fault.reason, &fault.message),
            None if assessment.input.desired.suspend => {
                condition_update("Ready", ConditionStatus::False, SUSPENDED, "the CronTab is suspended")
            }
            None => condition_update("Ready", ConditionStatus::True, "Scheduled", ""),
        };
        let generation = self.metadata.base.generation;
        let before = &self.current_status().conditions;
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
    const SKEW_METRIC: &'static str = "crontab_controller_job_creation_skew_duration_seconds";
    const SKEW_BUCKETS: &'static [f64] = LATENCY_BUCKETS;
    const MISSED_METRIC: Option<&'static str> = Some("crontab_controller_missed_runs_total");

    fn desired(&self) -> DesiredSchedule {
        let spec = self.spec.as_ref();
        let annotations = self.metadata.annotations.as_ref();
        let run_now = annotations.and_then(|annotations| annotations.run_now.clone());
        DesiredSchedule {
            timetable: spec.map_or_else(|| Err(no_spec()), |spec| spec.timetable(&self.metadata.base.uid)),
            suspend: spec.and_then(|spec| spec.suspend).unwrap_or_default(),
            concurrency: spec.map(|spec| spec.concurrency_policy).unwrap_or_default(),
            keep_successful: spec.and_then(|spec| spec.successful_jobs_history_limit),
            keep_failed: spec.and_then(|spec| spec.failed_jobs_history_limit),
            run_now: run_now.filter(|value| !value.is_empty()),
            warning: None,
        }
    }

    fn recorded(&self, rescheduled: Timestamp) -> RecordedStatus<'_> {
        let current = self.current_status();
        let ready = conditions::find_status_condition(&current.conditions, "Ready");
        RecordedStatus {
            active: &current.active,
            last_schedule: current.last_schedule_time,
            last_success: current.last_successful_time,
            last_failure: current.last_failure_time,
            last_missed: current.last_missed_time,
            last_run_now: current.last_run_now.as_deref(),
            scheduled_since: self.scheduled_since(rescheduled),
            was_suspended: ready.is_some_and(|ready| ready.reason == SUSPENDED),
            last_reported: ready.map(|ready| (&*ready.reason, &*ready.message)),
        }
    }

    fn is_unrecorded(&self) -> bool {
        self.current_status().observed_generation == 0
    }

    fn job_name_format(&self) -> Option<JobNameFormat> {
        self.current_status().job_name_format
    }

    fn job(&self, run: &Run, name: &str) -> Result<Object, Fault> {
        let spec = self.spec.as_ref().ok_or_else(no_spec)?;
        let zone = spec.zone().unwrap_or(TimeZone::UTC);
        let labels = Map::from_iter([(LABEL.to_owned(), self.name().into())]);
        let owner = (&CRONTABS, &self.metadata.base);
        let job_spec = spec.job_spec(self.name())?;
        Ok(job::job_from_template(
            owner,
            (run, name),
            &zone,
            (labels, Map::new()),
            job_spec,
        ))
    }

    fn status(&self, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Option<Value> {
        let (current, summary, missed) = (self.current_status(), &assessment.summary, assessment.missed);
        let active = summary.active_references();
        let status = CronTabStatus {
            active_count: i32::try_from(active.len()).unwrap_or(i32::MAX),
            active,
            last_schedule_time: summary.last_schedule,
            last_successful_time: summary.last_success,
            last_failure_time: summary.last_failure,
            next_schedule_time: assessment.times.and_then(|times| times.next),
            last_missed_time: missed.map(|missed| missed.last).or(current.last_missed_time),
            missed_runs: current
                .missed_runs
                .saturating_add(missed.map_or(0, |missed| missed.count.into())),
            last_run_now: summary.last_run_now.map(str::to_owned),
            observed_schedule: self.spec.as_ref().map(Spec::schedule_fields),
            scheduled_since: assessment.scheduled_since,
            job_name_format: assessment.input.names.format,
            observed_generation: self.metadata.base.generation,
            conditions: self.conditions(assessment, fault),
        };
        (self.status.as_ref() != Some(&status)).then(|| json!(status))
    }
}

/// Returns whether a change of the object changed its schedule, time zone or DST policy.
pub(crate) fn is_rescheduled(old: &Arc<CachedCronTab>, new: &Arc<CachedCronTab>) -> bool {
    old.spec.as_ref().map(Spec::schedule_fields) != new.spec.as_ref().map(Spec::schedule_fields)
}
