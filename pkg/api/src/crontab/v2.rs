//! The types of `stable.example.com/v2`: several schedules with one template.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ConcurrencyPolicy, DstPolicyName, JobNameFormat, JobReference,
    status::{ScheduleStatus, whole_seconds},
};
use crate::conditions::{Condition, Time};

/// The name of the schedule that v1 shows.
pub const DEFAULT_SCHEDULE: &str = "default";

/// The most schedules of a CronTab.
pub const MAX_SCHEDULES: usize = 32;

/// The longest name of a schedule, in characters.
pub const MAX_SCHEDULE_NAME: usize = 63;

/// The annotation of v1 that stores what only v2 can express.
pub const V2_FIELDS: &str = "stable.example.com/v2";

/// The annotation of a Job with the name of its schedule. Absent for the schedule `default`.
pub const JOB_SCHEDULE: &str = "stable.example.com/schedule";

/// The annotation of a Job with the runs that it replaced although no status recorded them.
pub const REPLACED_RUNS: &str = "stable.example.com/replaced-runs";

/// Specification of a CronTab: the Job of each run, and when runs start.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CronTabV2Spec {
    /// When runs start. One of the schedules has the name `default`. Each schedule starts its own
    /// runs, even if several have the same time.
    #[schemars(
        length(min = 1, max = MAX_SCHEDULES),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
            "x-kubernetes-validations" = [{
                "rule": "self.exists(schedule, schedule.name == 'default')",
                "message": "must contain a schedule with the name default, which is the one that v1 shows",
            }],
        )
    )]
    pub schedules: Vec<NamedSchedule>,
    /// This flag tells the controller to suspend subsequent runs of all schedules. It does not
    /// apply to already started runs. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub suspend: Option<bool>,
    /// Specifies how runs are started and retained. It applies to the runs of all schedules
    /// together.
    #[serde(default)]
    #[schemars(extend("default" = {}))]
    pub run_policy: RunPolicy,
    /// Specifies the Job that each run creates.
    pub template: JobTemplateSpec,
}

// No field has a default in the schema, nor has a field of v1 that becomes one of these. kubectl's
// client-side apply compares lists as a whole, so it would find a change each time.
/// A schedule with a name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedSchedule {
    /// The name, unique within the CronTab: lower case letters, digits and dashes. It is part of
    /// what the names of Jobs are derived from, so a schedule with another name is another
    /// schedule.
    #[schemars(length(min = 1, max = MAX_SCHEDULE_NAME), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The schedule in Cron format: five fields (minute, hour, day of month, month, day of week), a
    /// macro such as `@daily`, or `@every 90m`. In a field, `H` is a fixed value that is
    /// derived from the UID of the CronTab.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" = [{
            "rule": "!self.contains('TZ=')",
            "message": "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        }])
    )]
    pub schedule: String,
    /// The IANA time zone name for the given schedule, such as `Europe/Zurich`. Defaults to UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Specifies how to treat runs at a named hour when the clock changes for daylight saving time.
    /// Valid values are: "Once" (default), which starts each of them once a day; "Kubernetes",
    /// which skips or repeats them as CronJob does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "DstPolicyName")]
    pub dst_policy: Option<DstPolicyName>,
    /// This flag tells the controller to suspend subsequent runs of this schedule. Defaults to
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// How runs are started and retained.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// Specifies how to treat concurrent runs, also those of different schedules. Valid values are:
    /// "Allow" (default), which allows runs to overlap; "Forbid", which skips the new run if the
    /// previous run has not finished yet; "Replace", which cancels the active run and starts the
    /// new one.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Optional deadline in seconds for starting a run if it misses its scheduled time for any
    /// reason. A run that misses its deadline is skipped. If not set, runs have no deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub starting_deadline_seconds: Option<i64>,
    /// The number of successful finished runs to retain. Value must be non-negative integer.
    /// Defaults to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 3))]
    pub successful_jobs_history_limit: Option<i32>,
    /// The number of failed finished runs to retain. Value must be non-negative integer. Defaults
    /// to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub failed_jobs_history_limit: Option<i32>,
}

/// The current state of a CronTab.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronTabV2Status {
    /// The state of each schedule.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub schedules: Vec<ScheduleStatus>,
    /// A list of references to currently active Jobs, of all schedules.
    pub active: Vec<JobReference>,
    /// The number of currently active runs, of all schedules.
    pub active_count: i32,
    /// The completion time of the last successful run.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
    pub last_successful_time: Option<Timestamp>,
    /// The completion time of the last failed run.
    #[serde(with = "whole_seconds")]
    #[schemars(with = "Option<Time>")]
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
