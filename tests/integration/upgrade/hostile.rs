//! CronTabs that a tenant has made as deep or as heavy as etcd stores them. They convert like all
//! others, so that they hide no others and hold up no migration.

use http::Request;
use portreeve_api::Resource;
use serde_json::Value;

use super::*;
use crate::fixtures::webhooks::{create, crontab, patch};

/// The number of heavy managed fields. The apiserver takes seconds for ten times as many, which the
/// unit tests of the conversion have.
const FIELDS: usize = 6_000;

/// Returns an entry of `metadata.managedFields` with this many levels, and a number of fields on
/// the last one.
fn managed_fields(levels: usize, fields: usize) -> Value {
    let leaves: serde_json::Map<_, _> = (0..fields).map(|number| (format!("f:a{number}"), json!({}))).collect();
    let nested = (0..levels).fold(Value::Object(leaves), |inner, _| json!({ "f:a": inner }));
    json!([{"manager": "m", "operation": "Update", "apiVersion": "stable.example.com/v1",
        "fieldsType": "FieldsV1", "fieldsV1": nested}])
}

impl Upgrade {
    /// Creates a CronTab with deep managed fields, and one in deletion with heavy ones, which no
    /// admission webhook checks.
    async fn create_hostile(&self) -> Result<()> {
        let (client, namespace) = (self.namespace.client(), self.namespace.name());
        let mut deep = crontab("deep", json!({}));
        deep["metadata"]["managedFields"] = managed_fields(150, 1);
        let created = create(client, &CRONTABS, namespace, "", &deep).await?;
        ensure!(created.status.is_success(), "{}", created.status);
        let mut heavy = crontab("heavy", json!({}));
        heavy["metadata"]["finalizers"] = json!(["example.com/keep"]);
        let created = create(client, &CRONTABS, namespace, "", &heavy).await?;
        ensure!(created.status.is_success(), "{created:?}");
        self.crontabs().delete(&CRONTABS, "heavy").await?;
        let change = json!({"metadata": {"managedFields": managed_fields(70, FIELDS)}});
        let patched = patch(client, &CRONTABS, (namespace, "heavy"), &change).await?;
        ensure!(patched.status.is_success(), "{}", patched.status);
        Ok(())
    }

    /// Lists the CronTabs in a version, as text, since no library decodes such depths.
    async fn list_text(&self, resource: &Resource) -> Result<String> {
        let path = resource.collection_path(Some(self.namespace.name()));
        let request = Request::get(path).body(Vec::new())?;
        Ok(self.namespace.client().request_text(request).await?)
    }

    async fn ensure_listed(&self, resource: &Resource) -> Result<()> {
        let text = self.list_text(resource).await?;
        for name in ["plain", "deep", "heavy"] {
            let name = format!("\"name\":\"{name}\"");
            ensure!(
                text.contains(&name),
                "{name} is not in the list of {}",
                resource.version
            );
        }
        ensure!(text.contains(&"\"f:a\":{".repeat(149)), "the deep fields are lost");
        let last = format!("\"f:a{}\":{{}}", FIELDS - 1);
        ensure!(text.contains(&last), "the heavy fields are lost");
        Ok(())
    }
}

#[tokio::test]
async fn deep_and_heavy_objects_are_converted_and_migrated() -> Result<()> {
    let upgrade = Upgrade::start().await?;
    upgrade
        .crontabs()
        .create(&CRONTABS, &crontab("plain", json!({})))
        .await?;
    upgrade.create_hostile().await?;
    upgrade.enable().await?;
    upgrade.ensure_listed(&CRONTABS_V2).await?;
    administer(&upgrade.plane, &["migrate", "--switch-delay=0s"]).await?;
    upgrade.ensure_listed(&CRONTABS).await?;
    upgrade.ensure_listed(&CRONTABS_V2).await?;
    upgrade.daemon.daemon.admin.ensure_passing("/readyz").await?;
    administer(&upgrade.plane, &["migrate", "--to=v1", "--switch-delay=0s"]).await?;
    administer(&upgrade.plane, &["conversion", "disable"]).await?;
    upgrade.ensure_listed(&CRONTABS).await?;
    // The tenant, or whoever empties the namespace, can delete them.
    let unblock = json!({"metadata": {"finalizers": null}});
    let (client, namespace) = (upgrade.namespace.client(), upgrade.namespace.name());
    let freed = patch(client, &CRONTABS, (namespace, "heavy"), &unblock).await?;
    ensure!(freed.status.is_success(), "{}", freed.status);
    let text = upgrade.list_text(&CRONTABS).await?;
    ensure!(!text.contains("\"name\":\"heavy\""), "it still exists");
    Ok(())
}
