//! The reviewed fields of a CronTab, of both versions.
//!
//! An object of v1 may have further schedules in the annotation of v2, which are reviewed as well.
//!
//! Architecture Invariant: pure.

use portreeve_api::{CRONTABS_V2, DEFAULT_SCHEDULE, DstPolicyName, MAX_SCHEDULE_NAME, MAX_SCHEDULES, V2_FIELDS};
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
    /// The annotation with what only v2 has.
    pub(super) v2_only: Option<String>,
    /// Why v2 would not accept the schedules in that annotation.
    pub(super) v2_only_problem: Option<String>,
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

impl<'de> Deserialize<'de> for ReviewedCronTab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let is_v2 = object["apiVersion"] == CRONTABS_V2.api_version();
        let fits_v1 = !is_v2 || conversion::fits_v1(&object);
        let others = if is_v2 { Vec::new() } else { other_schedules(&object) };
        let Object { metadata, spec } = Object::deserialize(object).map_err(D::Error::custom)?;
        let v2_only = metadata.annotations.and_then(|annotations| annotations.v2_only);
        let Some(mut spec) = spec else {
            return Ok(Self {
                uid: metadata.uid,
                starting_deadline_seconds: None,
                schedules: Vec::new(),
                fits_v1,
                v2_only,
                v2_only_problem: None,
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
        }
        let v2_only_problem = problem(&others);
        let others = others.iter().filter_map(NamedSchedule::read_leniently);
        let all = spec.schedules.into_iter().chain(others);
        schedules.extend(all.filter_map(ReviewedSchedule::of_v2));
        Ok(Self {
            uid: metadata.uid,
            starting_deadline_seconds: deadlines.into_iter().flatten().next(),
            schedules,
            fits_v1,
            v2_only,
            v2_only_problem,
        })
    }
}

/// Returns the schedules that an object of v1 has in an annotation, as the controller reads them.
fn other_schedules(object: &Value) -> Vec<Value> {
    if object["metadata"]["annotations"].get(V2_FIELDS).is_none() {
        return Vec::new();
    }
    let converted = conversion::convert(object.clone(), &CRONTABS_V2.api_version());
    let mut schedules = converted.unwrap_or_default()["spec"]["schedules"].take();
    let schedules = schedules.as_array_mut().map(std::mem::take).unwrap_or_default();
    let is_other = |schedule: &Value| schedule["name"] != DEFAULT_SCHEDULE;
    schedules.into_iter().filter(is_other).collect()
}

/// Returns why v2 would not accept these schedules besides the one that v1 has.
fn problem(others: &[Value]) -> Option<String> {
    if others.len() >= MAX_SCHEDULES {
        return Some(format!("a CronTab can have at most {MAX_SCHEDULES} schedules"));
    }
    let invalid = others.iter().find(|schedule| {
        let read = NamedSchedule::deserialize(*schedule);
        !read.is_ok_and(|read| is_name(&read.name) && read.schedule.is_some())
    })?;
    Some(format!("this is no schedule of v2: {invalid}"))
}

/// Returns whether v2 accepts the name of a schedule.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_SCHEDULE_NAME).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

impl NamedSchedule {
    /// Reads what the controller may read of a schedule that v2 would not accept.
    fn read_leniently(schedule: &Value) -> Option<Self> {
        let text = |field: &str| schedule[field].as_str().map(str::to_owned);
        Some(Self {
            name: text("name")?,
            schedule: text("schedule"),
            time_zone: text("timeZone"),
            dst_policy: DstPolicyName::deserialize(&schedule["dstPolicy"]).unwrap_or_default(),
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
