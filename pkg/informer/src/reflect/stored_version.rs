//! The version in which the objects of a CRD are stored.
//!
//! A watch in that version needs no conversion webhook, so it also works while the webhook is away.

use std::{convert::Infallible, future::pending, sync::Arc};

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::{CRDS, Resource};
use portreeve_client::{error_chain, refusal};
use serde::Deserialize;
use tokio::sync::Notify;

use super::conversion::{self, Positions};
use crate::{StatusReporter, Watch, watch::Query};

/// The version in which a loop reads, among those that its readers decode.
pub(super) struct FollowedVersion {
    pub(super) client: Client,
    /// The resource in the current version.
    pub(super) resource: Resource,
    pub(super) versions: &'static [&'static str],
    /// What the definition said before the last list.
    pub(super) listed: Option<Reading>,
    /// Notifies of changes of the CRD.
    pub(super) crd_changed: Arc<Notify>,
    /// How far the conversion has been probed.
    pub(super) probed: Arc<Positions>,
    /// The status to which the conversion is reported.
    pub(super) reporter: StatusReporter,
}

/// What a definition says about reading its objects.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// The version to read.
    pub(super) version: &'static str,
    /// The versions that are served, if a webhook converts between them.
    converted: Arc<[Box<str>]>,
    /// The generation of the definition, or `None` if there is no definition.
    pub(super) generation: Option<i64>,
}

impl FollowedVersion {
    /// Returns what the definition says, if the apiserver sends it.
    pub(super) async fn read(&self) -> Option<Reading> {
        match reading(&self.client, &self.resource, self.versions).await {
            Ok(reading) => reading,
            Err(error) => {
                let (resource, reason) = (&self.resource, error_chain(&error));
                tracing::debug!(%resource, reason, "failed to read the stored version");
                None
            }
        }
    }

    /// Probes the conversion, if there is one, and never ends.
    async fn probe_conversion(&self, converted: &[Box<str>]) -> Infallible {
        if converted.is_empty() {
            self.reporter.forget_conversion();
            return pending().await;
        }
        let in_version = |version: &str| Resource {
            version: version.to_owned().into(),
            ..self.resource.clone()
        };
        let versions: Vec<_> = converted.iter().map(|version| in_version(version)).collect();
        conversion::probe(&self.client, &versions, &self.probed, &self.reporter).await
    }
}

/// Waits until the objects must be listed again, and returns the version to read. Waits for ever
/// for a resource with one version.
///
/// They must be listed again in another version, and after an interruption of the watch if the
/// definition has changed since the list. After a change, the apiserver continues its watches for
/// about a second with the former conversion. What they sent meanwhile may lack fields, and a
/// resumed watch would not send it again.
pub(super) async fn relisting_change(followed: Option<&FollowedVersion>, is_resumed: bool) -> &'static str {
    let Some(followed) = followed else {
        return pending().await;
    };
    let mut was_interrupted = is_resumed;
    loop {
        // Listen before the request, so that a change during the request is not missed.
        let changed = followed.crd_changed.notified();
        let mut converted = Arc::default();
        if let Some(reading) = followed.read().await {
            let listed = followed.listed.as_ref();
            let has_changed = listed.is_some_and(|listed| listed.generation != reading.generation);
            if reading.version != followed.resource.version || (was_interrupted && has_changed) {
                return reading.version;
            }
            was_interrupted = false;
            converted = reading.converted;
        }
        tokio::select! {
            () = changed => {}
            never = followed.probe_conversion(&converted) => match never {},
        }
    }
}

#[derive(Deserialize)]
struct Definitions {
    items: Vec<Definition>,
}

#[derive(Deserialize)]
struct Definition {
    #[serde(default)]
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    generation: Option<i64>,
}

#[derive(Deserialize)]
struct Spec {
    versions: Vec<Version>,
    #[serde(default)]
    conversion: Conversion,
}

#[derive(Default, Deserialize)]
struct Conversion {
    strategy: Box<str>,
}

#[derive(Deserialize)]
struct Version {
    name: Box<str>,
    served: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    stored_versions: Vec<Box<str>>,
}

/// Returns which of these versions to read: the one in which all objects are stored, if it is
/// served, and else the first. Returns `None` if there are no versions.
///
/// # Errors
///
/// Returns an error if the apiserver does not send the definition.
async fn reading(
    client: &Client,
    resource: &Resource,
    versions: &[&'static str],
) -> Result<Option<Reading>, kube::Error> {
    let watch = Watch {
        fields: format!("metadata.name={}", resource.crd_name()),
        ..Watch::all(CRDS)
    };
    let request = Request::get(Query::new(&watch).into_path());
    let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let body = response.into_body().collect().await?.to_bytes();
    let definitions: Definitions = serde_json::from_slice(&body).map_err(kube::Error::SerdeError)?;
    let definition = definitions.items.first();
    let stored = definition.and_then(Definition::only_stored_version);
    let known = versions.iter().find(|version| Some(**version) == stored);
    Ok(known.or(versions.first()).map(|version| Reading {
        version,
        converted: definition.map(Definition::converted_versions).unwrap_or_default(),
        generation: definition.and_then(|definition| definition.metadata.generation),
    }))
}

impl Definition {
    /// Returns the version in which all objects are stored, if there is one and it is served.
    fn only_stored_version(&self) -> Option<&str> {
        let [stored] = &*self.status.stored_versions else {
            return None;
        };
        let is_served = |version: &Version| version.name == *stored && version.served;
        self.spec.versions.iter().any(is_served).then_some(&**stored)
    }

    /// Returns the versions that are served, if a webhook converts between them.
    fn converted_versions(&self) -> Arc<[Box<str>]> {
        let served = self.spec.versions.iter().filter(|version| version.served);
        let names: Vec<_> = served.map(|version| version.name.clone()).collect();
        if &*self.spec.conversion.strategy == "Webhook" && names.len() > 1 {
            names.into()
        } else {
            Arc::default()
        }
    }
}
