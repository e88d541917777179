//! The fields that only v2 has, as v1 stores them in an annotation.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use portreeve_api::{LazyObject, LazyValue};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    MAX_ANNOTATION_BYTES,
    fields::{self, SCHEDULES},
    leaves::{self, TooLong},
    places::take,
};
use crate::{api::DEFAULT_SCHEDULE, job_names::fnv1a};

/// The prefix of the keys of markers.
const MARKERS: &str = "v2.stable.example.com";

/// The fields of v2 that v1 cannot express, in the structure of v2.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct V2Only<'a> {
    #[serde(borrow, default, skip_serializing_if = "LazyObject::is_empty")]
    spec: LazyObject<'a>,
    /// The facts of v1 that some of these fields depend on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    with: BTreeMap<String, Box<RawValue>>,
    /// The value of the annotation that the object has in v2 under the same name.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub(super) annotation: Option<LazyValue<'a>>,
}

/// A field that only v2 has, and that is dropped when a user of v1 changes what it depends on.
pub(crate) struct Dependency {
    /// The path of the field in v2.
    pub(crate) v2: &'static [&'static str],
    /// The name of the fact in the annotation.
    name: &'static str,
    /// Returns the fact from a spec of v1. Equal for a value and its default.
    fact: fn(&mut LazyObject<'_>) -> LazyValue<'static>,
}

impl Dependency {
    /// Returns the fact as it is stored.
    fn encoded_fact(&self, v1: &mut LazyObject<'_>) -> Option<Box<RawValue>> {
        serde_json::value::to_raw_value(&(self.fact)(v1)).ok()
    }
}

/// The fields that depend on fields of v1. All others survive every edit in v1.
pub(crate) const DEPENDENCIES: &[Dependency] = &[
    // A user of v1 who resumes the CronTab expects runs.
    Dependency {
        v2: &[SCHEDULES, DEFAULT_SCHEDULE, "suspend"],
        name: "suspend",
        fact: |spec| spec.get("suspend").is_some_and(LazyValue::is_true).into(),
    },
    // The policy names containers.
    Dependency {
        v2: &["template", "spec", "podFailurePolicy"],
        name: "containers",
        fact: container_names,
    },
];

impl<'a> V2Only<'a> {
    /// Returns the fields for a spec of v1. `annotation` is the one that the object has in v2.
    pub(super) fn new(spec: LazyObject<'a>, annotation: Option<LazyValue<'a>>, v1: &mut LazyObject<'a>) -> Self {
        let mut probe = spec.clone().into();
        let present = DEPENDENCIES
            .iter()
            .filter(|dependency| take(&mut probe, dependency.v2).is_some());
        let with = present.filter_map(|dependency| Some((dependency.name.to_owned(), dependency.encoded_fact(v1)?)));
        Self {
            with: with.collect(),
            spec,
            annotation,
        }
    }

    /// Reads an annotation; `None` if it is not one that [`V2Only::write`] returns.
    pub(super) fn read(annotation: &LazyValue<'_>) -> Option<Self> {
        let text = annotation.as_str().filter(|text| text.len() <= MAX_ANNOTATION_BYTES)?;
        let V2Only { spec, with, annotation } = serde_json::from_str(&text).ok()?;
        let is_ours = !spec.is_empty() || annotation.is_some();
        let is_known = spec.iter().all(|(name, _)| fields::is_v2_only(name));
        (is_ours && is_known).then(|| Self {
            spec: spec.into_owned(),
            with,
            annotation: annotation.map(LazyValue::into_owned),
        })
    }

    /// Returns the markers of all leaves, each with the path of its leaf.
    pub(super) fn markers(&self) -> Result<Vec<(String, String)>, TooLong> {
        let paths = leaves::paths(&self.spec)?.into_iter();
        Ok(paths.map(|path| (marker(&path), path)).collect())
    }

    /// Removes the leaves without a marker.
    pub(super) fn retain_marked(&mut self, mut is_marked: impl FnMut(&str) -> bool) -> Result<(), TooLong> {
        leaves::retain(&mut self.spec, &mut |path| is_marked(&marker(path)))
    }

    /// Returns the annotation of the object in v1; `None` if v1 can express the whole object.
    pub(super) fn write(self) -> Option<LazyValue<'a>> {
        if self.spec.is_empty() {
            match self.annotation {
                None => return None,
                // A foreign value stays as it is.
                Some(annotation) if V2Only::read(&annotation).is_none() => return Some(annotation),
                Some(_) => {}
            }
        }
        serde_json::to_string(&self).ok().map(|text| LazyValue::string(&text))
    }

    /// Returns the fields, without those that depend on a fact that has changed.
    pub(super) fn restore(self, v1: &mut LazyObject<'a>) -> LazyObject<'a> {
        let mut spec = LazyValue::Object(self.spec);
        for dependency in DEPENDENCIES {
            let fact = dependency.encoded_fact(v1);
            let before = self.with.get(dependency.name).map(|fact| fact.get());
            if before.is_none() || before != fact.as_ref().map(|fact| fact.get()) {
                take(&mut spec, dependency.v2);
            }
        }
        match spec {
            LazyValue::Object(spec) => spec,
            _ => LazyObject::default(),
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
fn container_names(spec: &mut LazyObject<'_>) -> LazyValue<'static> {
    let mut template = spec.get_mut("jobTemplate");
    let mut facts = Vec::new();
    for list in ["containers", "initContainers"] {
        let containers = template
            .as_mut()
            .and_then(|template| template.get_mut(list)?.as_array_mut());
        for container in containers.into_iter().flatten() {
            let name = container.get_mut("name").map(|name| name.clone().into_owned());
            facts.push(name.unwrap_or_else(LazyValue::null));
        }
    }
    let policy = template.and_then(|template| template.get_mut("restartPolicy"));
    let policy = policy.map(|policy| policy.clone().into_owned());
    facts.push(policy.unwrap_or_else(|| LazyValue::string("Never")));
    LazyValue::Array(facts)
}
