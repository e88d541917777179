//! The fields that only v2 has, as v1 stores them in an annotation.
//!
//! Architecture Invariant: pure.

use portreeve_api::DEFAULT_SCHEDULE;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    fields::{self, SCHEDULES},
    leaves,
    places::take,
};
use crate::job_names::fnv1a;

/// The prefix of the keys of markers.
const MARKERS: &str = "v2.stable.example.com";

/// The fields of v2 that v1 cannot express, in the structure of v2.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct V2Only {
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    spec: Map<String, Value>,
    /// The facts of v1 that some of these fields depend on.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    with: Map<String, Value>,
    /// The value of the annotation that the object has in v2 under the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotation: Option<Value>,
}

/// A field that only v2 has, and that is dropped when a user of v1 changes what it depends on.
pub(crate) struct Dependency {
    /// The path of the field in v2.
    pub(crate) v2: &'static [&'static str],
    /// The name of the fact in the annotation.
    name: &'static str,
    /// Returns the fact from a spec of v1. Equal for a value and its default.
    fact: fn(&Map<String, Value>) -> Value,
}

/// The fields that depend on fields of v1. All others survive every edit in v1.
pub(crate) const DEPENDENCIES: &[Dependency] = &[
    // A user of v1 who resumes the CronTab expects runs.
    Dependency {
        v2: &[SCHEDULES, DEFAULT_SCHEDULE, "suspend"],
        name: "suspend",
        fact: |spec| Value::Bool(spec.get("suspend") == Some(&Value::Bool(true))),
    },
    // The policy names containers.
    Dependency {
        v2: &["template", "spec", "podFailurePolicy"],
        name: "containers",
        fact: container_names,
    },
];

impl V2Only {
    /// Returns the fields for a spec of v1. `annotation` is the one that the object has in v2.
    pub(super) fn new(spec: Map<String, Value>, annotation: Option<Value>, v1: &Map<String, Value>) -> Self {
        let mut probe = Value::Object(spec.clone());
        let present = DEPENDENCIES
            .iter()
            .filter(|dependency| take(&mut probe, dependency.v2).is_some());
        let with = present.map(|dependency| (dependency.name.to_owned(), (dependency.fact)(v1)));
        Self {
            with: with.collect(),
            spec,
            annotation,
        }
    }

    /// Reads an annotation; `None` if it is not one that [`V2Only::write`] returns.
    pub(super) fn read(annotation: &Value) -> Option<Self> {
        let v2_only: Self = serde_json::from_str(annotation.as_str()?).ok()?;
        let is_ours = !v2_only.spec.is_empty() || v2_only.annotation.is_some();
        (is_ours && v2_only.spec.keys().all(|name| fields::is_v2_only(name))).then_some(v2_only)
    }

    /// Returns the markers of all leaves, each with the path of its leaf.
    pub(super) fn markers(&self) -> Vec<(String, String)> {
        let paths = leaves::paths(&self.spec).into_iter();
        paths.map(|path| (marker(&path), path)).collect()
    }

    /// Removes the leaves without a marker.
    pub(super) fn retain_marked(&mut self, mut is_marked: impl FnMut(&str) -> bool) {
        leaves::retain(&mut self.spec, &mut |path| is_marked(&marker(path)));
    }

    /// Returns the annotation of the object in v1; `None` if v1 can express the whole object.
    pub(super) fn write(self) -> Option<Value> {
        if self.spec.is_empty() {
            match self.annotation {
                None => return None,
                // A foreign value stays as it is.
                Some(annotation) if Self::read(&annotation).is_none() => return Some(annotation),
                Some(_) => {}
            }
        }
        serde_json::to_string(&self).ok().map(Value::String)
    }

    /// Returns the fields, without those that depend on a fact that has changed.
    pub(super) fn restore(self, v1: &Map<String, Value>) -> Map<String, Value> {
        let mut spec = Value::Object(self.spec);
        for dependency in DEPENDENCIES {
            if self.with.get(dependency.name) != Some(&(dependency.fact)(v1)) {
                take(&mut spec, dependency.v2);
            }
        }
        match spec {
            Value::Object(spec) => spec,
            _ => Map::new(),
        }
    }
}

/// Returns the key of the marker of a leaf. A path may contain what a key must not.
fn marker(path: &str) -> String {
    format!("{MARKERS}/{:08x}", fnv1a(&[path.as_bytes()]))
}

/// Returns whether this is the key of a marker.
pub(super) fn is_marker(annotation: &str) -> bool {
    annotation.split_once('/').is_some_and(|(prefix, _)| prefix == MARKERS)
}

/// Returns the names of all containers, and whether failed containers are restarted.
fn container_names(spec: &Map<String, Value>) -> Value {
    let template = spec.get("jobTemplate");
    let lists = ["containers", "initContainers"].into_iter();
    let containers = lists.filter_map(|list| template?.get(list)?.as_array()).flatten();
    let names = containers.map(|container| container.get("name").cloned().unwrap_or_default());
    let policy = template.and_then(|template| template.get("restartPolicy"));
    let policy = policy.cloned().unwrap_or_else(|| "Never".into());
    names.chain([policy]).collect()
}
