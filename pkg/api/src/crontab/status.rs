//! The status of a CronTab, which goes out as a merge patch: a time that is none is written as null, so that it is removed.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, Time};

/// What Portreeve last observed of a CronTab.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronTabStatus {
    /// The Jobs of the runs that are under way.
    pub active: Vec<JobReference>,
    /// How many runs are under way.
    pub active_count: i32,
    /// The last scheduled time that a run was started for.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub last_schedule_time: Option<Timestamp>,
    /// When the last successful run ended.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub last_successful_time: Option<Timestamp>,
    /// When the last failed run ended.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub last_failure_time: Option<Timestamp>,
    /// When the next run is due; absent while none is.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub next_schedule_time: Option<Timestamp>,
    /// The last scheduled time whose run was missed.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub last_missed_time: Option<Timestamp>,
    /// How many scheduled times were missed, in all.
    pub missed_runs: i64,
    /// The value of the annotation `stable.example.com/run-now` that was acted on last.
    pub last_run_now: Option<String>,
    /// The schedule and the zone that were observed last.
    pub observed_schedule: Option<String>,
    /// When that schedule took the place of another one: no earlier time of it is made up for.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub scheduled_since: Option<Timestamp>,
    /// The `.metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// What holds of the CronTab, one condition a type.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A Job, as a status names it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct JobReference {
    /// The API version of the Job.
    pub api_version: String,
    /// The kind: Job.
    pub kind: String,
    /// The name of the Job.
    pub name: String,
    /// The namespace of the Job.
    pub namespace: String,
    /// The UID of the Job.
    pub uid: String,
}

/// Times as `metav1.Time` has them: RFC 3339 without a fraction.
mod whole_seconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::ref_option, reason = "the signature that serde wants")]
    pub(super) fn serialize<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(&format_args!("{time:.0}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        Option::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn absent_times_are_written_as_null_and_present_ones_in_whole_seconds() {
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
        ] {
            assert_eq!(written.get(absent), Some(&Value::Null), "{absent}");
        }
    }

    #[test]
    fn whatever_is_absent_reads_as_nothing() {
        let status: CronTabStatus = serde_json::from_value(json!({"lastFailureTime": null})).expect("reads");
        assert_eq!(status, CronTabStatus::default());
    }
}
