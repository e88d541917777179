//! The spec of a CronTab in the structure of v2, and what follows from it.
//!
//! Architecture Invariant: pure.

use std::sync::{Arc, LazyLock};

use jiff::{SignedDuration, tz::TimeZone};
use portreeve_cron::{Dialect, DstPolicy, Schedule};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    api::{ConcurrencyPolicy, DEFAULT_SCHEDULE, DstPolicyName},
    input::{DesiredSchedule, Fault},
    job::JobParts,
    schedule_resource::{TemplateMetadata, decode_template},
    scheduled_times::{Timetable, load_zone},
};

/// The name of the schedule that every CronTab has.
pub(super) static DEFAULT: LazyLock<Arc<str>> = LazyLock::new(|| DEFAULT_SCHEDULE.into());

/// A version of CronTabs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Version {
    V1,
    V2,
}

/// The spec of a CronTab.
#[derive(Debug)]
pub(super) struct Spec {
    /// The schedules, with unique names.
    pub(super) schedules: Vec<ScheduleSpec>,
    pub(super) suspend: bool,
    pub(super) concurrency: ConcurrencyPolicy,
    /// The deadline of a run in seconds.
    pub(super) deadline: Option<i64>,
    pub(super) keep_successful: Option<usize>,
    pub(super) keep_failed: Option<usize>,
    pub(super) template: Template,
}

/// A schedule of a spec.
#[derive(Debug)]
pub(super) struct ScheduleSpec {
    pub(super) name: Arc<str>,
    pub(super) schedule: Box<str>,
    pub(super) time_zone: Option<Box<str>>,
    pub(super) dst_policy: DstPolicyName,
    pub(super) suspend: bool,
}

/// What each run creates. It stays raw JSON: decoded it would take ten times the memory.
#[derive(Debug)]
pub(super) enum Template {
    /// The spec of a Pod, in v1.
    Pod {
        pod: Box<RawValue>,
        /// Fields that each Job copies.
        job: JobFields,
    },
    /// A Job template.
    Job(Box<RawValue>),
}

/// The fields of v1 that each Job copies.
#[derive(Debug, Default)]
pub(super) struct JobFields {
    pub(super) backoff_limit: Option<i32>,
    pub(super) active_deadline_seconds: Option<i64>,
    pub(super) ttl_seconds_after_finished: Option<i32>,
}

impl Spec {
    /// Returns the schedules of the CronTab with this UID. Faults name the fields of `version`.
    pub(super) fn schedules(&self, version: Version, uid: &str) -> Vec<DesiredSchedule> {
        let deadline = self.deadline.map(SignedDuration::from_secs);
        let schedules = self.schedules.iter().map(|schedule| DesiredSchedule {
            name: Arc::clone(&schedule.name),
            timetable: schedule.timetable(version, uid, deadline),
            suspend: schedule.suspend,
        });
        schedules.collect()
    }

    /// Returns the name of each schedule, and its other fields in the form that the status stores.
    pub(super) fn schedule_fields(&self) -> Vec<(Arc<str>, String)> {
        let schedules = self.schedules.iter();
        schedules
            .map(|schedule| (Arc::clone(&schedule.name), schedule.fields()))
            .collect()
    }

    /// Returns the time zone of a schedule, if it is valid.
    pub(super) fn zone(&self, name: &str) -> Option<TimeZone> {
        let schedule = self.schedules.iter().find(|schedule| *schedule.name == *name)?;
        load_zone(schedule.time_zone.as_deref()).ok()
    }
}

impl ScheduleSpec {
    fn fields(&self) -> String {
        let zone = self.time_zone.as_deref().unwrap_or("UTC");
        let policy = match self.dst_policy {
            DstPolicyName::Once => "",
            DstPolicyName::Kubernetes => " Kubernetes",
        };
        format!("{} {zone}{policy}", self.schedule)
    }

    fn timetable(&self, version: Version, uid: &str, deadline: Option<SignedDuration>) -> Result<Timetable, Fault> {
        let field = |name: &str| match version {
            Version::V1 if *self.name == *DEFAULT_SCHEDULE => format!(".spec.{name}"),
            _ => format!(".spec.schedules[{}].{name}", self.name),
        };
        let zone = load_zone(self.time_zone.as_deref()).map_err(|error| Fault {
            reason: "UnknownTimeZone",
            message: format!("{}: {error}", field("timeZone")),
        })?;
        let text = self.schedule.to_string();
        let schedule = Schedule::parse(&text, Dialect::CronTab { uid }).map_err(|error| Fault {
            reason: "InvalidSchedule",
            message: format!("{}: {error}", field("schedule")),
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
            deadline,
        })
    }
}

impl Template {
    /// Returns the labels, the annotations and the spec of each Job. Its Pods have this label, too.
    pub(super) fn job(&self, label: &str, value: &str) -> Result<JobParts, Fault> {
        match self {
            Self::Pod { pod, job } => {
                let mut pod: Map<String, Value> = decode_template(".spec.jobTemplate", pod)?;
                default_restart_policy(&mut pod);
                let mut spec = json!({ "template": { "metadata": { "labels": { label: value } }, "spec": pod } });
                job.copy_to(&mut spec);
                Ok(JobParts {
                    labels: Map::new(),
                    annotations: Map::new(),
                    spec,
                })
            }
            Self::Job(template) => {
                let template: JobTemplate = decode_template(".spec.template", template)?;
                let (labels, annotations) = template.metadata.into_parts();
                let JobSpec { fields, template: pods } = template.spec;
                let (mut pod_labels, pod_annotations) = pods.metadata.into_parts();
                pod_labels.insert(label.to_owned(), value.into());
                let mut pod = pods.spec;
                default_restart_policy(&mut pod);
                let mut spec = Value::Object(fields);
                let mut metadata = json!({ "labels": pod_labels });
                if !pod_annotations.is_empty() {
                    metadata["annotations"] = pod_annotations.into();
                }
                spec["template"] = json!({ "metadata": metadata, "spec": pod });
                Ok(JobParts {
                    labels,
                    annotations,
                    spec,
                })
            }
        }
    }
}

/// A Job template of v2.
#[derive(Deserialize)]
struct JobTemplate {
    #[serde(default)]
    metadata: TemplateMetadata,
    spec: JobSpec,
}

#[derive(Deserialize)]
struct JobSpec {
    template: PodTemplate,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Deserialize)]
struct PodTemplate {
    #[serde(default)]
    metadata: TemplateMetadata,
    spec: Map<String, Value>,
}

impl JobFields {
    fn copy_to(&self, spec: &mut Value) {
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
    }
}

fn default_restart_policy(pod: &mut Map<String, Value>) {
    pod.entry("restartPolicy").or_insert_with(|| "Never".into());
}
