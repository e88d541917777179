//! The reviewed fields of a CronTab, of both versions.
//!
//! An object of v1 may have further schedules in the annotation of v2, which are reviewed as well.
//!
//! Architecture Invariant: pure.

use portreeve_api::{CRONTABS_V2, DEFAULT_SCHEDULE, DstPolicyName};
use portreeve_cron::{DstPolicy, load_zone};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

use crate::conversion;

/// A CronTab that is reviewed.
pub(super) struct ReviewedCronTab {
    pub(super) uid: String,
    pub(super) starting_deadline_seconds: Option<i64>,
    /// The schedules; none without a spec.
    pub(super) schedules: Vec<ReviewedSchedule>,
    /// Whether v1 can store what only v2 has.
    pub(super) fits_v1: bool,
}

/// A schedule that is reviewed.
#[derive(PartialEq)]
pub(super) struct ReviewedSchedule {
    /// The path of the object that has the fields.
    pub(super) path: String,
    pub(super) schedule: String,
    pub(super) time_zone: Option<String>,
    pub(super) dst_policy: DstPolicyName,
}

impl ReviewedSchedule {
    pub(super) fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    pub(super) fn policy(&self) -> DstPolicy {
        match self.dst_policy {
            DstPolicyName::Once => DstPolicy::Once,
            DstPolicyName::Kubernetes => DstPolicy::Kubernetes,
        }
    }

    pub(super) fn is_in_unknown_zone(&self) -> bool {
        load_zone(self.time_zone.as_deref().unwrap_or_default()).is_err()
    }
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    uid: String,
    annotations: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "stable.example.com/v2")]
    v2_only: Option<String>,
}

/// The fields of both versions.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    schedule: Option<String>,
    time_zone: Option<String>,
    dst_policy: DstPolicyName,
    starting_deadline_seconds: Option<i64>,
    schedules: Vec<NamedSchedule>,
    run_policy: RunPolicy,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedSchedule {
    name: String,
    schedule: Option<String>,
    #[serde(default)]
    time_zone: Option<String>,
    #[serde(default)]
    dst_policy: DstPolicyName,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RunPolicy {
    starting_deadline_seconds: Option<i64>,
}

/// The annotation of v2.
#[derive(Deserialize)]
struct V2Only {
    #[serde(default)]
    spec: Spec,
}

impl<'de> Deserialize<'de> for ReviewedCronTab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let fits_v1 = object["apiVersion"] != CRONTABS_V2.api_version() || conversion::fits_v1(&object);
        let Object { metadata, spec } = Object::deserialize(object).map_err(D::Error::custom)?;
        let Some(mut spec) = spec else {
            return Ok(Self {
                uid: metadata.uid,
                starting_deadline_seconds: None,
                schedules: Vec::new(),
                fits_v1,
            });
        };
        let deadlines = [
            spec.starting_deadline_seconds,
            spec.run_policy.starting_deadline_seconds,
        ];
        let mut schedules = Vec::new();
        if let Some(schedule) = spec.schedule.take() {
            schedules.push(ReviewedSchedule {
                path: "spec".to_owned(),
                schedule,
                time_zone: spec.time_zone.take(),
                dst_policy: spec.dst_policy,
            });
            let annotation = metadata.annotations.and_then(|annotations| annotations.v2_only);
            let v2_only = annotation.and_then(|text| serde_json::from_str::<V2Only>(&text).ok());
            let others = v2_only.into_iter().flat_map(|v2_only| v2_only.spec.schedules);
            spec.schedules = others.filter(|schedule| schedule.name != DEFAULT_SCHEDULE).collect();
        }
        schedules.extend(spec.schedules.into_iter().filter_map(ReviewedSchedule::of_v2));
        Ok(Self {
            uid: metadata.uid,
            starting_deadline_seconds: deadlines.into_iter().flatten().next(),
            schedules,
            fits_v1,
        })
    }
}

impl ReviewedSchedule {
    fn of_v2(schedule: NamedSchedule) -> Option<Self> {
        Some(Self {
            path: format!("spec.schedules[{}]", schedule.name),
            schedule: schedule.schedule?,
            time_zone: schedule.time_zone,
            dst_policy: schedule.dst_policy,
        })
    }
}
