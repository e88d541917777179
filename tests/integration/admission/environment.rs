//! A control plane with the printed definitions and policies, a daemon that validates by webhooks,
//! and three namespaces.

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use k8s_openapi::{
    api::core::v1::ResourceQuota, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use portreeve_api::Resource;
use portreeve_crontab::api::{CRONTAB_POLICIES, CRONTABS};
use portreeve_foo::api::FOOS;
use portreeve_testing::{ControlPlane, Namespace, PooledPlane, eventually};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{
    rows,
    table::{Place, Space, place_of},
};
use crate::fixtures::{
    LIMIT,
    daemon::printed,
    manifests,
    webhooks::{CONTROLLERS, WebhookDaemon, configurations},
};

/// The quota on the number of CronTabs, as docs/policies.md shows it.
const QUOTA: &str = "count/crontabs.stable.example.com";

/// The response to a write: the stored object, or the reason of the rejection.
pub(super) type Written = Result<Value, Box<Status>>;

/// The control plane of the table, and its namespaces.
pub(crate) struct Environment {
    plane: PooledPlane,
    _daemon: WebhookDaemon,
    open: String,
    limited: String,
    full: String,
}

impl Environment {
    pub(crate) fn client(&self) -> Result<Client> {
        self.plane.client()
    }

    /// Returns a new namespace, for a test with its own CronTabPolicies.
    pub(super) async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        self.plane.namespace(prefix).await
    }

    /// Sends an object to a namespace in a dry run, under strict field validation.
    pub(super) async fn dry_run(&self, client: &Client, space: Space, object: &Value) -> Result<Written> {
        let namespace = match space {
            Space::Open => &self.open,
            Space::Limited => &self.limited,
            Space::Full => &self.full,
        };
        dry_run(client, namespace, object).await
    }
}

/// Returns the environment that all tests of the table share.
pub(crate) async fn environment() -> Result<&'static Environment> {
    static ENVIRONMENT: OnceCell<Environment> = OnceCell::const_new();
    ENVIRONMENT.get_or_try_init(start).await
}

async fn start() -> Result<Environment> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    install_definitions(&client).await?;
    install_policies(&client).await?;
    let limited = plane.namespace("limited").await?;
    create(&client, limited.name(), &limits()).await??;
    wait_until_enforced(&client, limited.name()).await?;
    let daemon = WebhookDaemon::start(&plane, "webhooks", &[CONTROLLERS]).await?;
    install_webhooks(&plane, &daemon, limited.name()).await?;
    let full = plane.namespace("full").await?;
    allow_no_crontab(&full).await?;
    let (open, limited, full) = (
        plane.namespace("open").await?.name().to_owned(),
        limited.name().to_owned(),
        full.name().to_owned(),
    );
    Ok(Environment {
        plane,
        _daemon: daemon,
        open,
        limited,
        full,
    })
}

