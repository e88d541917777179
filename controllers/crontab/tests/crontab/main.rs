//! Tests of the CRD of CronTabs on a real kube-apiserver, without a controller.

mod admission;
mod columns;
mod definition;
mod templates;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt,
    api::{ListParams, PostParams},
};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTABS, CronTab};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The annotation in which client-side `kubectl apply` stores the applied configuration.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns a new namespace on the shared control plane, which serves CronTabs.
async fn fixture(prefix: &str) -> Result<CronTabFixture> {
    static SERVED: OnceCell<()> = OnceCell::const_new();
    let plane = ControlPlane::shared().await;
    SERVED.get_or_try_init(|| install(plane)).await?;
    Ok(CronTabFixture {
        namespace: plane.namespace(prefix).await?,
    })
}

/// Creates the CRD like client-side `kubectl apply`, which copies it to an annotation of limited
/// size.
async fn install(plane: &ControlPlane) -> Result<()> {
    let mut definition = CronTab::crd();
    let applied = serde_json::to_string(&definition)? + "\n";
    let annotations = definition.metadata.annotations.get_or_insert_default();
    annotations.insert(LAST_APPLIED.to_owned(), applied);
    let client = plane.client()?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .context("failed to create the definition")?;
    let crontabs: Api<CronTab> = Api::all(client);
    eventually(TIMEOUT, "CronTabs to be served", || async {
        let definition = definitions.get(CronTab::crd_name()).await?;
        let conditions = definition
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        let established = conditions
            .iter()
            .any(|it| it.type_ == "Established" && it.status == "True");
        ensure!(established, "{conditions:?}");
        crontabs.list(&ListParams::default()).await?;
        anyhow::Ok(())
    })
    .await
}

struct CronTabFixture {
    namespace: Namespace,
}

impl CronTabFixture {
    fn client(&self) -> &Client {
        self.namespace.client()
    }

    fn crontabs(&self) -> Api<CronTab> {
        self.namespace.api()
    }

    /// Creates a CronTab with this spec under strict field validation.
    async fn create(&self, name: &str, spec: &Value) -> Result<Value, kube::Error> {
        let manifest = json!({
            "apiVersion": "stable.example.com/v1",
            "kind": "CronTab",
            "metadata": {"name": name},
            "spec": spec,
        });
        self.post(&CRONTABS, "fieldValidation=Strict", &manifest).await
    }

    async fn post(&self, resource: &Resource, query: &str, manifest: &Value) -> Result<Value, kube::Error> {
        let path = resource.collection_path(Some(self.namespace.name()));
        self.request(
            Method::POST,
            &format!("{path}?{query}"),
            "application/json",
            Some(manifest),
        )
        .await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let body = body.map(Value::to_string).unwrap_or_default().into_bytes();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Accept", accept)
            .header("Content-Type", "application/json")
            .body(body);
        let request = request.map_err(kube::Error::HttpError)?;
        self.client().request(request).await
    }
}

/// Returns the spec of the README's example with these fields replaced.
fn spec(fields: Value) -> Value {
    let mut spec = json!({
        "schedule": "@daily",
        "jobTemplate": {"containers": [{"image": "mybackupscript:v9", "name": "backup"}], "restartPolicy": "Never"},
    });
    if let (Value::Object(spec), Value::Object(fields)) = (&mut spec, fields) {
        spec.extend(fields);
    }
    spec
}
