//! Tests of outages: no change is lost or invented. Tests that disturb the servers have their own
//! control plane.

use portreeve_informer::Subscription;
use portreeve_testing::{Fault, Matcher, Repeat};

use super::*;

/// The delay of the request for the second page of a list, long enough for the compaction.
const PAGE_DELAY: Duration = Duration::from_secs(3);

/// Returns a synced informer with two objects, and a subscriber that has received them.
async fn informer(factory: &Factory, client: &Client) -> Result<(Informer<Note>, Subscription, ChangeLog)> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    create(&api, "kept", "1").await?;
    create(&api, "deleted", "1").await?;
    let informer = factory.informer::<Note>(config_maps("default"));
    informer.wait_for_sync(LIMIT).await?;
    let changes = ChangeLog::default();
    let subscription = informer.subscribe(changes.handler());
    changes.0.lock().clear();
    Ok((informer, subscription, changes))
}

/// Returns the names of the stored objects, sorted.
fn names(informer: &Informer<Note>) -> Vec<String> {
    let mut names: Vec<_> = informer
        .list()
        .iter()
        .map(|note| note.metadata.name.to_string())
        .collect();
    names.sort();
    names
}

/// The connection is cut during a watch. The apiserver still has the events of the outage.
#[tokio::test]
async fn a_cut_watch_resumes_with_the_missed_changes() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("cut").await?;
    let api = namespace.api::<ConfigMap>();
    let proxy = FaultProxy::start(plane).await?;
    let factory = factory(proxy.config(plane.config()?))?;
    let informer = factory.informer::<Note>(config_maps(namespace.name()));
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    informer.wait_for_sync(LIMIT).await?;
    create(&api, "a", "1").await?;
    changes.becomes(&["added a"]).await?;
    proxy.cut();
    create(&api, "b", "1").await?;
    set_text(&api, "a", "2").await?;
    delete(&api, "b").await?;
    proxy.heal();
    // Each change arrives in order. A list would have shown only the last state.
    changes
        .becomes(&["added a", "added b", "updated a", "deleted b"])
        .await?;
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_relist_reports_a_missed_deletion() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let factory = factory(proxy.config(plane.config()?))?;
    let (informer, _subscription, changes) = informer(&factory, &plane.client()?).await?;
    proxy.cut();
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    delete(&api, "deleted").await?;
    create(&api, "new", "1").await?;
    // The compaction clears etcd's history, and the restart clears the apiserver's cache, so a
    // watch from the old version gets a 410.
    plane.compact().await?;
    plane.apiserver().restart().await?;
    proxy.heal();
    changes.becomes(&["added new", "deleted deleted, unobserved"]).await?;
    assert_eq!(names(&informer), ["kept", "new"]);
    factory.stop().await;
    Ok(())
}

/// Tests a real 410 response for the next page of a list that started before the compaction. (A
/// watch gets its 410 as an event.)
#[tokio::test]
async fn a_list_whose_next_page_has_expired_is_requested_without_pages() -> Result<()> {
    // Make the apiserver read pages from etcd instead of its cache.
    let gate = "--feature-gates=ListFromCacheSnapshot=false";
    let plane = ControlPlane::builder().apiserver_arg(gate).pooled().await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    for name in ["a", "b"] {
        create(&api, name, "1").await?;
    }
    let proxy = FaultProxy::start(&plane).await?;
    let second = proxy.fault(Matcher::later_pages(), Fault::DelayRequest(PAGE_DELAY), Repeat::Nth(1));
    proxy.fault(Matcher::lists(), Fault::LimitPageSize(1), Repeat::UntilHealed);
    let lists = proxy.count(Matcher::lists().resource("configmaps"));
    let factory = factory(proxy.config(plane.config()?))?;
    let informer = factory.informer::<Note>(config_maps("default"));
    second.wait_for_applied(1, LIMIT).await?;
    create(&api, "c", "1").await?;
    plane.compact().await?;
    informer.wait_for_sync(LIMIT).await?;
    assert_eq!(names(&informer), ["a", "b", "c"]);
    assert_eq!(
        lists.matched(),
        3,
        "expected a page, an expired page, and an unpaged list"
    );
    factory.stop().await;
    Ok(())
}
