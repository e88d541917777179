//! The CRD of CronTabs: names, columns, and the schema from the `schema` module.

use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
        CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
        CustomResourceSubresources, CustomResourceValidation, JSONSchemaProps,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::{ApiResource, CustomResourceExt};

use serde_json::json;

use portreeve_api::{PART_OF, PROGRAM};

use super::{CronTab, GROUP, KIND, PLURAL, VERSION, VERSION_2, schema};

const NAME: &str = "crontabs.stable.example.com";
const SHORT_NAMES: &[&str] = &["ct"];

/// A column of `kubectl get`: title, type, path, description.
type Column = (&'static str, &'static str, &'static str, &'static str);

/// The columns of v1 after the name.
///
/// The next run is a string: a column of type `date` prints the elapsed time, which is `<invalid>`
/// for a time in the future.
const COLUMNS: &[Column] = &[
    ("Schedule", "string", ".spec.schedule", "The schedule in Cron format"),
    ("Zone", "string", ".spec.timeZone", "The time zone of the schedule"),
    (
        "Suspend",
        "boolean",
        ".spec.suspend",
        "Whether subsequent runs are suspended",
    ),
    ("Active", "integer", ".status.activeCount", "The number of active runs"),
    (
        "Last Run",
        "date",
        ".status.lastScheduleTime",
        "The time since the last run was scheduled",
    ),
    (
        "Next Run",
        "string",
        ".status.nextScheduleTime",
        "The time of the next scheduled run",
    ),
    (
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "The time since the CronTab was created",
    ),
];

/// The columns of v2 after the name. A column prints only one match, so they show one schedule,
/// which every CronTab has.
const COLUMNS_2: &[Column] = &[
    (
        "Schedule",
        "string",
        ".spec.schedules[?(@.name=='default')].schedule",
        "The schedule default in Cron format",
    ),
    (
        "Suspend",
        "boolean",
        ".spec.suspend",
        "Whether subsequent runs are suspended",
    ),
    ("Active", "integer", ".status.activeCount", "The number of active runs"),
    (
        "Last Run",
        "date",
        ".status.schedules[?(@.name=='default')].lastScheduleTime",
        "The time since the last run of the schedule default was scheduled",
    ),
    (
        "Next Run",
        "string",
        ".status.schedules[?(@.name=='default')].nextScheduleTime",
        "The time of the next run of the schedule default",
    ),
    (
        "Age",
        "date",
        ".metadata.creationTimestamp",
        "The time since the CronTab was created",
    ),
];

impl CustomResourceExt for CronTab {
    fn crd() -> CustomResourceDefinition {
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                labels: Some(BTreeMap::from([(PART_OF.to_owned(), PROGRAM.to_owned())])),
                ..ObjectMeta::default()
            },
            spec: CustomResourceDefinitionSpec {
                group: GROUP.to_owned(),
                names: CustomResourceDefinitionNames {
                    kind: KIND.to_owned(),
                    plural: PLURAL.to_owned(),
                    singular: Some("crontab".to_owned()),
                    short_names: Some(SHORT_NAMES.iter().map(ToString::to_string).collect()),
                    ..CustomResourceDefinitionNames::default()
                },
                scope: "Namespaced".to_owned(),
                versions: vec![
                    version(VERSION, true, schema::root(), COLUMNS),
                    // Served once a replica converts: `kubectl portreeve conversion enable`.
                    version(VERSION_2, false, schema::root_2(), COLUMNS_2),
                ],
                ..CustomResourceDefinitionSpec::default()
            },
            status: None,
        }
    }

    fn crd_name() -> &'static str {
        NAME
    }

    fn api_resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }

    fn shortnames() -> &'static [&'static str] {
        SHORT_NAMES
    }
}

/// Returns a version, which is either served and stored, or neither.
fn version(
    name: &str,
    is_served: bool,
    schema: JSONSchemaProps,
    columns: &[Column],
) -> CustomResourceDefinitionVersion {
    let column = |&(name, type_, path, description): &Column| CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    };
    CustomResourceDefinitionVersion {
        name: name.to_owned(),
        served: is_served,
        storage: is_served,
        schema: Some(CustomResourceValidation {
            open_api_v3_schema: Some(schema),
        }),
        subresources: Some(CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(json!({}))),
            scale: None,
        }),
        additional_printer_columns: Some(columns.iter().map(column).collect()),
        ..CustomResourceDefinitionVersion::default()
    }
}
