//! CronTab: a pod that runs on a schedule, with one Job a run.
//!
//! The types are written out instead of derived by kube, as `spec` is optional here: a CronTab without one is stored and waits.

mod definition;
mod pod;
mod schema;
mod status;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use k8s_openapi::{NamespaceResourceScope, api::core::v1::PodSpec};
use kube::core::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use crate::Resource;

pub use status::{CronTabStatus, JobReference};

const GROUP: &str = "stable.example.com";
const VERSION: &str = "v1";
const API_VERSION: &str = "stable.example.com/v1";
const KIND: &str = "CronTab";
const PLURAL: &str = "crontabs";

/// Where CronTabs are served.
pub const CRONTABS: Resource = Resource::namespaced(GROUP, VERSION, KIND, PLURAL);

/// The annotation that asks for a run outside of the schedule: each new value of it asks for one.
pub const RUN_NOW: &str = "stable.example.com/run-now";

/// A CronTab runs a pod on a schedule. Not for controllers, which read only the part that they decide by.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
pub struct CronTab {
    /// The name, the labels and what else every object has.
    pub metadata: ObjectMeta,
    /// What is to run, and when.
    pub spec: Option<CronTabSpec>,
    /// What Portreeve last observed.
    pub status: Option<CronTabStatus>,
}

impl CronTab {
    /// A CronTab of that name that was not observed yet.
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

/// With `apiVersion` and `kind`, which the type itself stands for.
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

/// What a CronTab is to run, and when.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CronTabSpec {
    /// When a run starts: five cron fields (minute, hour, day of month, month, day of week), `@daily` and its like, or
    /// `@every 90m`; in a field, `H` stands for a value that differs between CronTabs and stays.
    #[schemars(
        length(min = 1, max = 1024),
        extend("x-kubernetes-validations" = [{
            "rule": "!self.contains('TZ=')",
            "message": "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        }])
    )]
    pub schedule: String,
    /// The pod of each run: the spec of a Pod, without a template or metadata around it.
    pub job_template: PodSpec,
    /// The IANA name of the zone that `schedule` is read in, such as `Europe/Zurich`; UTC when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// Whether scheduled runs are withheld; those under way go on; false when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = false))]
    pub suspend: Option<bool>,
    /// What happens when a run is due while another one is under way: Allow both, Forbid the new one, or Replace the old one;
    /// Allow when it is not said.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// How many seconds late a run may still start; however late when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub starting_deadline_seconds: Option<i64>,
    /// How many successful runs are kept; 3 when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 3))]
    pub successful_jobs_history_limit: Option<i32>,
    /// How many failed runs are kept; 1 when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub failed_jobs_history_limit: Option<i32>,
    /// What a change of the clocks does to runs at a named hour: Once has each of them once a day, Kubernetes skips or
    /// repeats them; Once when it is not said.
    #[serde(default)]
    pub dst_policy: DstPolicyName,
    /// How often a run is tried again before it has failed; `backoffLimit` of its Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
    /// How many seconds a run may take before it is ended; `activeDeadlineSeconds` of its Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// How many seconds after its end a run is deleted; `ttlSecondsAfterFinished` of its Job.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// What happens when a run is due while another one is under way.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum ConcurrencyPolicy {
    /// Both run.
    #[default]
    Allow,
    /// The new one is skipped.
    Forbid,
    /// The old one is deleted, and the new one runs.
    Replace,
}

/// What a change of the clocks does to runs at a named hour.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
pub enum DstPolicyName {
    /// A run whose time is skipped or repeated happens once.
    #[default]
    Once,
    /// As with a CronJob: a skipped time has no run, a repeated one has two.
    Kubernetes,
}
