//! Orphanings whose requests are rejected.

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};

use super::{collector::Collector, unlistable::wait_until_released};
use crate::fixtures::{
    RETRY_LIMIT,
    dynamic_client::{DynamicClient, Policy},
    object_builder::{config_map, secret},
};

/// Waits for an event about the object whose note has these words.
async fn wait_until_refused(dynamic_client: &DynamicClient, object: &DynamicObject, words: &[&str]) -> Result<()> {
    let events: Api<Event> = Api::namespaced(dynamic_client.client().clone(), dynamic_client.name());
    eventually(RETRY_LIMIT, &format!("an event with {words:?}"), || async {
        let events = events.list(&ListParams::default()).await?;
        let mut of_object = events.iter().filter(|event| {
            let uid = event.regarding.as_ref().and_then(|regarding| regarding.uid.as_ref());
            uid == object.metadata.uid.as_ref() && event.reason.as_deref() == Some("GarbageCollectionRefused")
        });
        let note = |event: &Event| event.note.clone().unwrap_or_default();
        ensure!(
            of_object.any(|event| words.iter().all(|word| note(event).contains(word))),
            "{events:?}"
        );
        anyhow::Ok(())
    })
    .await
}

/// A policy rejects changes of one owner, and those of a dependent of the other owner. Once it is
/// gone, the decisions count the dependents that earlier attempts have released.
#[tokio::test]
async fn an_orphaning_that_a_policy_rejects_is_reported_by_events() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-refused").await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "refused")?;
    let rejection = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "denied by the policy");
    for name in ["fixed-owner", "fixed-dependent"] {
        let changes = Matcher::any().method("PATCH").name(name);
        proxy.respond(changes, rejection.clone(), Repeat::UntilHealed);
    }
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
    let fixed_owner = dynamic_client.create(config_map("fixed-owner")).await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependents = [
        ("of-fixed-1", &fixed_owner),
        ("of-fixed-2", &fixed_owner),
        ("free", &owner),
        ("fixed-dependent", &owner),
    ];
    let mut created = Vec::new();
    for (name, owner) in dependents {
        created.push(dynamic_client.create(secret(name).owned_by(owner)).await?);
    }
    collector
        .wait_until_observes(&created.iter().collect::<Vec<_>>())
        .await?;
    for owner in [&fixed_owner, &owner] {
        dynamic_client.delete(owner, Policy::Orphan).await?;
    }
    wait_until_refused(&dynamic_client, &fixed_owner, &["denied by the policy"]).await?;
    wait_until_refused(&dynamic_client, &created[3], &["denied by the policy"]).await?;
    wait_until_refused(&dynamic_client, &owner, &["fixed-dependent", "denied by the policy"]).await?;
    for dependent in &created[..3] {
        wait_until_released(&dynamic_client, dependent).await?;
    }
    proxy.heal();
    for owner in [&fixed_owner, &owner] {
        dynamic_client.wait_until_gone(owner).await?;
        let uid = owner.metadata.uid.as_deref().unwrap_or_default();
        let (_, decisions) = collector.page(&format!("decisions?uid={uid}")).await?;
        ensure!(decisions.contains("\"2 dependents orphaned\""), "{decisions}");
    }
    wait_until_released(&dynamic_client, &created[3]).await
}
