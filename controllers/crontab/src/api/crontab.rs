//! CronTab: runs a pod on a schedule, with one Job per run.
//!
//! The types are written by hand and not derived by kube, because `spec` is optional: the apiserver
//! stores a CronTab without a spec, and the controller ignores it until it has one.

mod definition;
mod pod;
mod schema;
mod status;
#[cfg(test)]
mod tests;
mod v2;

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, api::core::v1::PodSpec};
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use portreeve_api::Resource;

pub use status::{CronTabStatus, JobNameFormat, JobReference, RunsStatus, ScheduleStatus};
pub use v2::{
    CronTabV2Spec, CronTabV2Status, DEFAULT_SCHEDULE, JOB_SCHEDULE, MAX_SCHEDULE_NAME, MAX_SCHEDULES, NamedSchedule,
    REPLACED_RUNS, V2_FIELDS,
};

const GROUP: &str = "stable.example.com";
const VERSION: &str = "v1";
const VERSION_2: &str = "v2";
const API_VERSION: &str = "stable.example.com/v1";
const KIND: &str = "CronTab";
const PLURAL: &str = "crontabs";

/// The API resource of CronTabs, in v1. Jobs refer to their owner by this version.
pub const CRONTABS: Resource = Resource::namespaced(GROUP, VERSION, KIND, PLURAL);

/// The API resource of CronTabs, in v2.
pub const CRONTABS_V2: Resource = Resource::namespaced(GROUP, VERSION_2, KIND, PLURAL);

/// The annotation that requests a run outside of the schedule. Each new value requests one run.
pub const RUN_NOW: &str = "stable.example.com/run-now";

/// A CronTab runs a pod on a schedule. Controllers use smaller types that decode only the fields
/// they need.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct CronTab {
    /// Standard object's metadata.
    pub metadata: ObjectMeta,
    /// Specification of the desired behavior of a CronTab, including the schedule.
    pub spec: Option<CronTabSpec>,
    /// Current status of a CronTab.
    pub status: Option<CronTabStatus>,
}

impl CronTab {
    /// Returns a CronTab with this name and spec and without a status.
    pub fn new(name: &str, spec: CronTabSpec) -> Self {
        Self {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }
}

impl kube::Resource for CronTab {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        KIND.into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Adds `apiVersion` and `kind`, which the type does not store.
impl Serialize for CronTab {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Manifest<'a> {
            api_version: &'static str,
            kind: &'static str,
            metadata: &'a ObjectMeta,
            #[serde(skip_serializing_if = "Option::is_none")]
            spec: Option<&'a CronTabSpec>,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'a CronTabStatus>,
        }
        let Self { metadata, spec, status } = self;
        let manifest = Manifest {
            api_version: API_VERSION,
            kind: KIND,
            metadata,
            spec: spec.as_ref(),
            status: status.as_ref(),
        };
        manifest.serialize(serializer)
    }
}

/// Specification of a CronTab: the pod of each run, and when runs start.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CronTabSpec {
    /// When runs start.
    #[serde(flatten)]
    pub timing: Timing,
    /// Specifies the pod that each run creates. This is the spec of a Pod, without a template or
    /// metadata around it.
    pub job_template: PodSpec,
    /// This flag tells the controller to suspend subsequent runs. It does not apply to already
    /// started runs. Defaults to false.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub suspend: Option<bool>,
    /// How runs are started and retained.
    #[serde(flatten)]
    pub run_policy: RunPolicy,
    /// Specifies the number of retries before marking a run failed. Copied to `backoffLimit` of
    /// each Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
    /// Specifies the duration in seconds that a run may be active before the system tries to
    /// terminate it. Copied to `activeDeadlineSeconds` of each Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// Limits the lifetime in seconds of a run that has finished. Copied to
    /// `ttlSecondsAfterFinished` of each Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// When runs start. Fields of a CronTab in v1, and of a schedule in v2.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timing {
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
}

/// How runs are started and retained. Fields of a CronTab in v1, and a field of one in v2.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunPolicy {
    /// Specifies how to treat concurrent runs. Valid values are: "Allow" (default), which allows
    /// runs to overlap; "Forbid", which skips the new run if the previous run has not finished yet;
    /// "Replace", which cancels the active run and starts the new one.
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

/// The treatment of concurrent runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum ConcurrencyPolicy {
    /// Allows runs to overlap.
    #[default]
    Allow,
    /// Skips the new run if the previous run has not finished yet.
    Forbid,
    /// Cancels the active run and starts the new one.
    Replace,
}

/// The treatment of runs at a named hour when the clock changes for daylight saving time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum DstPolicyName {
    /// A run whose time is skipped or repeated starts once.
    #[default]
    Once,
    /// Like a CronJob: a skipped time has no run, a repeated time has two.
    Kubernetes,
}
