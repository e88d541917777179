use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::api::CronTab;

use super::*;

fn properties_of<T: CustomResourceExt>(pointer: &str) -> Value {
    let schema = json!(T::crd().spec.versions[0].schema);
    schema.pointer(pointer).cloned().unwrap_or_default()
}

#[test]
fn names_of_the_resource_are_consistent() {
    assert_eq!(CronTabPolicy::crd_name(), CRONTAB_POLICIES.crd_name());
    let found = CronTabPolicy::api_resource();
    assert_eq!(
        (found.api_version, found.kind, found.plural),
        (
            CRONTAB_POLICIES.api_version(),
            CRONTAB_POLICIES.kind.to_string(),
            CRONTAB_POLICIES.plural.to_string()
        )
    );
}

/// A default in the CRD of CronTabs would hide whether the user has set the field.
#[test]
fn defaults_are_fields_of_crontabs_with_the_same_bounds_and_without_a_default_in_the_crd() {
    let crontab = properties_of::<CronTab>("/openAPIV3Schema/properties/spec/properties");
    let path = "/openAPIV3Schema/properties/spec/properties/defaults/properties";
    let defaults = properties_of::<CronTabPolicy>(path);
    let defaults = defaults.as_object().expect("properties");
    assert_eq!(defaults.len(), 5);
    for (name, default) in defaults {
        let field = &crontab[name];
        assert_eq!(field.get("default"), None, "{name}");
        for keyword in ["type", "format", "minimum", "maximum", "minLength", "maxLength", "enum"] {
            assert_eq!(field.get(keyword), default.get(keyword), "{name}: {keyword}");
        }
    }
}

#[test]
fn no_field_is_nullable_and_every_field_has_a_description() {
    let text = json!(CronTabPolicy::crd()).to_string();
    assert!(!text.contains("nullable"), "{text}");
    for pointer in ["", "/properties/limits", "/properties/defaults"] {
        let path = format!("/openAPIV3Schema/properties/spec{pointer}/properties");
        let properties = properties_of::<CronTabPolicy>(&path);
        for (name, property) in properties.as_object().expect("properties") {
            let description = property["description"].as_str().unwrap_or_default();
            assert!(
                !description.is_empty() && !description.contains('\n'),
                "{name}: {description}"
            );
        }
    }
}

#[test]
fn policy_survives_a_round_trip() {
    let policy = json!({
        "apiVersion": "stable.example.com/v1",
        "kind": "CronTabPolicy",
        "metadata": {"name": "limits"},
        "spec": {
            "limits": {"images": ["example.com/"], "timeZones": ["UTC"], "allowEvery": false, "minIntervalSeconds": 60},
            "defaults": {
                "timeZone": "UTC", "startingDeadlineSeconds": 0, "backoffLimit": 1, "activeDeadlineSeconds": 1,
                "ttlSecondsAfterFinished": 2,
            },
        },
    });
    let read: CronTabPolicy = serde_json::from_value(policy.clone()).expect("reads");
    assert_eq!(json!(read), policy);
}
