//! The CRD of CronTabs: names, columns, and the schema from the `schema` module.

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceColumnDefinition, CustomResourceDefinition, CustomResourceDefinitionNames,
        CustomResourceDefinitionSpec, CustomResourceDefinitionVersion, CustomResourceSubresourceStatus,
        CustomResourceSubresources, CustomResourceValidation,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::core::{ApiResource, CustomResourceExt};

use serde_json::json;

use super::{CronTab, GROUP, KIND, PLURAL, VERSION, schema};

const NAME: &str = "crontabs.stable.example.com";
const SHORT_NAMES: &[&str] = &["ct"];

/// The columns of `kubectl get` after the name: title, type, path, description.
///
/// The next run is a string: a column of type `date` prints the elapsed time, which is `<invalid>`
/// for a time in the future.
const COLUMNS: &[(&str, &str, &str, &str)] = &[
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

impl CustomResourceExt for CronTab {
    fn crd() -> CustomResourceDefinition {
        CustomResourceDefinition {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
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
                versions: vec![version()],
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

fn version() -> CustomResourceDefinitionVersion {
    let column = |&(name, type_, path, description): &(&str, &str, &str, &str)| CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    };
    CustomResourceDefinitionVersion {
        name: VERSION.to_owned(),
        served: true,
        storage: true,
        schema: Some(CustomResourceValidation {
            open_api_v3_schema: Some(schema::root()),
        }),
        subresources: Some(CustomResourceSubresources {
            status: Some(CustomResourceSubresourceStatus(json!({}))),
            scale: None,
        }),
        additional_printer_columns: Some(COLUMNS.iter().map(column).collect()),
        ..CustomResourceDefinitionVersion::default()
    }
}
