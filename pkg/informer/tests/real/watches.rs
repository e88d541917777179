//! Tests of watches with a selector.

use super::*;

#[tokio::test]
async fn an_object_that_no_longer_matches_the_selector_is_deleted() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("selection").await?;
    let api = namespace.api::<ConfigMap>();
    let factory = factory(plane.config()?)?;
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
