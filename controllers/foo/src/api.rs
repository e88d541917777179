//! Foo, the API of Kubernetes' sample-controller, extended with status, scale, conditions and
//! validation.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use portreeve_api::{Resource, conditions::Condition};

/// The API resource of Foos.
pub const FOOS: Resource = Resource::namespaced("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos");

/// Specification of a Foo resource: the name and the size of a Deployment.
#[derive(Clone, CustomResource, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    namespaced,
    status = "FooStatus",
    derive = "PartialEq",
    doc = "Foo is a specification for a Foo resource, which manages one Deployment of nginx.",
    label("app.kubernetes.io/part-of", "portreeve"),
    annotation("api-approved.kubernetes.io", "unapproved, experimental-only: the API of Kubernetes' sample-controller"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.availableReplicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn(
        name = "Deployment",
        type_ = "string",
        json_path = ".spec.deploymentName",
        description = "The Deployment that the Foo manages"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "The number of desired replicas"
    ),
    printcolumn(
        name = "Available",
        type_ = "integer",
        json_path = ".status.availableReplicas",
        description = "The number of available replicas"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the Deployment matches the Foo"
    ),
    printcolumn(
        name = "Renaming",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Renaming')].status",
        description = "Whether a Deployment of an earlier name remains",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 63").message(Message::Message(
        "metadata.name can have at most 63 characters because it becomes the label `controller` of the Foo's Pods: choose a shorter one".into()
    ))
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    /// The name of the Deployment that the Foo manages. Must be a DNS label (lower-case letters,
    /// digits and `-`, at most 63 characters).
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub deployment_name: String,
    /// The number of desired pods, from 1 to 10. Defaults to 1.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,
}

/// Status of a Foo resource.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FooStatus {
    /// Total number of available pods targeted by the Deployment.
    pub available_replicas: i32,
    /// The generation observed by the controller.
    pub observed_generation: i64,
    /// The label selector of the Foo's Pods, which the scale subresource reports.
    pub label_selector: String,
    /// Represents the latest available observations of the Foo's state. `Ready` reports whether the
    /// Deployment matches the Foo. `Conflict` reports whether a Deployment of that name belongs to
    /// another owner. `Renaming` reports whether a Deployment of an earlier name remains until the
    /// new one is available.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn default_replicas() -> i32 {
    1
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::*;

    /// `make update` runs this test to write the file.
    #[test]
    fn crds_are_generated_from_the_types() {
        // Do not fold long strings.
        let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
        let definition = serde_saphyr::to_string_with_options(&json!(Foo::crd()), options).unwrap();
        expect_file!["../crds.yaml"].assert_eq(&definition);
    }

    /// A list must not have items with a default: kubectl's client-side apply would replace it as a
    /// whole at each change.
    #[test]
    fn the_spec_has_no_list() {
        for version in &Foo::crd().spec.versions {
            let spec = json!(version.schema)["openAPIV3Schema"]["properties"]["spec"].to_string();
            assert!(spec.contains("deploymentName") && !spec.contains("\"items\""), "{spec}");
        }
    }
}
