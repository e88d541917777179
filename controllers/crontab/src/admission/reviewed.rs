//! The reviewed fields of a CronTab, of both versions.
//!
//! An object of v1 may have further schedules in the annotation of v2, which are reviewed as well.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use portreeve_api::{LazyObject, LazyValue};
use portreeve_cron::{DstPolicy, load_zone};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, value::RawValue};

use crate::{
    api::{CRONTABS_V2, DEFAULT_SCHEDULE, DstPolicyName, MAX_SCHEDULE_NAME, MAX_SCHEDULES, V2_FIELDS},
    conversion,
};

/// How much of a schedule that is none an error shows, in bytes.
const LONGEST_SHOWN: usize = 256;

/// A CronTab that is reviewed.
pub(super) struct ReviewedCronTab {
    pub(super) uid: String,
    pub(super) starting_deadline_seconds: Option<i64>,
    /// The schedules; none without a spec.
    pub(super) schedules: Vec<ReviewedSchedule>,
    /// Whether v1 can store what only v2 has.
    pub(super) fits_v1: bool,
    /// The annotations with what only v2 has.
    pub(super) v2_only: BTreeMap<String, String>,
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
#[serde(rename_all = "camelCase")]
struct Object {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectMeta {
    uid: String,
    annotations: Option<BTreeMap<String, String>>,
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
        let encoded = Box::<RawValue>::deserialize(deserializer)?;
        let object: Object = serde_json::from_str(encoded.get()).map_err(D::Error::custom)?;
        let is_v2 = object.api_version == CRONTABS_V2.api_version();
        let mut v2_only = object.metadata.annotations.unwrap_or_default();
        v2_only.retain(|key, _| conversion::is_ours(key));
        let Some(mut spec) = object.spec else {
            return Ok(Self {
                uid: object.metadata.uid,
                starting_deadline_seconds: None,
                schedules: Vec::new(),
                fits_v1: true,
                v2_only,
                v2_only_problem: None,
            });
        };
        let others = if is_v2 || !v2_only.contains_key(V2_FIELDS) {
            Vec::new()
        } else {
            other_schedules(&encoded)
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
        let has_too_many = schedules.len() > MAX_SCHEDULES;
        Ok(Self {
            uid: object.metadata.uid,
            starting_deadline_seconds: deadlines.into_iter().flatten().next(),
            schedules,
            fits_v1: !is_v2 || has_too_many || serde_json::from_str(encoded.get()).is_ok_and(conversion::fits_v1),
            v2_only,
            v2_only_problem,
        })
    }
}

/// Returns the schedules that an object of v1 has in an annotation, as the controller reads them.
fn other_schedules(encoded: &RawValue) -> Vec<Value> {
    let Ok(mut object) = serde_json::from_str::<LazyObject<'_>>(encoded.get()) else {
        return Vec::new();
    };
    if conversion::convert(&mut object, &CRONTABS_V2.api_version()).is_err() {
        return Vec::new();
    }
    let spec = object.get_mut("spec");
    let schedules = spec.and_then(|spec| spec.get_mut("schedules")?.as_array_mut());
    let schedules = schedules.into_iter().flatten();
    let is_other = |schedule: &mut LazyValue<'_>| {
        let name = schedule.get_mut("name");
        !name.is_some_and(|name| name.is_string(DEFAULT_SCHEDULE))
    };
    let others = schedules.filter_map(|schedule| is_other(schedule).then(|| decoded(schedule)));
    // One more than v2 accepts is enough to know that they are too many.
    others.take(MAX_SCHEDULES + 1).collect()
}

/// Returns the value; `null` if it is too deep to be decoded.
fn decoded(value: &LazyValue<'_>) -> Value {
    let text = serde_json::to_string(value).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
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
    let invalid = invalid.to_string();
    let shown = &invalid[..invalid.floor_char_boundary(LONGEST_SHOWN)];
    Some(format!("this is no schedule of v2: {shown}"))
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
