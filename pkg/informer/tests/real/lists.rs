//! Tests of lists that do not fit into one page.

use futures::{StreamExt, TryStreamExt};

use super::*;

const OBJECTS: usize = 1_200;

#[tokio::test]
async fn a_long_list_is_read_in_pages() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("pages").await?;
    let api = namespace.api::<ConfigMap>();
    let names = (0..OBJECTS).map(|number| format!("note-{number}"));
    let creations = futures::stream::iter(names).map(|name| {
        let api = api.clone();
        async move { create(&api, &name, "1").await }
    });
    creations.buffer_unordered(16).try_collect::<()>().await?;
    let (factory, registry) = factory(plane.config()?)?;
    let informer = factory.informer::<Note>(config_maps(namespace.name()));
    informer.wait_for_sync(LIMIT).await?;
    assert_eq!(informer.list().len(), OBJECTS);
    // Three pages and the watch; one list and one watch of CustomResourceDefinitions.
    eventually(LIMIT, "six requests", || async {
        let found = requests(&registry);
        if found == 6 {
            Ok(())
        } else {
            Err(format!("{found} requests"))
        }
    })
    .await?;
    factory.stop().await;
    Ok(())
}

fn requests(registry: &Registry) -> u64 {
    let families = registry.gather();
    let counted = families
        .iter()
        .filter(|family| family.name() == "rest_client_requests_total");
    let metrics = counted.flat_map(prometheus::proto::MetricFamily::get_metric);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of requests is a small whole number"
    )]
    metrics.map(|metric| metric.get_counter().get_value() as u64).sum()
}
