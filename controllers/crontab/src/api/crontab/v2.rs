//! The types of `stable.example.com/v2`: several schedules with one template.

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    RunPolicy, Timing,
    status::{RunsStatus, ScheduleStatus},
};

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
    /// When runs start.
    #[serde(flatten)]
    pub timing: Timing,
    /// This flag tells the controller to suspend subsequent runs of this schedule. Defaults to
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// The current state of a CronTab.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CronTabV2Status {
    /// The state of each schedule.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub schedules: Vec<ScheduleStatus>,
    /// What both versions show in the same place.
    #[serde(flatten)]
    pub runs: RunsStatus,
}
