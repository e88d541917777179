//! The fence for a controller that may write every resource.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use super::{
    UUID,
    environment::{FenceEnvironment, is_fenced},
    event,
};
use crate::fixtures::LIMIT;

#[tokio::test]
async fn a_fence_for_all_resources_admits_leases_and_events() -> Result<()> {
    let environment = FenceEnvironment::new("everything").await?;
    let fixture = crate::fixtures::namespace::NamespaceFixture {
        namespace: environment.namespace.clone(),
    };
    fixture.ready_foo("web", 1).await?;
    environment.set_holder(&format!("web-a_{UUID}")).await?;
    environment
        .apply(&environment.account, &["--controllers=garbagecollector"])
        .await?;
    let standby = environment.replica("web-b").await?;
    let (deployments, plain) = (environment.deployments(&standby), PatchParams::default());
    let label = Patch::Merge(json!({"metadata": {"labels": {"written": "yes"}}}));
    eventually(LIMIT, "the fence to be enforced", || async {
        ensure!(
            is_fenced(&deployments.patch("web", &plain, &label).await)?,
            "a write of the standby passed"
        );
        Ok(())
    })
    .await?;
    let leases: Api<Lease> = Api::namespaced(standby.clone(), environment.namespace.name());
    let renewal = Patch::Merge(json!({"spec": {"leaseTransitions": 3}}));
    leases.patch("lease", &plain, &renewal).await.context("the Lease")?;
    let events: Api<Event> = Api::namespaced(standby, environment.namespace.name());
    let event: Event = serde_json::from_value(event(environment.namespace.name()))?;
    let sent = events.create(&PostParams::default(), &event).await;
    sent.context("an Event").map(drop)
}
