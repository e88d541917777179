//! `--install-crds`: server-side apply of the enabled controllers' CRDs, and the wait until they
//! are served.
//!
//! All writes go through the applier, so the fence, the preconditions and the dry run apply here as
//! well.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use portreeve_api::{CRDS, ObjectKey};
use portreeve_client::{ApiErrorKind, error_chain};
use portreeve_reconcile::{Applied, Applier, Effect, EffectError, Object, Plan, Shutdown};
use serde_json::Value;
use tokio::time::Instant;

/// The time limit for a written CRD to be served.
const ESTABLISHED_LIMIT: Duration = Duration::from_secs(30);
/// The first and the longest pause between two checks. The pause doubles each time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// An error while installing a CRD.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A controller's CRD is not valid YAML, which is a bug of the controller.
    #[error("failed to parse a CustomResourceDefinition of this program")]
    Parse(#[source] serde_saphyr::Error),
    /// The CRD cannot be read.
    #[error("failed to read {definition}")]
    Read {
        /// The name of the CRD.
        definition: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// The CRD cannot be converted to JSON.
    #[error("failed to encode {definition}")]
    Encode {
        /// The name of the CRD.
        definition: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The apiserver rejected the CRD.
    #[error(transparent)]
    Write(EffectError),
    /// The CRD was written, but the apiserver does not serve it.
    #[error("{definition} is not established after {ESTABLISHED_LIMIT:?}: {reason}")]
    NotEstablished {
        /// The name of the CRD.
        definition: String,
        /// The reason that the apiserver reports.
        reason: String,
    },
}

/// Applies each CRD, given in YAML, and waits until it is established. Retries while the apiserver
/// is unavailable.
///
/// A stop request takes effect between two writes and never interrupts one.
pub(crate) async fn install(
    applier: &Applier,
    wanted: impl IntoIterator<Item = &&'static str>,
    stop: &Shutdown,
) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(applier.client.clone());
    for yaml in wanted {
        let definitions: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(yaml).map_err(Error::Parse)?;
        for definition in definitions {
            install_one(applier, &api, &definition, stop).await?;
        }
    }
    Ok(())
}

async fn install_one(
    applier: &Applier,
    api: &Api<CustomResourceDefinition>,
    wanted: &CustomResourceDefinition,
    stop: &Shutdown,
) -> Result<(), Error> {
    let definition = wanted.name_any();
    let mut written: Option<Instant> = None;
    let (mut pause, longest) = PAUSES;
    loop {
        let present = match api.get_opt(&definition).await {
            Ok(present) => Some(present),
            Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::Transient => {
                warn_again(&definition, &error);
                None
            }
            Err(source) => return Err(Error::Read { definition, source }),
        };
        let next = present.map(|present| decide(wanted, present.as_ref(), written.is_some()));
        match next.transpose().map_err(|source| Error::Encode {
            definition: definition.clone(),
            source,
        })? {
            Some(Step::Done) => return Ok(()),
            Some(Step::Leave(versions)) => {
                tracing::error!(
                    definition,
                    versions,
                    "skipping CustomResourceDefinition: the cluster's CRD has versions that this program does not know; install a \
                     matching one with `portreeve crds`, or start without --install-crds"
                );
                return Ok(());
            }
            Some(Step::Wait(reason)) if written.is_some_and(|at| at.elapsed() > ESTABLISHED_LIMIT) => {
                return Err(Error::NotEstablished { definition, reason });
            }
            None | Some(Step::Wait(_)) => {}
            Some(Step::Write(plan)) => {
                announce(applier, &plan);
                match applier.run(&plan).await {
                    Applied::Done if applier.dry_run => return Ok(()),
                    Applied::Done => written = Some(Instant::now()),
                    Applied::Refused(error) => return Err(Error::Write(error)),
                    Applied::Stale(error) => warn_again(&definition, &error),
                    Applied::Failed { error, after, .. } => {
                        warn_again(&definition, &error);
                        pause = pause.max(after);
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.requested() => return Ok(()),
        }
        pause = (pause * 2).min(longest);
    }
}

fn warn_again(definition: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(
        definition,
        err = error_chain(error),
        "retrying failed installation of CustomResourceDefinition"
    );
}

fn announce(applier: &Applier, plan: &Plan) {
    if applier.dry_run {
        tracing::info!(%plan, "dry run: would install CustomResourceDefinition");
    } else {
        tracing::info!(%plan, "installing CustomResourceDefinition");
    }
}

/// The next step for one CRD.
#[derive(Debug, PartialEq)]
enum Step {
    /// The CRD is served as wanted.
    Done,
    /// The CRD has versions that belong to somebody else and must stay.
    Leave(String),
    /// Wait until the apiserver has processed the CRD.
    Wait(String),
    /// Write the CRD.
    Write(Plan),
}

fn decide(
    wanted: &CustomResourceDefinition,
    present: Option<&CustomResourceDefinition>,
    written: bool,
) -> Result<Step, serde_json::Error> {
    let object = |wanted: &CustomResourceDefinition| -> Result<Object, serde_json::Error> {
        Ok(Object {
            resource: CRDS,
            key: ObjectKey::cluster(wanted.name_any()),
            body: serde_json::to_value(wanted)?,
        })
    };
    let Some(present) = present else {
        return Ok(Step::Write(Plan::of(vec![Effect::Create(object(wanted)?)])));
    };
    if let Some(others) = other_versions(wanted, present) {
        return Ok(Step::Leave(others));
    }
    if present.metadata.deletion_timestamp.is_some() {
        return Ok(Step::Wait("it is being deleted".to_owned()));
    }
    let wanted = &keep_conversion(wanted, present);
    // A new leader finds the CRD as its predecessor wrote it and writes nothing.
    if !written && !is_as_wanted(wanted, present)? {
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (Some(uid), Some(version)) = (said(present.uid()), said(present.resource_version())) else {
            return Ok(Step::Wait("the response has no uid or resourceVersion".to_owned()));
        };
        let apply = Effect::Apply {
            object: object(wanted)?,
            uid: Arc::from(uid),
            version: Arc::from(version),
        };
        return Ok(Step::Write(Plan::of(vec![apply])));
    }
    let conditions = present
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut reason = "the apiserver gave no reason".to_owned();
    for condition in conditions {
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("Established", "True") => return Ok(Step::Done),
            ("NamesAccepted", "False") => reason = condition.message.clone().unwrap_or_default(),
            _ => {}
        }
    }
    Ok(Step::Wait(reason))
}

/// Returns the CRD with the versions that `present` serves and stores, and without a conversion if
/// `present` has a webhook. `portreeve conversion` and `portreeve migrate` have set these, and
/// objects may be stored in a version that only the webhook can convert.
fn keep_conversion(wanted: &CustomResourceDefinition, present: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut kept = wanted.clone();
    let has_webhook = present
        .spec
        .conversion
        .as_ref()
        .is_some_and(|conversion| conversion.strategy == "Webhook");
    if has_webhook {
        kept.spec.conversion = None;
    }
    for version in &mut kept.spec.versions {
        let present = present
            .spec
            .versions
            .iter()
            .find(|present| present.name == version.name);
        version.served = present.map_or(version.served, |present| present.served);
        version.storage = present.is_some_and(|present| present.storage);
    }
    kept
}

/// Returns whether a write would change nothing: the schemas are equal, and `present` contains
/// everything else in `wanted`. The apiserver adds defaults to a CRD, but never to a schema.
fn is_as_wanted(
    wanted: &CustomResourceDefinition,
    present: &CustomResourceDefinition,
) -> Result<bool, serde_json::Error> {
    let schemas = |definition: &CustomResourceDefinition| -> Vec<_> {
        let versions = definition.spec.versions.iter();
        versions.map(|version| version.schema.clone()).collect()
    };
    Ok(
        schemas(wanted) == schemas(present)
            && includes(&serde_json::to_value(present)?, &serde_json::to_value(wanted)?),
    )
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
fn other_versions(wanted: &CustomResourceDefinition, present: &CustomResourceDefinition) -> Option<String> {
    let names = |definition: &CustomResourceDefinition| -> BTreeSet<String> {
        let versions = definition.spec.versions.iter();
        versions.map(|version| version.name.clone()).collect()
    };
    let others: Vec<_> = names(present).difference(&names(wanted)).cloned().collect();
    (!others.is_empty()).then(|| others.join(", "))
}

#[cfg(test)]
mod tests {
    mod corpus;

    use serde_json::json;

    use super::*;

    fn definition(versions: &[&str], more: &Value) -> CustomResourceDefinition {
        let versions: Vec<_> = versions
            .iter()
            .map(|name| json!({"name": name, "served": true, "storage": true}))
            .collect();
        let mut body = json!({
            "metadata": {"name": "foos.example.com", "uid": "u", "resourceVersion": "1"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": versions},
        });
        for (field, value) in more.as_object().unwrap() {
            for (key, value) in value.as_object().unwrap() {
                body[field][key] = value.clone();
            }
        }
        serde_json::from_value(body).unwrap()
    }

    fn step(present: Option<&CustomResourceDefinition>, written: bool) -> String {
        match decide(&definition(&["v1"], &json!({})), present, written).unwrap() {
            Step::Write(plan) => plan.to_string(),
            step => format!("{step:?}"),
        }
    }

    /// Returns what an apply would write.
    fn applied(wanted: &CustomResourceDefinition, present: &CustomResourceDefinition) -> Value {
        match decide(wanted, Some(present), false).unwrap() {
            Step::Write(plan) => match &plan.effects[..] {
                [Effect::Apply { object, .. }] => object.body.clone(),
                effects => panic!("{effects:?}"),
            },
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn the_versions_and_the_conversion_of_the_cluster_stay() {
        let version =
            |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
        let with = |versions: Value, conversion: Value, scope: &str| {
            definition(
                &[],
                &json!({"spec": {"versions": versions, "conversion": conversion, "scope": scope}}),
            )
        };
        let none = json!({"strategy": "None"});
        let webhook = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}});
        let wanted = with(
            json!([version("v1", true, true), version("v2", false, false)]),
            none.clone(),
            "Namespaced",
        );
        let migrated = json!([version("v1", true, false), version("v2", true, true)]);
        let present = with(migrated.clone(), webhook, "Cluster");
        let body = applied(&wanted, &present);
        assert_eq!(body["spec"]["versions"], migrated);
        assert_eq!(body["spec"]["conversion"], Value::Null);
        // A new version is served as wanted.
        let present = with(json!([version("v1", true, true)]), none.clone(), "Namespaced");
        let body = applied(&wanted, &present);
        assert_eq!(body["spec"]["versions"], json!(wanted.spec.versions));
        assert_eq!(body["spec"]["conversion"], none);
    }

    #[test]
    fn definition_is_written_once_and_then_awaited() {
        let condition = |type_: &str, status: &str| {
            let condition = json!({"type": type_, "status": status, "message": "taken"});
            definition(&["v1"], &json!({"status": {"conditions": [condition]}}))
        };
        let plain = definition(&["v1"], &json!({}));
        let outdated = definition(&["v1"], &json!({"spec": {"scope": "Cluster"}}));
        let terminating = definition(
            &["v1"],
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let create = "create CustomResourceDefinition foos.example.com";
        let apply = "apply CustomResourceDefinition foos.example.com";
        let table = [
            (None, false, create),
            (None, true, create),
            (Some(outdated), false, apply),
            (Some(plain.clone()), false, r#"Wait("the apiserver gave no reason")"#),
            (Some(plain), true, r#"Wait("the apiserver gave no reason")"#),
            (Some(condition("Established", "True")), false, "Done"),
            (Some(condition("Established", "True")), true, "Done"),
            (Some(condition("NamesAccepted", "False")), true, r#"Wait("taken")"#),
            (Some(terminating), false, r#"Wait("it is being deleted")"#),
            (
                Some(definition(&["v1", "v2", "v3"], &json!({}))),
                false,
                r#"Leave("v2, v3")"#,
            ),
        ];
        for (present, written, expected) in table {
            assert_eq!(step(present.as_ref(), written), expected, "{present:?}");
        }
    }
}
