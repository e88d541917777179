//! Kubernetes' own CronJob, `batch/v1`.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_api::{Metadata, Resource};
use portreeve_cron::{Dialect, DstPolicy, Schedule};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Object, Target};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    api::{ConcurrencyPolicy, DEFAULT_SCHEDULE, JobNameFormat, JobReference},
    assess::Assessment,
    input::{DesiredRuns, DesiredSchedule, Fault, RecordedSchedule, RecordedStatus},
    job::{self, JobParts, Run},
    schedule_resource::{ScheduleResource, TemplateMetadata, decode_template},
    scheduled_times::{Timetable, load_zone},
};

/// The resource of CronJobs.
const CRON_JOBS: Resource = Resource::namespaced("batch", "v1", "CronJob", "cronjobs");

/// The reason of a schedule that cannot be parsed, in a sync of kube-controller-manager.
const UNPARSEABLE_SCHEDULE: &str = "UnparseableSchedule";
/// The same when kube-controller-manager observes that the schedule was changed.
const UNPARSEABLE_CHANGED_SCHEDULE: &str = "UnParseableCronJobSchedule";

/// The fields of a CronJob that the informer stores.
#[derive(Debug, Deserialize)]
pub(crate) struct CachedCronJob {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    schedule: Box<str>,
    #[serde(default)]
    time_zone: Option<Box<str>>,
    #[serde(default)]
    starting_deadline_seconds: Option<i64>,
    #[serde(default)]
    concurrency_policy: ConcurrencyPolicy,
    #[serde(default)]
    suspend: Option<bool>,
    /// The raw JSON: decoded it would take ten times the memory.
    job_template: Box<RawValue>,
    #[serde(default)]
    successful_jobs_history_limit: Option<usize>,
    #[serde(default)]
    failed_jobs_history_limit: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    active: Option<Vec<JobReference>>,
    last_schedule_time: Option<Timestamp>,
    last_successful_time: Option<Timestamp>,
}

/// The parts of the Job template that each Job copies.
#[derive(Deserialize)]
struct Template {
    #[serde(default)]
    metadata: TemplateMetadata,
    spec: Value,
}

impl Projection for CachedCronJob {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl CachedCronJob {
    fn zone(&self) -> Result<TimeZone, Fault> {
        let name = self.spec.time_zone.as_deref();
        load_zone(name).map_err(|error| Fault {
            reason: "UnknownTimeZone",
            message: format!("invalid timeZone: {:?}: {error}", name.unwrap_or_default()),
        })
    }

    fn timetable(&self) -> Result<Timetable, Fault> {
        let zone = self.zone()?;
        let text = self.spec.schedule.to_string();
        let schedule = Schedule::parse(&text, Dialect::Kubernetes).map_err(|error| Fault {
            reason: UNPARSEABLE_SCHEDULE,
            message: format!("unparseable schedule: {text:?} : {error}"),
        })?;
        Ok(Timetable {
            text,
            schedule,
            zone,
            policy: DstPolicy::Kubernetes,
            deadline: self.spec.starting_deadline_seconds.map(SignedDuration::from_secs),
        })
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend.unwrap_or_default()
    }

    fn warning(&self) -> Option<Fault> {
        let schedule = &self.spec.schedule;
        (schedule.contains("TZ") && !self.is_suspended()).then(|| Fault {
            reason: "UnsupportedSchedule",
            message: format!(
                "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, use .spec.timeZone instead"
            ),
        })
    }
}

impl ScheduleResource for CachedCronJob {
    const RESOURCE: Resource = CRON_JOBS;
    const SKEW_METRIC: &'static str = "cronjob_controller_job_creation_skew_duration_seconds";
    /// Those of kube-controller-manager.
    const SKEW_BUCKETS: &'static [f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];
    const MISSED_METRIC: Option<&'static str> = None;

    fn desired(&self) -> DesiredRuns {
        DesiredRuns {
            schedules: vec![DesiredSchedule {
                name: DEFAULT_SCHEDULE.into(),
                timetable: self.timetable(),
                suspend: false,
            }],
            suspend: self.is_suspended(),
            concurrency: self.spec.concurrency_policy,
            keep_successful: self.spec.successful_jobs_history_limit,
            keep_failed: self.spec.failed_jobs_history_limit,
            run_now: None,
            warning: self.warning(),
        }
    }

    fn schedule_names(&self) -> Vec<Arc<str>> {
        vec![DEFAULT_SCHEDULE.into()]
    }

    fn schedule_fields(&self) -> Vec<(Arc<str>, String)> {
        let zone = self.spec.time_zone.as_deref().unwrap_or_default();
        vec![(DEFAULT_SCHEDULE.into(), format!("{} {zone}", self.spec.schedule))]
    }

    fn recorded(&self, _rescheduled: &dyn Fn(&str) -> Timestamp) -> RecordedStatus<'_> {
        RecordedStatus {
            active: self.status.active.as_deref().unwrap_or_default(),
            schedules: vec![RecordedSchedule {
                last_schedule: self.status.last_schedule_time,
                ..RecordedSchedule::default()
            }],
            last_success: self.status.last_successful_time,
            last_failure: None,
            last_run_now: None,
            last_reported: None,
        }
    }

    fn unrecorded_schedules(&self) -> Vec<Arc<str>> {
        Vec::new()
    }

    fn is_unrecorded(&self) -> bool {
        false
    }

    fn job_name_format(&self) -> Option<JobNameFormat> {
        None
    }

    fn job(&self, run: &Run, name: &str) -> Result<Object, Fault> {
        let template: Template = decode_template(".spec.jobTemplate", &self.spec.job_template)?;
        let zone = self.zone()?;
        let (labels, annotations) = template.metadata.into_parts();
        let parts = JobParts {
            labels,
            annotations,
            spec: template.spec,
        };
        let owner = &self.metadata;
        Ok(job::job_from_template(&CRON_JOBS, owner, run, name, &zone, parts))
    }

    /// As in Kubernetes, a suspended CronJob has no event about its schedule. Otherwise both
    /// reasons of Kubernetes are sent, whether or not the change of the schedule was observed.
    fn event_reasons(&self, fault: &Fault) -> Vec<&'static str> {
        match fault.reason {
            UNPARSEABLE_SCHEDULE if self.is_suspended() => Vec::new(),
            UNPARSEABLE_SCHEDULE => vec![UNPARSEABLE_SCHEDULE, UNPARSEABLE_CHANGED_SCHEDULE],
            reason => vec![reason],
        }
    }

    fn status(&self, assessment: &Assessment<'_>, _fault: Option<&Fault>) -> Option<Value> {
        let (summary, recorded) = (&assessment.summary, &assessment.input.recorded);
        let last_schedule = assessment.schedules.first().and_then(|schedule| schedule.last_schedule);
        let active = summary.active_references();
        let same_jobs = active.len() == recorded.active.len()
            && active
                .iter()
                .all(|job| recorded.active.iter().any(|reference| reference.uid == job.uid));
        let is_same = same_jobs
            && last_schedule == self.status.last_schedule_time
            && summary.last_success == recorded.last_success;
        let time = |time: Option<Timestamp>| time.map(|time| format!("{time:.0}"));
        (!is_same).then(|| {
            json!({
                "active": active,
                "lastScheduleTime": time(last_schedule),
                "lastSuccessfulTime": time(summary.last_success),
            })
        })
    }

    /// The role of kube-controller-manager's cronjob-controller does not permit a patch.
    fn write_status(target: Target, status: Value) -> Effect {
        Effect::Replace {
            target,
            subresource: Some("status"),
            changes: json!({ "status": status }),
        }
    }
}
