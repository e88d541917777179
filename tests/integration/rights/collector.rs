//! Tests of the permissions of the garbage collector: five verbs on every resource. The collector
//! acts on the whole cluster, so each test has its own control plane.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::{
    permissions::printed_roles,
    required_verbs::{NO_ELECTION, RightsChecker},
};
use crate::fixtures::{LIMIT, namespace::NamespaceFixture};

pub(super) const NAME: &str = "garbage-collector-controller";
const FLAG: &str = "--controllers=garbage-collector-controller";

fn owned(name: &str, owners: &[(&str, &str)]) -> Value {
    let references = owners
        .iter()
        .map(|(owner, uid)| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}));
    let references: Vec<_> = references.collect();
    json!({"metadata": {"name": name, "ownerReferences": references}})
}

/// Makes the collector use all its verbs. The collector reads an owner that it has never observed,
/// deletes objects whose owners are absent, and removes one of two owner references.
async fn collect(fixture: &NamespaceFixture) -> Result<()> {
    let maps: Api<ConfigMap> = fixture.namespace.api();
    let create = |manifest: Value| {
        let maps = maps.clone();
        async move {
            let map: ConfigMap = serde_json::from_value(manifest)?;
            anyhow::Ok(maps.create(&PostParams::default(), &map).await?)
        }
    };
    let kept_owner = create(owned("keeper", &[])).await?;
    let deleted_owner = create(owned("goer", &[])).await?;
    let (kept_owner, deleted_owner) = (
        kept_owner.uid().unwrap_or_default(),
        deleted_owner.uid().unwrap_or_default(),
    );
    create(owned("both", &[("keeper", &kept_owner), ("goer", &deleted_owner)])).await?;
    create(owned("one", &[("goer", &deleted_owner)])).await?;
    create(owned("nobodys", &[("nobody", "nobody")])).await?;
    maps.delete("goer", &DeleteParams::background()).await?;
    eventually(
        LIMIT,
        "objects without owners to be deleted, and the reference to the deleted owner to be removed",
        || async {
            for name in ["one", "nobodys"] {
                ensure!(maps.get_opt(name).await?.is_none(), "{name} still exists");
            }
            let both = maps.get("both").await?;
            ensure!(both.owner_references().len() == 1, "{:?}", both.owner_references());
            anyhow::Ok(())
        },
    )
    .await
}

#[tokio::test]
async fn the_collector_requires_each_of_its_permissions() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    let printed = printed_roles(&[FLAG, NO_ELECTION])?;
    let all: Vec<_> = printed.values().flatten().collect();
    let permissions = &printed[&format!("portreeve:{NAME}")];
    ensure!(permissions.len() == 5, "{permissions:?}");
    for permission in permissions {
        let fixture = NamespaceFixture::new(&checker.plane, "without").await?;
        checker
            .check_rejection_without(&all, permission, &[FLAG, NO_ELECTION], |_| async move {
                // Without the permission the scenario may not complete, so its result is ignored.
                let done = tokio::time::timeout(LIMIT, collect(&fixture)).await;
                drop(done);
                std::future::pending().await
            })
            .await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_printed_permissions_of_the_collector_are_used_and_suffice() -> Result<()> {
    let checker = RightsChecker::start_control_plane().await?;
    let printed = printed_roles(&[FLAG, NO_ELECTION])?;
    let all: Vec<_> = printed.values().flatten().collect();
    let _daemon = checker.start("collector", &all, &[FLAG, NO_ELECTION]).await?;
    let fixture = NamespaceFixture::new(&checker.plane, "everything").await?;
    collect(&fixture).await?;
    let events = checker.audit_events_of("collector", 0)?;
    let verbs: BTreeSet<_> = events.iter().filter_map(|event| event["verb"].as_str()).collect();
    let allowed: BTreeSet<_> = ["delete", "get", "list", "patch", "watch"].into();
    ensure!(allowed.is_subset(&verbs), "{verbs:?}");
    let rejected: Vec<_> = events
        .iter()
        .filter(|event| event["responseStatus"]["code"] == 403)
        .collect();
    ensure!(rejected.is_empty(), "{rejected:#?}");
    Ok(())
}
