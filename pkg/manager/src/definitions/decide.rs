//! Decides the next step of the installation of one CRD.
//!
//! Architecture Invariant: pure.

use std::{collections::BTreeSet, sync::Arc};

use portreeve_reconcile::{ABSENT, Effect, Plan};
use serde_json::{Value, json};

use super::{definition::Definition, obstacle::Obstacle};

/// The next step for one CRD.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// The CRD is served as wanted.
    Done,
    /// The CRD has versions that a newer release has added and that must stay.
    Leave(String),
    /// Wait until the apiserver has processed the CRD.
    Wait(String),
    /// Wait until somebody has removed the obstacle.
    Blocked(Obstacle),
    /// Write the CRD.
    Write(Plan),
}

pub(super) fn decide(wanted: &Definition, present: Option<&Definition>, written: bool) -> Step {
    let Some(present) = present else {
        return create(wanted);
    };
    if present.metadata.deletion_timestamp.is_some() {
        return Step::Blocked(Obstacle::Terminating);
    }
    if !is_ours(wanted, present) {
        let program = wanted.part_of().unwrap_or_default().to_owned();
        return Step::Blocked(Obstacle::NotOurs { program });
    }
    if let Some(others) = other_versions(wanted, present) {
        return Step::Leave(others);
    }
    // A new leader finds the CRD as its predecessor wrote it and writes nothing.
    if !written {
        let wanted = keep_conversion(wanted.clone(), present);
        if !is_as_wanted(&wanted, present) {
            return apply(wanted, present);
        }
    }
    let conditions = present.status["conditions"].as_array();
    let mut obstacle = None;
    for condition in conditions.into_iter().flatten() {
        match (condition["type"].as_str(), condition["status"].as_str()) {
            (Some("Established"), Some("True")) => return Step::Done,
            (Some("NamesAccepted"), Some("False")) => {
                let reason = condition["message"].as_str().unwrap_or_default();
                obstacle = Some(Obstacle::NotEstablished(reason.to_owned()));
            }
            _ => {}
        }
    }
    obstacle.map_or_else(|| Step::Wait("the apiserver gave no reason".to_owned()), Step::Blocked)
}

/// Returns whether this program may change the CRD in the cluster: it has our label, or a write
/// would add nothing but that. Others have CRDs of the same group and kind, above all the CronTab
/// of Kubernetes' documentation, and the apiserver removes all fields that a schema lacks from
/// objects that are written.
fn is_ours(wanted: &Definition, present: &Definition) -> bool {
    present.part_of() == wanted.part_of()
        || is_as_wanted(&keep_conversion(wanted.clone().without_label(), present), present)
}

/// Returns the creation of a CRD. An apply names what it creates, so that the right to do so can be
/// limited to that name.
fn create(wanted: &Definition) -> Step {
    let object = wanted.clone().into_object();
    let (uid, version) = ("".into(), ABSENT.into());
    Step::Write(Plan::of(vec![Effect::Apply { object, uid, version }]))
}

fn apply(wanted: Definition, present: &Definition) -> Step {
    let said = |text: &Option<String>| text.as_deref().filter(|text| !text.is_empty()).map(Arc::from);
    let metadata = &present.metadata;
    let (Some(uid), Some(version)) = (said(&metadata.uid), said(&metadata.resource_version)) else {
        return Step::Wait("the response has no uid or resourceVersion".to_owned());
    };
    let object = wanted.into_object();
    Step::Write(Plan::of(vec![Effect::Apply { object, uid, version }]))
}

/// Returns the CRD with the versions that `present` serves and stores, and without a conversion if
/// `present` has a webhook. `kubectl portreeve conversion` and `kubectl portreeve migrate` have set
/// these, and objects may be stored in a version that only the webhook can convert.
fn keep_conversion(mut wanted: Definition, present: &Definition) -> Definition {
    if present.spec["conversion"]["strategy"] == "Webhook"
        && let Some(spec) = wanted.spec.as_object_mut()
    {
        spec.remove("conversion");
    }
    let versions = wanted.spec["versions"].as_array_mut();
    for version in versions.into_iter().flatten() {
        let present = present.version(&version["name"]);
        if let Some(present) = present {
            version["served"] = present["served"].clone();
        }
        version["storage"] = present.is_some_and(|present| present["storage"] == true).into();
    }
    wanted
}

/// Returns whether a write would change nothing: the schemas are equal, and `present` contains
/// everything else in `wanted`. The apiserver adds defaults to a CRD, but never to a schema.
fn is_as_wanted(wanted: &Definition, present: &Definition) -> bool {
    let (wanted_versions, versions) = (wanted.versions().iter(), present.versions().iter());
    let schemas = wanted_versions.map(|version| &version["schema"]);
    schemas.eq(versions.map(|version| &version["schema"]))
        && includes(&json!(present.metadata), &json!(wanted.metadata))
        && includes(&present.spec, &wanted.spec)
}

/// Returns whether `whole` contains all of `part`.
fn includes(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            let mut fields = part.iter();
            fields.all(|(name, part)| whole.get(name).is_some_and(|whole| includes(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| includes(whole, part))
        }
        _ => whole == part,
    }
}

/// Returns the versions in the cluster that `wanted` would remove, joined by commas.
fn other_versions(wanted: &Definition, present: &Definition) -> Option<String> {
    let names = |definition: &Definition| -> BTreeSet<String> {
        let names = definition
            .versions()
            .iter()
            .filter_map(|version| version["name"].as_str());
        names.map(str::to_owned).collect()
    };
    let others: Vec<_> = names(present).difference(&names(wanted)).cloned().collect();
    (!others.is_empty()).then(|| others.join(", "))
}

#[cfg(test)]
mod tests;
