//! The rules of aggregated roles.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, api::DeleteParams};
use portreeve_testing::eventually;
use serde_json::json;

use super::profile::{aggregated, create, part, resources, wait_for_resources};
use crate::{bare_plane::bare_plane, fixtures::LIMIT};

/// More rounds than roles that settle can take.
const MOST_ROUNDS: usize = 50;

async fn roles() -> Result<Api<ClusterRole>> {
    Ok(Api::all(bare_plane().await?.plane.client()?))
}

/// They are born without rules, and each contains the one before: its rules settle after those.
#[tokio::test]
async fn view_edit_and_admin_get_their_rules_and_those_of_others() -> Result<()> {
    let roles = roles().await?;
    let mut extension = part("extension", "widgets");
    extension["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    create(&roles, extension).await?;
    for name in ["view", "edit", "admin"] {
        eventually(LIMIT, &format!("the rules of {name}"), || async {
            let found = resources(&roles, name).await?;
            let has = |resource: &str| found.iter().any(|known| known == resource);
            ensure!(has("widgets") && has("configmaps"), "{found:?}");
            anyhow::Ok(())
        })
        .await?;
    }
    roles.delete("extension", &DeleteParams::default()).await?;
    eventually(LIMIT, "the rules to be gone", || async {
        let found = resources(&roles, "admin").await?;
        ensure!(!found.iter().any(|known| known == "widgets"), "{found:?}");
        anyhow::Ok(())
    })
    .await
}

/// Returns when the roles that select `part-of: cycle` have been decided on again. Each part has
/// the same rules, so only the first one changes theirs.
async fn decide_again(roles: &Api<ClusterRole>, number: usize) -> Result<()> {
    let mut same = part(&format!("cycle-part-{number}"), "looked-at");
    same["metadata"]["labels"] = json!({"part-of": "cycle"});
    create(roles, same).await?;
    // A change after that one, of which a role shows that it was processed.
    let other = format!("after-part-{number}");
    let mut part = part(&other, &other);
    part["metadata"]["labels"] = json!({"part-of": "after"});
    create(roles, part).await?;
    eventually(LIMIT, &format!("the rules of {other}"), || async {
        let found = resources(roles, "after-cycle").await?;
        ensure!(found.contains(&other), "{found:?}");
        anyhow::Ok(())
    })
    .await
}

/// Each replaces the rules of the other, and with these the reason to do so.
#[tokio::test]
async fn roles_that_aggregate_each_other_settle() -> Result<()> {
    let roles = roles().await?;
    let names = ["cycle-a", "cycle-b", "cycle-c"];
    for name in names {
        let mut role = aggregated(
            name,
            "cycle",
            &json!([{"verbs": ["get"], "apiGroups": [""], "resources": [name]}]),
        );
        role["metadata"]["labels"] = json!({"part-of": "cycle"});
        create(&roles, role).await?;
    }
    let versions = async || {
        let mut versions = Vec::new();
        for name in names {
            versions.push(roles.get(name).await?.metadata.resource_version);
        }
        anyhow::Ok(versions)
    };
    create(&roles, aggregated("after-cycle", "after", &json!([]))).await?;
    // A decision may see the rules of before the last writes. So the roles have settled only when
    // decisions on all of them, as they are, write nothing.
    let mut last = versions().await?;
    for number in 0..MOST_ROUNDS {
        decide_again(&roles, number).await?;
        let now = versions().await?;
        if now == last {
            break;
        }
        last = now;
    }
    for name in names {
        let found = resources(&roles, name).await?;
        ensure!(found.iter().any(|known| known == "looked-at"), "{name} has {found:?}");
    }
    decide_again(&roles, MOST_ROUNDS).await?;
    ensure!(versions().await? == last, "the roles were written again");
    Ok(())
}

/// Rules that another manager has written are removed, too.
#[tokio::test]
async fn the_rules_of_other_managers_do_not_stay() -> Result<()> {
    let roles = roles().await?;
    let foreign = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    create(&roles, aggregated("emptied", "nothing", &foreign)).await?;
    wait_for_resources(&roles, "emptied", &[]).await?;
    let mut added = part("filled", "gadgets");
    added["metadata"]["labels"] = json!({"part-of": "nothing"});
    create(&roles, added).await?;
    wait_for_resources(&roles, "emptied", &["gadgets"]).await?;
    let role = roles.get("emptied").await?;
    let managers = role.metadata.managed_fields.context("no managers")?;
    let managers: Vec<_> = managers.into_iter().filter_map(|entry| entry.manager).collect();
    ensure!(
        managers.iter().any(|name| name == "clusterrole-aggregation-controller"),
        "{managers:?}"
    );
    Ok(())
}
