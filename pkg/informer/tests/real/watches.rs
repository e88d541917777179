//! Tests that changes in the cluster reach subscribers.

use kube::{core::GroupVersionKind, discovery::pinned_kind};
use portreeve_informer::MetadataOnly;

use super::*;

#[tokio::test]
async fn changes_reach_a_subscriber_in_order() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("changes").await?;
    let api = namespace.api::<ConfigMap>();
    create(&api, "before", "1").await?;
    let (factory, _) = factory(plane.config()?)?;
    let informer = factory.informer::<Note>(config_maps(namespace.name()));
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    informer.wait_for_sync(LIMIT).await?;
    assert_eq!(changes.lines(), ["added before"]);
    create(&api, "a", "1").await?;
    set_text(&api, "a", "2").await?;
    changes.becomes(&["added before", "added a", "updated a"]).await?;
    let key = ObjectKey::namespaced(namespace.name(), "a");
    assert_eq!(
        informer.get(&key).map(|note| note.data["text"].clone()).as_deref(),
        Some("2")
    );
    delete(&api, "a").await?;
    changes
        .becomes(&["added before", "added a", "updated a", "deleted a"])
        .await?;
    assert!(informer.get(&key).is_none());
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn metadata_alone_is_listed_and_watched() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("metadata").await?;
    let api = namespace.api::<ConfigMap>();
    create(&api, "before", "1").await?;
    let (factory, _) = factory(plane.config()?)?;
    let informer = factory.informer::<MetadataOnly>(config_maps(namespace.name()));
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    informer.wait_for_sync(LIMIT).await?;
    create(&api, "after", "1").await?;
    delete(&api, "before").await?;
    changes
        .becomes(&["added before", "added after", "deleted before"])
        .await?;
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn an_object_that_no_longer_matches_the_selector_is_deleted() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("selection").await?;
    let api = namespace.api::<ConfigMap>();
    let (factory, _) = factory(plane.config()?)?;
    let informer = factory.informer::<Note>(Watch {
        labels: "tier in (front, back)".to_owned(),
        ..config_maps(namespace.name())
    });
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    informer.wait_for_sync(LIMIT).await?;
    create(&api, "never", "1").await?;
    create(&api, "a", "1").await?;
    for tier in ["front", "other"] {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
        api.patch("a", &PatchParams::default(), &patch).await?;
    }
    changes.becomes(&["added a", "deleted a"]).await?;
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_kind_that_is_chosen_at_run_time_can_be_watched() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("run-time").await?;
    let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let (found, _) = pinned_kind(namespace.client(), &kind).await?;
    let resource = Resource {
        group: found.group.into(),
        version: found.version.into(),
        kind: found.kind.into(),
        plural: found.plural.into(),
        scope: portreeve_api::Scope::Namespaced,
    };
    let (factory, _) = factory(plane.config()?)?;
    let watch = Watch {
        namespace: Some(namespace.name().into()),
        ..Watch::all(resource)
    };
    let informer = factory.informer::<MetadataOnly>(watch);
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    informer.wait_for_sync(LIMIT).await?;
    create(&namespace.api(), "a", "1").await?;
    changes.becomes(&["added a"]).await?;
    factory.stop().await;
    Ok(())
}
