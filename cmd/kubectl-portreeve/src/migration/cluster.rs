//! Requests for the definition.

use std::time::Duration;

use http::{Request, header::CONTENT_TYPE};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use portreeve_api::CRDS;
use portreeve_client::ApiErrorKind;
use serde_json::Value;
use tokio::time::sleep;

use super::{definition::Definition, error::Error, retry::retry};

/// Who changes the definition, in its managed fields and in those of no object.
pub(super) const MANAGER: &str = "portreeve-migrate";
/// How often a change is computed again because somebody else changed the definition.
const CHANGES: u32 = 30;
/// The wait after a change by somebody else.
const CONFLICT_WAIT: Duration = Duration::from_millis(200);

/// The apiserver and the name of the definition.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) name: String,
    /// The apiserver's address, for errors.
    pub(super) server: String,
}

impl Cluster {
    fn path(&self) -> String {
        format!("{}/{}", CRDS.collection_path(None), self.name)
    }

    async fn read_once(&self) -> kube::Result<Definition> {
        let request = Request::get(self.path()).body(Vec::new());
        let request = request.map_err(kube::Error::HttpError)?;
        let read: CustomResourceDefinition = self.client.request(request).await?;
        Ok(read.into())
    }

    /// Reads the definition, which must be established. The first request of a command is not
    /// repeated, so that a wrong address or a missing right is reported at once.
    pub(super) async fn first_read(&self) -> Result<Definition, Error> {
        let read = self.read_once().await;
        self.checked(read)
    }

    /// Reads the definition, which must be established.
    pub(super) async fn read(&self) -> Result<Definition, Error> {
        let read = retry(|_| false, || self.read_once()).await;
        self.checked(read)
    }

    fn checked(&self, read: kube::Result<Definition>) -> Result<Definition, Error> {
        let name = || self.name.clone();
        let definition = read.map_err(|source| match ApiErrorKind::of(&source) {
            ApiErrorKind::NotFound => Error::NoDefinition { name: name() },
            _ => Error::ReadDefinition {
                name: name(),
                server: self.server.clone(),
                source,
            },
        })?;
        match definition.problem {
            None => Ok(definition),
            Some(problem) => Err(Error::NotEstablished { name: name(), problem }),
        }
    }

    /// Changes the definition by the operations that `plan` returns for its present state. `plan`
    /// is called again when somebody else changes the definition meanwhile. Without operations,
    /// nothing is written. Returns the definition with the changes.
    pub(super) async fn change(
        &self,
        plan: impl Fn(&Definition) -> Result<Vec<Value>, Error>,
    ) -> Result<Definition, Error> {
        self.change_at(&self.path(), plan).await
    }

    /// Changes the status of the definition, like [`Self::change`].
    pub(super) async fn change_status(
        &self,
        plan: impl Fn(&Definition) -> Result<Vec<Value>, Error>,
    ) -> Result<Definition, Error> {
        self.change_at(&format!("{}/status", self.path()), plan).await
    }

    async fn change_at(
        &self,
        path: &str,
        plan: impl Fn(&Definition) -> Result<Vec<Value>, Error>,
    ) -> Result<Definition, Error> {
        for _ in 0..CHANGES {
            let definition = self.read().await?;
            let operations = plan(&definition)?;
            if operations.is_empty() {
                return Ok(definition);
            }
            let change = definition.precondition(operations);
            match retry(|_| false, || self.patch(path, &change)).await {
                Ok(changed) => return Ok(changed),
                Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::Conflict => sleep(CONFLICT_WAIT).await,
                Err(source) => {
                    return Err(Error::ChangeDefinition {
                        name: self.name.clone(),
                        source,
                    });
                }
            }
        }
        Err(Error::Contended {
            name: self.name.clone(),
        })
    }

    async fn patch(&self, path: &str, change: &Value) -> kube::Result<Definition> {
        let request = Request::patch(format!("{path}?fieldManager={MANAGER}"))
            .header(CONTENT_TYPE, "application/json-patch+json")
            .body(change.to_string().into_bytes());
        let request = request.map_err(kube::Error::HttpError)?;
        let changed: CustomResourceDefinition = self.client.request(request).await?;
        Ok(changed.into())
    }
}
