//! Tests of a resource whose CRD is created after the informer.

use std::time::Instant;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use portreeve_informer::MetadataOnly;

use super::*;

const LATE: Resource = Resource::namespaced("informer.example.com", "v1", "Late", "lates");

fn crd() -> Result<CustomResourceDefinition> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": LATE.crd_name()},
        "spec": {
            "group": LATE.group,
            "scope": "Namespaced",
            "names": {"kind": LATE.kind, "plural": LATE.plural},
            "versions": [{
                "name": LATE.version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    }))?)
}

#[tokio::test]
async fn an_informer_syncs_within_seconds_after_its_crd_is_created() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let (factory, _) = factory(plane.config()?)?;
    let informer = factory.informer::<MetadataOnly>(Watch::all(LATE));
    // By now the loop's backoff is longer than a second.
    let failed = informer
        .wait_for_sync(Duration::from_secs(4))
        .await
        .map_err(|error| error.to_string());
    assert_eq!(
        failed,
        Err(
            "informer lates.v1.informer.example.com did not sync within 4s: failed to list: 404 page not found (NotFound)"
                .to_owned()
        )
    );
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    definitions.create(&PostParams::default(), &crd()?).await?;
    let created = Instant::now();
    informer.wait_for_sync(Duration::from_secs(5)).await?;
    println!("synced {:?} after the CRD was created", created.elapsed());
    factory.stop().await;
    Ok(())
}
