//! `--install-crds`: server-side apply of the enabled controllers' definitions, and the wait until they are served.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use kube_runtime::{
    conditions::is_crd_established,
    wait::{self, await_condition},
};
use portreeve_api::{ObjectKey, Resource};
use portreeve_reconcile::{Applied, Applier, Effect, EffectError, Object, Plan};
use tokio::time::timeout;

const CRDS: Resource = Resource::cluster(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
);
/// How long a definition may take to be served.
const ESTABLISHED_LIMIT: Duration = Duration::from_secs(30);
/// How many times a definition is looked at again, or a failing call repeated, before it is given up.
const TRIES: u32 = 10;

/// A step of the installation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The definition could not be read.
    #[error("failed to read {definition}")]
    Read {
        /// Which one.
        definition: String,
        /// What is wrong.
        #[source]
        source: kube::Error,
    },
    /// The definition could not be turned into JSON.
    #[error("failed to encode {definition}")]
    Encode {
        /// Which one.
        definition: String,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The definition could not be written.
    #[error(transparent)]
    Write(EffectError),
    /// Others kept changing the definition.
    #[error("failed to install {definition}: it was changed {TRIES} times meanwhile")]
    Contended {
        /// Which one.
        definition: String,
    },
    /// The definition was written, but the apiserver does not serve it.
    #[error("{definition} is not established after {ESTABLISHED_LIMIT:?}")]
    NotEstablished {
        /// Which one.
        definition: String,
        /// What the wait ended with, if it was not time.
        #[source]
        source: Option<wait::Error>,
    },
}

/// Asks the apiserver whether it is ready to serve.
pub(crate) async fn ready(client: &Client) -> Result<(), kube::Error> {
    let request = Request::get("/readyz")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}

/// Installs each definition that the cluster does not have in this form, and waits until all are established.
pub(crate) async fn install(
    applier: &Applier,
    wanted: impl IntoIterator<Item = CustomResourceDefinition>,
) -> Result<(), Error> {
    let api: Api<CustomResourceDefinition> = Api::all(applier.client.clone());
    for definition in wanted {
        let name = definition.name_any();
        if write(applier, &api, &definition).await? && !applier.dry_run {
            let established = await_condition(api.clone(), &name, is_crd_established());
            let source = match timeout(ESTABLISHED_LIMIT, established).await {
                Ok(Ok(_)) => continue,
                Ok(Err(source)) => Some(source),
                Err(_) => None,
            };
            let definition = name;
            return Err(Error::NotEstablished { definition, source });
        }
    }
    Ok(())
}

/// Returns whether the definition is now there as wanted.
async fn write(
    applier: &Applier,
    api: &Api<CustomResourceDefinition>,
    wanted: &CustomResourceDefinition,
) -> Result<bool, Error> {
    let definition = wanted.name_any();
    let mut pause = Duration::from_millis(50);
    for _ in 0..TRIES {
        let present = api.get_opt(&definition).await.map_err(|source| Error::Read {
            definition: definition.clone(),
            source,
        })?;
        if let Some(others) = present.as_ref().and_then(|present| other_versions(wanted, present)) {
            tracing::error!(
                definition,
                versions = others,
                "not installed: the definition in the cluster has versions that this program does not know; \
                 install a matching one with `portreeve crds`, or start without --install-crds"
            );
            return Ok(false);
        }
        let plan = plan(wanted, present.as_ref()).map_err(|source| Error::Encode {
            definition: definition.clone(),
            source,
        })?;
        tracing::info!(%plan, "installing definitions");
        match applier.run(&plan).await {
            Applied::Done => return Ok(true),
            Applied::LookAgain => {}
            Applied::Failed { after, .. } => pause = pause.max(after),
            Applied::Refused { error, .. } => return Err(Error::Write(error)),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(Error::Contended { definition })
}

/// The versions in the cluster that `wanted` would take away, joined by commas.
fn other_versions(wanted: &CustomResourceDefinition, present: &CustomResourceDefinition) -> Option<String> {
    let names = |definition: &CustomResourceDefinition| -> BTreeSet<String> {
        let versions = definition.spec.versions.iter();
        versions.map(|version| version.name.clone()).collect()
    };
    let others: Vec<_> = names(present).difference(&names(wanted)).cloned().collect();
    (!others.is_empty()).then(|| others.join(", "))
}

fn plan(
    wanted: &CustomResourceDefinition,
    present: Option<&CustomResourceDefinition>,
) -> Result<Plan, serde_json::Error> {
    let object = Object {
        resource: CRDS,
        key: ObjectKey::cluster(wanted.name_any()),
        body: serde_json::to_value(wanted)?,
    };
    Ok(Plan::of(vec![match present {
        None => Effect::Create(object),
        Some(present) => Effect::Apply {
            object,
            uid: Arc::from(present.uid().unwrap_or_default()),
            version: Arc::from(present.resource_version().unwrap_or_default()),
        },
    }]))
}
