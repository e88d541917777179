//! The order in which definitions, policies and CronTabPolicies are installed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result, ensure};
use kube::{Client, api::PatchParams};
use portreeve_testing::{ControlPlane, Namespace, eventually};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    environment::{
        Written, create, dry_run, install_definitions, install_policies, limits, post_to, wait_until_enforced,
    },
    rows,
};
use crate::fixtures::{LIMIT, daemon::printed, manifests};

/// Returns a client that shows each 503. kube would repeat the request.
fn client_without_retries(plane: &ControlPlane) -> Result<Client> {
    let mut config = plane.config()?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

/// Creates CronTabs one after the other.
struct Writer {
    stop: Arc<AtomicBool>,
    task: JoinSet<Result<(u32, Vec<String>)>>,
}

impl Writer {
    fn start(client: Client, namespace: &Namespace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, namespace) = (Arc::clone(&stop), namespace.name().to_owned());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let (mut count, mut rejections) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let crontab = rows::crontab(&format!("written-{count}"), json!({}));
                let written = create(&client, &namespace, &crontab).await?;
                rejections.extend(
                    written
                        .err()
                        .map(|status| format!("{}: {}", status.code, status.message)),
                );
                count += 1;
            }
            Ok((count, rejections))
        });
        Self { stop, task }
    }

    /// Returns the number of writes, and the messages of those that were rejected.
    async fn finish(mut self) -> Result<(u32, Vec<String>)> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.join_next().await.context("the writer is gone")??
    }
}

/// docs/policies.md describes this order.
#[tokio::test]
async fn no_write_is_rejected_when_definitions_come_first_and_crontab_policies_last() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = client_without_retries(&plane)?;
    install_definitions(&client).await?;
    let team = plane.namespace("team").await?;
    let writer = Writer::start(client.clone(), &team);
    install_policies(&client).await?;
    // Policies affect no namespace without a CronTabPolicy, so another one shows whether they work.
    let other = plane.namespace("other").await?;
    create(&client, other.name(), &limits()).await??;
    wait_until_enforced(&client, other.name()).await?;
    create(&client, team.name(), &limits()).await??;
    wait_until_enforced(&client, team.name()).await?;
    let (count, rejections) = writer.finish().await?;
    println!("{count} CronTabs were written during the installation");
    ensure!(rejections.is_empty() && count > 0, "{count} writes: {rejections:?}");
    Ok(())
}

/// An upgrade from a version without CronTabPolicies, without its definitions.
#[tokio::test]
async fn policies_without_the_definition_of_their_parameters_reject_every_crontab() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = client_without_retries(&plane)?;
    install_definitions(&client).await?;
    delete_parameters(&client).await?;
    install_policies(&client).await?;

    let team = plane.namespace("team").await?;
    let crontab = rows::crontab("a", json!({}));
    eventually(LIMIT, "the policies to be evaluated", || async {
        let rejected = dry_run(&client, team.name(), &crontab).await?.err();
        let rejected = rejected.context("the CronTab was accepted")?;
        let reason = "failed to find resource referenced by paramKind";
        ensure!(rejected.message.contains(reason), "{}", rejected.message);
        anyhow::Ok(())
    })
    .await?;

    // The apiserver looks for the kind of the parameters every 30 s.
    install_definitions(&client).await?;
    eventually(LIMIT, "CronTabs to be accepted", || async {
        dry_run(&client, team.name(), &crontab)
            .await?
            .map_err(anyhow::Error::from)
    })
    .await?;
    Ok(())
}

