//! The table of fields that have another place in v2. docs/crontab-versions.md shows it.
//!
//! Architecture Invariant: pure.

use crate::api::DEFAULT_SCHEDULE;

/// The list of schedules, in the spec and the status of v2.
pub(crate) const SCHEDULES: &str = "schedules";

/// A field of v1 and its path in v2.
pub(crate) struct Field {
    pub(crate) v1: &'static str,
    /// The names of the objects from the spec or status down to the field. The name after
    /// [`SCHEDULES`] is that of an entry.
    pub(crate) v2: &'static [&'static str],
}

const fn field(v1: &'static str, v2: &'static [&'static str]) -> Field {
    Field { v1, v2 }
}

/// The fields of the spec. All others, such as `suspend`, have the same place in both versions.
pub(crate) const SPEC_FIELDS: &[Field] = &[
    field("schedule", &[SCHEDULES, DEFAULT_SCHEDULE, "schedule"]),
    field("timeZone", &[SCHEDULES, DEFAULT_SCHEDULE, "timeZone"]),
    field("dstPolicy", &[SCHEDULES, DEFAULT_SCHEDULE, "dstPolicy"]),
    field("concurrencyPolicy", &["runPolicy", "concurrencyPolicy"]),
    field("startingDeadlineSeconds", &["runPolicy", "startingDeadlineSeconds"]),
    field(
        "successfulJobsHistoryLimit",
        &["runPolicy", "successfulJobsHistoryLimit"],
    ),
    field("failedJobsHistoryLimit", &["runPolicy", "failedJobsHistoryLimit"]),
    field("jobTemplate", &["template", "spec", "template", "spec"]),
    field("backoffLimit", &["template", "spec", "backoffLimit"]),
    field("activeDeadlineSeconds", &["template", "spec", "activeDeadlineSeconds"]),
    field(
        "ttlSecondsAfterFinished",
        &["template", "spec", "ttlSecondsAfterFinished"],
    ),
];

/// The fields of the status. All others have the same place in both versions; `schedules` of v1
/// contains the other schedules.
pub(crate) const STATUS_FIELDS: &[Field] = &[
    field("lastScheduleTime", &[SCHEDULES, DEFAULT_SCHEDULE, "lastScheduleTime"]),
    field("nextScheduleTime", &[SCHEDULES, DEFAULT_SCHEDULE, "nextScheduleTime"]),
    field("lastMissedTime", &[SCHEDULES, DEFAULT_SCHEDULE, "lastMissedTime"]),
    field("missedRuns", &[SCHEDULES, DEFAULT_SCHEDULE, "missedRuns"]),
    field("observedSchedule", &[SCHEDULES, DEFAULT_SCHEDULE, "observedSchedule"]),
    field("scheduledSince", &[SCHEDULES, DEFAULT_SCHEDULE, "scheduledSince"]),
];

/// Returns whether a field of the spec exists only in v2, and contains fields of v1.
pub(crate) fn is_v2_group(name: &str) -> bool {
    SPEC_FIELDS.iter().any(|field| field.v2.first() == Some(&name))
}

/// Returns whether a field of a spec of v2 has no place in v1: a group, or a name that means
/// another field there.
pub(crate) fn is_v2_only(name: &str) -> bool {
    is_v2_group(name) || SPEC_FIELDS.iter().any(|field| field.v1 == name)
}
