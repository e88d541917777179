//! Foo, the API of Kubernetes' sample-controller, with what its users have missed: status, scale, conditions and validation.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Resource, conditions::Condition};

/// Where Foos are served.
pub const FOOS: Resource = Resource::namespaced("samplecontroller.k8s.io", "v1alpha1", "Foo", "foos");

/// The desired state of a Foo: one Deployment of that name and size.
#[derive(Clone, CustomResource, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    namespaced,
    status = "FooStatus",
    derive = "PartialEq",
    doc = "A Foo keeps one Deployment of nginx at the size that it asks for.",
    annotation("api-approved.kubernetes.io", "unapproved, experimental-only: the API of Kubernetes' sample-controller"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.availableReplicas"
    ),
    printcolumn(
        name = "Deployment",
        type_ = "string",
        json_path = ".spec.deploymentName",
        description = "The Deployment that the Foo keeps"
    ),
    printcolumn(
        name = "Desired",
        type_ = "integer",
        json_path = ".spec.replicas",
        description = "How many replicas the Foo asks for"
    ),
    printcolumn(
        name = "Available",
        type_ = "integer",
        json_path = ".status.availableReplicas",
        description = "How many replicas are available"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        description = "Whether the Deployment is as the Foo asks"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 63").message(Message::Message(
        "the name of a Foo becomes the label `controller` of its Pods, so it can have at most 63 characters".into()
    ))
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    /// Name of the Deployment that the Foo keeps: a DNS label (lower-case letters, digits and `-`, at most 63 characters).
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub deployment_name: String,
    /// How many replicas the Deployment has, from 1 to 10; 1 when it is not said.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 10))]
    pub replicas: i32,
}

/// What Portreeve last observed of a Foo.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FooStatus {
    /// How many replicas of the Deployment are available.
    pub available_replicas: i32,
    /// The `.metadata.generation` that this status was computed from.
    pub observed_generation: i64,
    /// `Ready`: the Deployment exists as the Foo asks. `Conflict`: a Deployment of that name belongs to somebody else.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn one() -> i32 {
    1
}