/// docs/policies.md warns of it.
#[tokio::test]
async fn limits_are_lost_with_their_definition_until_the_apiserver_restarts() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = client_without_retries(&plane)?;
    install_definitions(&client).await?;
    install_policies(&client).await?;
    let team = plane.namespace("team").await?;
    create(&client, team.name(), &limits()).await??;
    wait_until_enforced(&client, team.name()).await?;
    delete_parameters(&client).await?;
    let beyond = rows::beyond_limits().into_iter().next().context("no row")?.object;
    let write = async || dry_run(&client, team.name(), &beyond).await;
    eventually(LIMIT, "the limits to be lost", || async {
        write().await?.map_err(anyhow::Error::from)
    })
    .await?;

    plane.apiserver().restart().await?;
    eventually(LIMIT, "CronTabs to be rejected", || async {
        let rejected = write().await?.err().context("the CronTab was accepted")?;
        let reason = "failed to find resource referenced by paramKind";
        ensure!(rejected.message.contains(reason), "{}", rejected.message);
        anyhow::Ok(())
    })
    .await
}

/// Deletes the definition of CronTabPolicies.
async fn delete_parameters(client: &Client) -> Result<()> {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabpolicies.stable.example.com";
    client
        .request::<Value>(http::Request::delete(path).body(Vec::new())?)
        .await?;
    Ok(())
}

/// The documented order avoids this response of the apiserver.
#[tokio::test]
async fn a_mutating_policy_on_a_new_definition_answers_503_at_first() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = client_without_retries(&plane)?;
    let force = PatchParams::apply("an-administrator").force();
    let documents = printed(&["policies", "--controllers=crontab"])?;
    for mut document in manifests::documents(&documents)? {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        if !kind.starts_with("Mutating") {
            continue;
        }
        // Parameters would delay the evaluation, usually until the apiserver knows the schema.
        for field in ["paramKind", "paramRef", "matchConditions"] {
            document["spec"].as_object_mut().context("no spec")?.remove(field);
        }
        if kind == "MutatingAdmissionPolicy" {
            document["spec"]["matchConstraints"]["resourceRules"][0]["apiGroups"] = json!(["*"]);
            document["spec"]["mutations"][0]["applyConfiguration"]["expression"] =
                json!("Object{spec: Object.spec{timeZone: 'UTC'}}");
        }
        manifests::apply(&client, &document, None, &force).await?;
    }
    let namespace = plane.namespace("team").await?;
    // The first definition only shows that the policy is evaluated. The apiserver looks for schemas
    // every 5 s, so it may know one at once.
    let mut unavailable = 0;
    for attempt in 0..6 {
        let group = format!("group-{attempt}.example.com");
        install_renamed(&client, &group).await?;
        let mut crontab = rows::crontab("a", json!({}));
        crontab["apiVersion"] = format!("{group}/v1").into();
        let path = format!("/apis/{group}/v1/namespaces/{}/crontabs", namespace.name());
        unavailable += wait_for_default(&client, &path, &crontab).await?;
        if unavailable > 0 && attempt > 0 {
            return Ok(());
        }
    }
    anyhow::bail!("no response was a 503")
}

/// Installs the CRD of CronTabs in another group.
async fn install_renamed(client: &Client, group: &str) -> Result<()> {
    let printed = printed(&["crds", "--controllers=crontab"])?;
    let renamed = printed.replace("stable.example.com", group);
    let definition = manifests::documents(&renamed)?.into_iter().next().context("no CRD")?;
    let force = PatchParams::apply("an-administrator").force();
    manifests::apply(client, &definition, None, &force).await?;
    Ok(())
}

/// Sends an object until the policy sets a default, and returns the number of 503 responses.
async fn wait_for_default(client: &Client, path: &str, object: &Value) -> Result<u32> {
    let count = std::sync::atomic::AtomicU32::new(0);
    eventually(LIMIT, "the default to be set", || async {
        let written: Written = post_to(client, path, object, "dryRun=All").await?;
        if written.as_ref().is_err_and(|status| status.code == 503) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let created = written?;
        ensure!(created["spec"]["timeZone"] == "UTC", "{created:#}");
        anyhow::Ok(())
    })
    .await?;
    Ok(count.into_inner())
}
