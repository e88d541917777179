//! `--install-crds`: server-side apply of the enabled controllers' CRDs, and the wait until they
//! are served.
//!
//! All writes go through the applier, so the fence, the preconditions and the dry run apply here as
//! well.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use portreeve_api::{CRDS, ObjectKey};
use portreeve_client::{ApiErrorKind, error_chain};
use portreeve_reconcile::{Applied, Applier, Effect, EffectError, Object, Plan, Shutdown};
use serde::Deserialize;
use serde_json::{Value, json};
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

/// A CRD. Its schemas stay untyped, because the type has a hundred fields, and a schema of Pods
/// thousands of values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Definition {
    metadata: ObjectMeta,
    spec: Value,
    status: Value,
}

impl Definition {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn versions(&self) -> &[Value] {
        self.spec["versions"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Returns the version of this name.
    fn version(&self, name: &Value) -> Option<&Value> {
        self.versions().iter().find(|version| version["name"] == *name)
    }

    fn into_object(self) -> Object {
        let key = ObjectKey::cluster(self.name());
        let mut body = json!({"apiVersion": CRDS.api_version(), "kind": CRDS.kind, "metadata": self.metadata});
        body["spec"] = self.spec;
        Object {
            resource: CRDS,
            key,
            body,
        }
    }
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
    for yaml in wanted {
        let definitions: Vec<Definition> = serde_saphyr::from_multiple(yaml).map_err(Error::Parse)?;
        for definition in definitions {
            install_one(applier, &definition, stop).await?;
        }
    }
    Ok(())
}

async fn install_one(applier: &Applier, wanted: &Definition, stop: &Shutdown) -> Result<(), Error> {
    let definition = wanted.name().to_owned();
    let mut written: Option<Instant> = None;
    let (mut pause, longest) = PAUSES;
    loop {
        let present = match read(&applier.client, &definition).await {
            Ok(present) => Some(present),
            Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::Transient => {
                warn_again(&definition, &error);
                None
            }
            Err(source) => return Err(Error::Read { definition, source }),
        };
        match present.map(|present| decide(wanted, present.as_ref(), written.is_some())) {
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

/// Reads a CRD. Returns `None` if it does not exist.
async fn read(client: &Client, name: &str) -> kube::Result<Option<Definition>> {
    let path = format!("{}/{name}", CRDS.collection_path(None));
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request(request).await {
        Ok(definition) => Ok(Some(definition)),
        Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
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

fn decide(wanted: &Definition, present: Option<&Definition>, written: bool) -> Step {
    let Some(present) = present else {
        return Step::Write(Plan::of(vec![Effect::Create(wanted.clone().into_object())]));
    };
    if let Some(others) = other_versions(wanted, present) {
        return Step::Leave(others);
    }
    if present.metadata.deletion_timestamp.is_some() {
        return Step::Wait("it is being deleted".to_owned());
    }
    // A new leader finds the CRD as its predecessor wrote it and writes nothing.
    if !written {
        let wanted = keep_conversion(wanted.clone(), present);
        if !is_as_wanted(&wanted, present) {
            return apply(wanted, present);
        }
    }
    let conditions = present.status["conditions"].as_array();
    let mut reason = "the apiserver gave no reason".to_owned();
    for condition in conditions.into_iter().flatten() {
        match (condition["type"].as_str(), condition["status"].as_str()) {
            (Some("Established"), Some("True")) => return Step::Done,
            (Some("NamesAccepted"), Some("False")) => {
                condition["message"]
                    .as_str()
                    .unwrap_or_default()
                    .clone_into(&mut reason);
            }
            _ => {}
        }
    }
    Step::Wait(reason)
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
/// `present` has a webhook. `portreeve conversion` and `portreeve migrate` have set these, and
/// objects may be stored in a version that only the webhook can convert.
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
mod tests {
    mod corpus;

    use serde_json::json;

    use super::*;

    fn definition(versions: &[&str], more: &Value) -> Definition {
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

    fn step(present: Option<&Definition>, written: bool) -> String {
        match decide(&definition(&["v1"], &json!({})), present, written) {
            Step::Write(plan) => plan.to_string(),
            step => format!("{step:?}"),
        }
    }

    /// Returns what an apply would write.
    fn applied(wanted: &Definition, present: &Definition) -> Value {
        match decide(wanted, Some(present), false) {
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
        assert_eq!(body["spec"]["versions"], wanted.spec["versions"]);
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
