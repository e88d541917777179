//! The version in which the objects of a CRD are stored.
//!
//! A watch in that version needs no conversion webhook, so it also works while the webhook is away.

use std::{future::pending, sync::Arc};

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::{CRDS, Resource};
use portreeve_client::{error_chain, refusal};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::{Watch, watch::Query};

/// The version in which a loop reads, among those that its readers decode.
pub(super) struct FollowedVersion {
    pub(super) client: Client,
    /// The resource in the current version.
    pub(super) resource: Resource,
    pub(super) versions: &'static [&'static str],
    /// Notifies of changes of the CRD.
    pub(super) crd_changed: Arc<Notify>,
}

impl FollowedVersion {
    /// Returns the version to read, if it is another one than now, and the apiserver sends the
    /// definition.
    pub(super) async fn other(&self) -> Option<&'static str> {
        match version_to_read(&self.client, &self.resource, self.versions).await {
            Ok(version) => version.filter(|version| *version != self.resource.version),
            Err(error) => {
                let (resource, reason) = (&self.resource, error_chain(&error));
                tracing::debug!(%resource, reason, "failed to read the stored version");
                None
            }
        }
    }
}

/// Waits until another version is to be read. Waits for ever for a resource with one version.
pub(super) async fn version_change(followed: Option<&FollowedVersion>) -> &'static str {
    let Some(followed) = followed else {
        return pending().await;
    };
    loop {
        // Listen before the request, so that a change during the request is not missed.
        let changed = followed.crd_changed.notified();
        if let Some(version) = followed.other().await {
            return version;
        }
        changed.await;
    }
}

#[derive(Deserialize)]
struct Definitions {
    items: Vec<Definition>,
}

#[derive(Deserialize)]
struct Definition {
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Spec {
    versions: Vec<Version>,
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
/// served, and else the first.
///
/// # Errors
///
/// Returns an error if the apiserver does not send the definition.
async fn version_to_read(
    client: &Client,
    resource: &Resource,
    versions: &[&'static str],
) -> Result<Option<&'static str>, kube::Error> {
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
    let stored = definitions.items.first().and_then(Definition::only_stored_version);
    let known = versions.iter().find(|version| Some(**version) == stored);
    Ok(known.or(versions.first()).copied())
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
}