/// Applies what `portreeve crds` prints, and waits until the apiserver serves it and has published
/// its schema.
pub(super) async fn install_definitions(client: &Client) -> Result<()> {
    manifests::apply_all(client, &printed(&["crds"])?).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for resource in [CRONTABS, CRONTAB_POLICIES, FOOS] {
        eventually(LIMIT, &format!("{} to be served", resource.plural), || async {
            let found = definitions.get(&resource.crd_name()).await?;
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_established = |it: &_| json!(it)["type"] == "Established" && json!(it)["status"] == "True";
            ensure!(conditions.iter().any(is_established), "{conditions:?}");
            let path = format!("/openapi/v3/apis/{}/{}", resource.group, resource.version);
            let schemas: Value = client.request(Request::get(path).body(Vec::new())?).await?;
            ensure!(schemas.to_string().contains(&format!("\"{}\"", resource.kind)));
            client
                .request::<Value>(Request::get(resource.collection_path(None)).body(Vec::new())?)
                .await?;
            anyhow::Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Applies what `portreeve policies` prints.
pub(super) async fn install_policies(client: &Client) -> Result<()> {
    manifests::apply_all(client, &printed(&["policies"])?).await
}

/// Waits until the apiserver evaluates both policies in a namespace with [`limits`].
pub(super) async fn wait_until_enforced(client: &Client, namespace: &str) -> Result<()> {
    let bad = rows::beyond_limits().into_iter().next().context("no row")?.object;
    let good = rows::crontab("good", json!({}));
    eventually(LIMIT, "the policies to be enforced", || async {
        let rejected = dry_run(client, namespace, &bad).await?.err().context("not rejected")?;
        ensure!(place_of(&rejected) == Some(Place::Policy), "{}", rejected.message);
        let created = dry_run(client, namespace, &good).await??;
        ensure!(created["spec"]["backoffLimit"] == 2, "no default: {created}");
        anyhow::Ok(())
    })
    .await
}

/// Installs the webhooks, and waits until they know the limits.
async fn install_webhooks(plane: &ControlPlane, daemon: &WebhookDaemon, limited: &str) -> Result<()> {
    let client = plane.client()?;
    let force = PatchParams::apply("an-administrator").force();
    for configuration in configurations(daemon.webhooks.port, Some(&plane.authority().pem()))? {
        manifests::apply(&client, &configuration, None, &force).await?;
    }
    let unnamed = rows::foo("unnamed", json!({"deploymentName": null}));
    eventually(LIMIT, "the webhook to set a default", || async {
        dry_run(&client, limited, &unnamed).await?.map_err(anyhow::Error::from)
    })
    .await?;
    let too_often = rows::crontab("too-often", json!({"schedule": "* * * * *"}));
    eventually(LIMIT, "the webhook to know the limits", || async {
        let rejected = dry_run(&client, limited, &too_often)
            .await?
            .err()
            .context("not rejected")?;
        ensure!(place_of(&rejected) == Some(Place::WebhookLimit), "{}", rejected.message);
        anyhow::Ok(())
    })
    .await
}

/// Returns the CronTabPolicy of the limited namespace.
pub(super) fn limits() -> Value {
    rows::policy(
        "limits",
        &json!({
            "limits": {
                "images": ["example.com/", "busybox:", "pinned@", "alpine:3"],
                "timeZones": ["UTC", "Europe/Zurich"],
                "allowEvery": false,
                "minIntervalSeconds": 300,
            },
            "defaults": {"backoffLimit": 2},
        }),
    )
}

/// Limits the number of CronTabs to 0. There is no controller that would initialize the status.
async fn allow_no_crontab(namespace: &Namespace) -> Result<()> {
    let quotas: Api<ResourceQuota> = namespace.api();
    let quota = json!({"metadata": {"name": "crontabs"}, "spec": {"hard": {QUOTA: "0"}}});
    let created = quotas
        .create(&PostParams::default(), &serde_json::from_value(quota)?)
        .await?;
    let status = Patch::Merge(json!({"status": {"hard": {QUOTA: "0"}, "used": {QUOTA: "0"}}}));
    quotas
        .patch_status(&created.name_any(), &PatchParams::default(), &status)
        .await?;
    let crontab = rows::crontab("any", json!({}));
    eventually(LIMIT, "the quota to be enforced", || async {
        dry_run(namespace.client(), namespace.name(), &crontab)
            .await
            .is_ok_and(|written| written.is_err())
            .then_some(())
    })
    .await
}

/// Sends an object in a dry run, under strict field validation.
pub(super) async fn dry_run(client: &Client, namespace: &str, object: &Value) -> Result<Written> {
    post(client, namespace, object, "dryRun=All&fieldValidation=Strict").await
}

/// Creates an object.
pub(super) async fn create(client: &Client, namespace: &str, object: &Value) -> Result<Written> {
    post(client, namespace, object, "fieldValidation=Strict").await
}

async fn post(client: &Client, namespace: &str, object: &Value, query: &str) -> Result<Written> {
    let path = resource_of(object)?.collection_path(Some(namespace));
    post_to(client, &path, object, query).await
}

/// Sends an object of any kind to the path of its collection.
pub(super) async fn post_to(client: &Client, path: &str, object: &Value, query: &str) -> Result<Written> {
    let request = Request::post(format!("{path}?{query}"))
        .header("Content-Type", "application/json")
        .body(object.to_string().into_bytes())?;
    match client.request(request).await {
        Ok(created) => Ok(Ok(created)),
        Err(kube::Error::Api(status)) => Ok(Err(status)),
        Err(error) => Err(error.into()),
    }
}

fn resource_of(object: &Value) -> Result<Resource> {
    let known = [CRONTABS, CRONTAB_POLICIES, FOOS];
    let found = known.into_iter().find(|resource| object["kind"] == *resource.kind);
    match found {
        Some(resource) => Ok(resource),
        None => bail!("unknown kind {}", object["kind"]),
    }
}
