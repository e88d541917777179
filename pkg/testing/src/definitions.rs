//! CustomResourceDefinitions that a control plane has from the start.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use kube::Client;
use serde_json::Value;

use crate::eventually::{LIMIT, eventually};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// The prefix of the keys of definitions in etcd.
const KEYS: &[u8] = b"/registry/apiextensions.k8s.io/customresourcedefinitions/";

/// Creates the definitions, and waits until their objects are served and nothing writes to the
/// definitions and their APIServices any more.
pub(crate) async fn create(client: &Client, definitions: &[Value]) -> Result<()> {
    for definition in definitions {
        let request = Request::post(DEFINITIONS)
            .header(header::CONTENT_TYPE, "application/json")
            .body(definition.to_string().into_bytes())?;
        let created = client.request::<Value>(request).await;
        created.with_context(|| format!("failed to create {}", definition["metadata"]["name"]))?;
    }
    for definition in definitions {
        wait_until_settled(client, definition).await?;
    }
    Ok(())
}

async fn wait_until_settled(client: &Client, definition: &Value) -> Result<()> {
    let spec = &definition["spec"];
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    let mut conditions = vec!["NamesAccepted", "Established"];
    if group.ends_with(".k8s.io") {
        // The apiserver says whether a group of Kubernetes' own domain was approved.
        conditions.push("KubernetesAPIApprovalPolicyConformant");
    }
    wait_for_conditions(client, &format!("{DEFINITIONS}/{plural}.{group}"), &conditions).await?;
    let versions = spec["versions"].as_array().into_iter().flatten();
    for version in versions.filter(|version| version["served"] == true) {
        let version = text(&version["name"]);
        wait_for_conditions(client, &format!("{API_SERVICES}/{version}.{group}"), &["Available"]).await?;
        wait_until_listed(client, &format!("{group}/{version}")).await?;
        let path = format!("/apis/{group}/{version}/{plural}");
        eventually(LIMIT, &format!("{path} to be served"), || async {
            anyhow::Ok(client.request_text(Request::get(&path).body(Vec::new())?).await?)
        })
        .await?;
    }
    Ok(())
}

/// Waits until the list of groups has this one, which is some time after its objects are served.
async fn wait_until_listed(client: &Client, group_version: &str) -> Result<()> {
    eventually(LIMIT, &format!("{group_version} to be listed"), || async {
        let listed = listed_groups(client).await?;
        ensure!(listed.contains(group_version), "the API groups are {listed:?}");
        anyhow::Ok(())
    })
    .await
}

/// Returns the API groups that the apiserver lists, with their versions.
pub(crate) async fn listed_groups(client: &Client) -> Result<BTreeSet<String>> {
    let list = client
        .list_api_groups()
        .await
        .context("failed to list the API groups")?;
    let versions = list.groups.into_iter().flat_map(|group| group.versions);
    Ok(versions.map(|version| version.group_version).collect())
}

/// Waits until the status of an object has conditions of these types.
async fn wait_for_conditions(client: &Client, path: &str, types: &[&str]) -> Result<()> {
    eventually(LIMIT, &format!("the conditions of {path}"), || async {
        let object: Value = client.request(Request::get(path).body(Vec::new())?).await?;
        let conditions = &object["status"]["conditions"];
        let has = |name: &&str| {
            let mut listed = conditions.as_array().into_iter().flatten();
            listed.any(|condition| condition["type"] == **name)
        };
        ensure!(types.iter().all(has), "they are {conditions}");
        anyhow::Ok(())
    })
    .await
}

/// Returns the API group if this is the key of a definition.
pub(crate) fn defined_group(key: &[u8]) -> Option<String> {
    let (_, group) = std::str::from_utf8(key.strip_prefix(KEYS)?).ok()?.split_once('.')?;
    Some(group.to_owned())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
