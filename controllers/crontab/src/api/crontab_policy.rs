//! CronTabPolicy: the limits and the defaults of the CronTabs in a namespace.
//!
//! The apiserver enforces them by admission policies, whose parameters are these objects.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use portreeve_api::Resource;

use crate::api::structural::schema_of;

/// The API resource of CronTabPolicies.
pub const CRONTAB_POLICIES: Resource =
    Resource::namespaced("stable.example.com", "v1", "CronTabPolicy", "crontabpolicies");

/// Specification of a CronTabPolicy. Every CronTabPolicy of a namespace applies to all CronTabs in
/// it.
#[expect(clippy::duplicated_attributes, reason = "columns have the same type")]
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "stable.example.com",
    version = "v1",
    kind = "CronTabPolicy",
    plural = "crontabpolicies",
    shortname = "ctp",
    namespaced,
    derive = "PartialEq",
    schema = "manual",
    label("app.kubernetes.io/part-of", "portreeve"),
    doc = "CronTabPolicy limits the CronTabs of its namespace and gives them defaults.",
    printcolumn(
        name = "Images",
        type_ = "string",
        json_path = ".spec.limits.images",
        description = "The allowed images"
    ),
    printcolumn(
        name = "Zones",
        type_ = "string",
        json_path = ".spec.limits.timeZones",
        description = "The allowed time zones"
    ),
    printcolumn(
        name = "Every",
        type_ = "boolean",
        json_path = ".spec.limits.allowEvery",
        description = "Whether @every is allowed"
    ),
    printcolumn(
        name = "Min Interval",
        type_ = "integer",
        json_path = ".spec.limits.minIntervalSeconds",
        description = "The smallest allowed interval between two runs, in seconds"
    ),
    printcolumn(
        name = "Default Zone",
        type_ = "string",
        json_path = ".spec.defaults.timeZone",
        description = "The time zone of new CronTabs that name none"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "The time since the CronTabPolicy was created"
    )
)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.defaults) || !has(self.defaults.timeZone) || !has(self.limits) \
        || !has(self.limits.timeZones) || self.defaults.timeZone in self.limits.timeZones",
    "message": "defaults.timeZone must be one of limits.timeZones, which would reject it",
    "fieldPath": ".defaults.timeZone",
}]))]
#[serde(rename_all = "camelCase")]
pub struct CronTabPolicySpec {
    /// What CronTabs may contain. A limit applies to new CronTabs, and to changes of the field that
    /// it limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<CronTabLimits>,
    /// Values for fields that a new CronTab does not set. If several CronTabPolicies of a namespace
    /// have a default for the same field, one of them applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defaults: Option<CronTabDefaults>,
}

/// What CronTabs may contain. What is not limited is allowed.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CronTabLimits {
    /// The images that containers, init containers and image volumes may use, compared as text. An
    /// item that ends with `/` allows every image below it; one that ends with `:` or `@` allows
    /// every tag or digest of an image; any other item allows only the image of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 1, max = 255), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub images: Option<Vec<String>>,
    /// The time zones that CronTabs may use, compared as text. A CronTab without a time zone uses
    /// `UTC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9+_/-]*$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub time_zones: Option<Vec<String>>,
    /// Whether schedules may use `@every`. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub allow_every: Option<bool>,
    /// The smallest allowed interval between two runs of a CronTab, in seconds. The webhook checks
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_interval_seconds: Option<i32>,
}

/// Values for fields that a new CronTab does not set.
///
/// These are the fields without a default in the CRD of CronTabs: the apiserver sets the others
/// before its policies run, so these could not tell whether the user has set them.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CronTabDefaults {
    /// The default of `spec.timeZone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub time_zone: Option<String>,
    /// The default of `spec.startingDeadlineSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub starting_deadline_seconds: Option<i64>,
    /// The default of `spec.backoffLimit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
    /// The default of `spec.activeDeadlineSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// The default of `spec.ttlSecondsAfterFinished`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// The schema of the whole object, without the nulls that kube would allow in optional fields.
impl JsonSchema for CronTabPolicy {
    fn schema_name() -> Cow<'static, str> {
        "CronTabPolicy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "CronTabPolicy limits the CronTabs of its namespace and gives them defaults.",
            "type": "object",
            "required": ["spec"],
            "properties": {"spec": schema_of::<CronTabPolicySpec>(&["nullable", "title"])},
        })
    }
}
