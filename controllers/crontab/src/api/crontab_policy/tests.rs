use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::api::CronTab;

use super::*;

fn properties_of<T: CustomResourceExt>(pointer: &str) -> Value {
    let schema = json!(T::crd().spec.versions[0].schema);
    schema.pointer(pointer).cloned().unwrap_or_default()
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
