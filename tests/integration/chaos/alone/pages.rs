//! Lists of several pages, one of which fails for every informer at the same time.

use anyhow::{Context, Result};
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat};
use serde_json::json;

use crate::{
    chaos::scenario::Scenario,
    faults::requests::expire_watches,
    fixtures::{
        LIMIT,
        dynamic_client::DynamicClient,
        jobs::Jobs,
        namespace::NamespaceFixture,
        object_builder::{claim, config_map, persistent_volume, scheduled_pod},
        schedules::Kind,
    },
    registry::informers,
};

/// Creates three idle objects of each resource, so that lists in pages of one object have a third
/// page.
async fn create_idle_objects(scenario: &Scenario) -> Result<()> {
    let fixture = NamespaceFixture::new(&scenario.plane, "crowd").await?;
    let (dynamic_client, jobs) = (DynamicClient::of(&fixture.namespace), Jobs::of(&fixture));
    for number in 0..3 {
        let name = format!("crowd-{number}");
        for kind in Kind::BOTH {
            let off = json!({"suspend": true});
            kind.create(&fixture.namespace, &name, "@yearly", &off).await?;
        }
        fixture.ready_foo(&name, 1).await?;
        jobs.create(&name, json!({})).await?;
        dynamic_client.create(config_map(&name)).await?;
        dynamic_client.create(claim(&name)).await?;
        dynamic_client.create(scheduled_pod(&name, &name)).await?;
        dynamic_client
            .create_for_cluster(persistent_volume(&format!("{}-{name}", fixture.name())))
            .await?;
        // Each has a ServiceAccount and a ConfigMap of its own.
        NamespaceFixture::new(&scenario.plane, &name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn lists_that_fail_on_their_third_page_are_repeated() -> Result<()> {
    let mut scenario = Scenario::start().await?;
    create_idle_objects(&scenario).await?;
    for response in [CannedResponse::expired(), CannedResponse::internal_error()] {
        let proxy = &scenario.proxy;
        let third_pages: Vec<_> = informers(Matcher::later_pages)
            .into_iter()
            .map(|(resource, page)| (resource, proxy.respond(page, response.clone(), Repeat::Nth(2))))
            .collect();
        expire_watches(proxy);
        proxy.fault(Matcher::lists(), Fault::LimitPageSize(1), Repeat::UntilHealed);
        proxy.reset();
        scenario.work.wave().await?;
        for (resource, third) in &third_pages {
            let failed = third.wait_for_applied(1, LIMIT).await;
            failed.with_context(|| {
                format!("{resource} with {response:?}: create_idle_objects must create three of them")
            })?;
        }
        scenario.verify().await?;
        scenario.proxy.heal();
    }
    scenario.finish().await
}
