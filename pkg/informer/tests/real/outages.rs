//! Outages: nothing is lost, nothing is made up. Each test has a control plane of its own.

use portreeve_informer::Subscription;
use portreeve_testing::{Fault, Matcher, Repeat};

use super::*;

/// How late the second page of a list comes: a compaction is done by then.
const HELD_BACK: Duration = Duration::from_secs(3);

/// A synced informer over two objects, and a subscriber that has been told of them.
async fn informer(factory: &Factory, client: &Client) -> Result<(Informer<Note>, Subscription, ChangeLog)> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    create(&api, "kept", "1").await?;
    create(&api, "deleted", "1").await?;
    let informer = factory.informer::<Note>(config_maps("default"));
    informer.wait_for_sync(LIMIT).await?;
    let told = ChangeLog::default();
    let subscription = informer.subscribe(told.handler());
    told.0.lock().clear();
    Ok((informer, subscription, told))
}

/// What an informer knows, in order.
fn names(informer: &Informer<Note>) -> Vec<String> {
    let mut names: Vec<_> = informer
        .list()
        .iter()
        .map(|note| note.metadata.name.to_string())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_restart_of_the_apiserver_loses_nothing_and_deletes_nothing() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let (factory, _) = factory(plane.config()?)?;
    let (_informer, _subscription, told) = informer(&factory, &plane.client()?).await?;
    plane.apiserver().restart().await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    create(&api, "new", "1").await?;
    set_text(&api, "kept", "2").await?;
    delete(&api, "deleted").await?;
    told.becomes(&["added new", "updated kept", "deleted deleted"]).await?;
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_crash_of_the_apiserver_loses_nothing_and_deletes_nothing() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let (factory, _) = factory(plane.config()?)?;
    let (_informer, _subscription, told) = informer(&factory, &plane.client()?).await?;
    plane.apiserver().kill().await?;
    plane.apiserver().start().await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    set_text(&api, "kept", "2").await?;
    told.becomes(&["updated kept"]).await?;
    factory.stop().await;
    Ok(())
}

/// The line is cut while the watch is open; the events of the time without it are still to be had.
#[tokio::test]
async fn a_watch_that_is_cut_resumes_with_what_happened_meanwhile() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("cut").await?;
    let api = namespace.api::<ConfigMap>();
    let proxy = FaultProxy::start(plane).await?;
    let (factory, _) = factory(proxy.config(plane.config()?))?;
    let informer = factory.informer::<Note>(config_maps(namespace.name()));
    let told = ChangeLog::default();
    let _subscription = informer.subscribe(told.handler());
    informer.wait_for_sync(LIMIT).await?;
    create(&api, "a", "1").await?;
    told.becomes(&["added a"]).await?;
    proxy.cut();
    create(&api, "b", "1").await?;
    set_text(&api, "a", "2").await?;
    delete(&api, "b").await?;
    proxy.heal();
    // Each single change, in order: a list would have told of the last state only.
    told.becomes(&["added a", "added b", "updated a", "deleted b"]).await?;
    factory.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_deletion_that_was_missed_comes_out_of_the_relist() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let (factory, _) = factory(proxy.config(plane.config()?))?;
    let (informer, _subscription, told) = informer(&factory, &plane.client()?).await?;
    proxy.cut();
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    delete(&api, "deleted").await?;
    create(&api, "new", "1").await?;
    // etcd forgets the past, and with a restart the apiserver's cache does too: the version is answered with 410.
    plane.compact().await?;
    plane.apiserver().restart().await?;
    proxy.heal();
    told.becomes(&["added new", "deleted deleted, unseen"]).await?;
    assert_eq!(names(&informer), ["kept", "new"]);
    factory.stop().await;
    Ok(())
}

/// The real 410 as a status, in answer to a page of a list from before the compaction. A watch gets it as an event.
#[tokio::test]
async fn a_list_whose_next_page_is_compacted_away_is_asked_for_as_a_whole() -> Result<()> {
    // Pages come from etcd, and not from what the apiserver remembers of it.
    let gate = "--feature-gates=ListFromCacheSnapshot=false";
    let plane = ControlPlane::builder().apiserver_arg(gate).start().await?;
    let api: Api<ConfigMap> = Api::namespaced(plane.client()?, "default");
    for name in ["a", "b"] {
        create(&api, name, "1").await?;
    }
    let proxy = FaultProxy::start(&plane).await?;
    let second = proxy.fault(Matcher::later_pages(), Fault::DelayRequest(HELD_BACK), Repeat::Nth(1));
    proxy.fault(Matcher::lists(), Fault::LimitPageSize(1), Repeat::UntilHealed);
    let lists = proxy.count(Matcher::lists().resource("configmaps"));
    let (factory, _) = factory(proxy.config(plane.config()?))?;
    let informer = factory.informer::<Note>(config_maps("default"));
    second.wait_for_applied(1, LIMIT).await?;
    create(&api, "c", "1").await?;
    plane.compact().await?;
    informer.wait_for_sync(LIMIT).await?;
    assert_eq!(names(&informer), ["a", "b", "c"]);
    assert_eq!(lists.matched(), 3, "a page, one that was gone, and everything");
    factory.stop().await;
    Ok(())
}
