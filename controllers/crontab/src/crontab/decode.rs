//! Decodes CronTabs of both versions.
//!
//! A CronTab of v1 that has fields of v2 in an annotation is converted first. All others are
//! decoded without a conversion, because most CronTabs are of that kind.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_api::{AnnotatedMetadata, LazyObject};
use portreeve_informer::decode_part;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::value::RawValue;

use super::{
    cached::{Annotations, CachedCronTab},
    spec::{DEFAULT, JobFields, ScheduleSpec, Spec, Template, Version},
};
use crate::{
    api::{
        CRONTABS_V2, ConcurrencyPolicy, CronTabStatus, CronTabV2Status, DEFAULT_SCHEDULE, DstPolicyName, ScheduleStatus,
    },
    conversion,
};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Encoded<'a> {
    #[serde(default)]
    api_version: Box<str>,
    #[serde(borrow)]
    metadata: &'a RawValue,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecV1 {
    schedule: Box<str>,
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecV2 {
    schedules: Vec<ScheduleV2>,
    #[serde(default)]
    suspend: Option<bool>,
    #[serde(default)]
    run_policy: Option<RunPolicyV2>,
    template: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleV2 {
    name: Box<str>,
    schedule: Box<str>,
    #[serde(default)]
    time_zone: Option<Box<str>>,
    #[serde(default)]
    dst_policy: DstPolicyName,
    #[serde(default)]
    suspend: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunPolicyV2 {
    #[serde(default)]
    concurrency_policy: ConcurrencyPolicy,
    #[serde(default)]
    starting_deadline_seconds: Option<i64>,
    #[serde(default)]
    successful_jobs_history_limit: Option<usize>,
    #[serde(default)]
    failed_jobs_history_limit: Option<usize>,
}

impl<'de> Deserialize<'de> for CachedCronTab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Encoded {
            api_version,
            metadata: encoded_metadata,
            spec,
            status,
        } = Encoded::deserialize(deserializer)?;
        let version = if *api_version == CRONTABS_V2.api_version() {
            Version::V2
        } else {
            Version::V1
        };
        let metadata = decode_part::<AnnotatedMetadata<Annotations>, D::Error>("metadata", encoded_metadata.get())?;
        let annotations = metadata.annotations.as_ref();
        let has_v2_only = annotations.is_some_and(|annotations| annotations.v2_only.is_some());
        let spec = spec.map(|spec| match version {
            Version::V1 if has_v2_only => decode_converted(encoded_metadata, spec),
            Version::V1 => decode_part::<SpecV1, D::Error>("spec", spec.get()).map(Spec::from),
            Version::V2 => decode_part::<SpecV2, D::Error>("spec", spec.get()).map(Spec::from),
        });
        let status = status.map(|status| decode_status::<D::Error>(version, status));
        Ok(Self {
            version,
            metadata,
            spec: spec.transpose()?,
            status: status.transpose()?,
        })
    }
}

/// Decodes a spec of v1 whose object has fields of v2 in annotations.
fn decode_converted<E: Error>(metadata: &RawValue, spec: &RawValue) -> Result<Spec, E> {
    let fields = [("metadata".into(), metadata.into()), ("spec".into(), spec.into())];
    let mut object = LazyObject::from_iter(fields);
    conversion::convert(&mut object, &CRONTABS_V2.api_version()).map_err(E::custom)?;
    let converted = serde_json::to_string(&object.get("spec")).map_err(E::custom)?;
    decode_part::<SpecV2, _>("spec", &converted).map(Spec::from)
}

fn decode_status<E: Error>(version: Version, status: &RawValue) -> Result<CronTabV2Status, E> {
    match version {
        Version::V1 => decode_part::<CronTabStatus, _>("status", status.get()).map(status_of_v1),
        Version::V2 => decode_part("status", status.get()),
    }
}

impl From<SpecV1> for Spec {
    fn from(spec: SpecV1) -> Self {
        Self {
            schedules: vec![ScheduleSpec {
                name: Arc::clone(&DEFAULT),
                schedule: spec.schedule,
                time_zone: spec.time_zone,
                dst_policy: spec.dst_policy,
                suspend: false,
            }],
            suspend: spec.suspend.unwrap_or_default(),
            concurrency: spec.concurrency_policy,
            deadline: spec.starting_deadline_seconds,
            keep_successful: spec.successful_jobs_history_limit,
            keep_failed: spec.failed_jobs_history_limit,
            template: Template::Pod {
                pod: spec.job_template,
                job: JobFields {
                    backoff_limit: spec.backoff_limit,
                    active_deadline_seconds: spec.active_deadline_seconds,
                    ttl_seconds_after_finished: spec.ttl_seconds_after_finished,
                },
            },
        }
    }
}

impl From<SpecV2> for Spec {
    fn from(spec: SpecV2) -> Self {
        let mut schedules: Vec<ScheduleSpec> = Vec::with_capacity(spec.schedules.len());
        for schedule in spec.schedules {
            // The definition rejects a second schedule of the same name.
            if schedules.iter().all(|known| *known.name != *schedule.name) {
                schedules.push(ScheduleSpec::from(schedule));
            }
        }
        let run_policy = spec.run_policy.unwrap_or_default();
        Self {
            schedules,
            suspend: spec.suspend.unwrap_or_default(),
            concurrency: run_policy.concurrency_policy,
            deadline: run_policy.starting_deadline_seconds,
            keep_successful: run_policy.successful_jobs_history_limit,
            keep_failed: run_policy.failed_jobs_history_limit,
            template: Template::Job(spec.template),
        }
    }
}

impl From<ScheduleV2> for ScheduleSpec {
    fn from(schedule: ScheduleV2) -> Self {
        let is_default = *schedule.name == *DEFAULT_SCHEDULE;
        Self {
            name: if is_default {
                Arc::clone(&DEFAULT)
            } else {
                schedule.name.into()
            },
            schedule: schedule.schedule,
            time_zone: schedule.time_zone,
            dst_policy: schedule.dst_policy,
            suspend: schedule.suspend.unwrap_or_default(),
        }
    }
}

/// Moves the times at the top of a status of v1 to the schedule `default`.
fn status_of_v1(status: CronTabStatus) -> CronTabV2Status {
    let mut schedules = status.schedules;
    let known = schedules.iter().position(|schedule| schedule.name == DEFAULT_SCHEDULE);
    let index = known.unwrap_or_else(|| {
        schedules.insert(0, ScheduleStatus::default());
        0
    });
    schedules[index] = ScheduleStatus {
        name: DEFAULT_SCHEDULE.to_owned(),
        last_schedule_time: status.last_schedule_time,
        next_schedule_time: status.next_schedule_time,
        last_missed_time: status.last_missed_time,
        missed_runs: status.missed_runs,
        observed_schedule: status.observed_schedule,
        scheduled_since: status.scheduled_since,
        active: schedules[index].active,
        suspended: schedules[index].suspended,
    };
    CronTabV2Status {
        schedules,
        runs: status.runs,
    }
}
