//! The status of a CronTab. It is sent as a merge patch, so an absent value is written as null,
//! which removes the field.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use portreeve_api::conditions::{Condition, TimeSchema};

/// The current state of a CronTab.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronTabStatus {
    /// The state of the schedules that only v2 shows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub schedules: Vec<ScheduleStatus>,
    /// What both versions show in the same place.
    #[serde(flatten)]
    pub runs: RunsStatus,
    /// The last scheduled time for which a run was started.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_schedule_time: Option<Timestamp>,
    /// The time of the next scheduled run. Absent if no run is scheduled.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub next_schedule_time: Option<Timestamp>,
    /// The last scheduled time whose run was missed.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_missed_time: Option<Timestamp>,
    /// The total number of missed runs.
    pub missed_runs: i64,
    /// The most recently observed schedule and time zone.
    pub observed_schedule: Option<String>,
    /// The time at which the observed schedule replaced another one. Earlier scheduled times are
    /// not caught up.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub scheduled_since: Option<Timestamp>,
}

/// The state of the runs of all schedules, which both versions of a CronTab show.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RunsStatus {
    /// A list of references to currently active Jobs of all schedules.
    pub active: Vec<JobReference>,
    /// The number of currently active runs of all schedules.
    pub active_count: i32,
    /// The completion time of the last successful run.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_successful_time: Option<Timestamp>,
    /// The completion time of the last failed run.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_failure_time: Option<Timestamp>,
    /// The value of the annotation `stable.example.com/run-now` that the controller acted on last.
    pub last_run_now: Option<String>,
    /// The format of the names of the Jobs. The controller chooses it before the first run and
    /// never changes it. If absent, the names of the schedule `default` are `<name>-<minutes>`,
    /// which a CronJob of the same name may also create.
    #[schemars(with = "JobNameFormat")]
    pub job_name_format: Option<JobNameFormat>,
    /// The most recent generation observed by the controller.
    pub observed_generation: i64,
    /// Current service state of the CronTab, with at most one condition per type.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The current state of one schedule. Absent fields are not written, because a merge patch replaces
/// the whole list.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleStatus {
    /// The name of the schedule.
    pub name: String,
    /// The last scheduled time for which a run was started.
    #[serde(default, with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_schedule_time: Option<Timestamp>,
    /// The time of the next scheduled run. Absent if no run is scheduled.
    #[serde(default, with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSchema>")]
    pub next_schedule_time: Option<Timestamp>,
    /// The last scheduled time whose run was missed.
    #[serde(default, with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSchema>")]
    pub last_missed_time: Option<Timestamp>,
    /// The total number of missed runs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missed_runs: i64,
    /// The number of currently active runs of this schedule. Absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active: i64,
    /// Whether the schedule was suspended when the status was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// The most recently observed schedule and time zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_schedule: Option<String>,
    /// The time at which the observed schedule replaced another one. Earlier scheduled times are
    /// not caught up.
    #[serde(default, with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TimeSchema>")]
    pub scheduled_since: Option<Timestamp>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// A format of the names of Jobs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum JobNameFormat {
    /// The CronTab's name, a hash of its name and the schedule's name, and `t` with the scheduled
    /// time in minutes since 1970.
    Hashed,
}

/// Contains enough information to identify a Job.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobReference {
    /// API version of the referent.
    pub api_version: String,
    /// Kind of the referent, always Job.
    pub kind: String,
    /// Name of the referent.
    pub name: String,
    /// Namespace of the referent.
    pub namespace: String,
    /// UID of the referent.
    pub uid: String,
}

/// Serializes times like `metav1.Time`: RFC 3339 without a fraction.
pub(super) mod whole_seconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde requires")]
    pub(crate) fn serialize<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(&format_args!("{time:.0}")),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn absent_times_are_serialized_as_null_and_others_in_whole_seconds() {
        let status = CronTabStatus {
            last_schedule_time: Some("2026-10-25T01:30:00.987654321Z".parse().expect("a time")),
            ..CronTabStatus::default()
        };
        let written = serde_json::to_value(&status).expect("serialises");
        assert_eq!(written["lastScheduleTime"], "2026-10-25T01:30:00Z");
        for absent in [
            "lastSuccessfulTime",
            "lastFailureTime",
            "nextScheduleTime",
            "lastMissedTime",
            "lastRunNow",
            "observedSchedule",
            "scheduledSince",
            "jobNameFormat",
        ] {
            assert_eq!(written.get(absent), Some(&Value::Null), "{absent}");
        }
    }

    #[test]
    fn absent_fields_have_their_defaults() {
        let status: CronTabStatus = serde_json::from_value(json!({"lastFailureTime": null})).expect("reads");
        assert_eq!(status, CronTabStatus::default());
    }
}
