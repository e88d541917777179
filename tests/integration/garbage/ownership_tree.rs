//! Owners with many dependents, so that a cascade takes a while.

use anyhow::Result;
use kube::api::DynamicObject;

use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    object_builder::{config_map, secret},
};

/// The number of dependents of each owner. One in three has a dependent itself.
const DEPENDENTS: usize = 30;
/// The number of dependents that each deleted owner shares with the owner that remains.
const SHARED: usize = 10;
/// The number of objects without owners.
const UNRELATED: usize = 20;

/// One owner that remains, and one owner per policy that a test deletes (a doomed owner).
pub(super) struct OwnershipTree {
    pub(super) expected_objects: ExpectedObjects,
    doomed: Vec<(DynamicObject, Policy)>,
}

impl OwnershipTree {
    pub(super) async fn build(dynamic_client: &DynamicClient, prefix: &str, policies: &[Policy]) -> Result<Self> {
        let mut expected_objects = ExpectedObjects::default();
        let living = expected_objects
            .create_one(dynamic_client, config_map(&format!("{prefix}-living")))
            .await?;
        dependents(
            &mut expected_objects,
            dynamic_client,
            &living,
            &format!("{prefix}-of-living"),
        )
        .await?;
        let unrelated = (0..UNRELATED).map(|number| config_map(&format!("{prefix}-unrelated-{number}")));
        expected_objects.create(dynamic_client, unrelated).await?;
        let mut doomed = Vec::new();
        for (index, policy) in policies.iter().enumerate() {
            let name = format!("{prefix}-doomed-{index}");
            let owner = expected_objects.create_one(dynamic_client, config_map(&name)).await?;
            dependents(&mut expected_objects, dynamic_client, &owner, &name).await?;
            if *policy != Policy::Orphan {
                let shared = |number| secret(&format!("{name}-shared-{number}")).blocking(&owner, true);
                let shared = (0..SHARED).map(|number| shared(number).owned_by(&living));
                expected_objects.create(dynamic_client, shared).await?;
            }
            doomed.push((owner, *policy));
        }
        Ok(Self {
            expected_objects,
            doomed,
        })
    }

    /// Deletes the doomed owners.
    pub(super) async fn delete_owners(&mut self, dynamic_client: &DynamicClient) -> Result<()> {
        for (owner, policy) in self.doomed.drain(..) {
            self.expected_objects.delete(dynamic_client, &owner, policy).await?;
        }
        Ok(())
    }
}

async fn dependents(
    expected_objects: &mut ExpectedObjects,
    dynamic_client: &DynamicClient,
    owner: &DynamicObject,
    prefix: &str,
) -> Result<()> {
    let children = (0..DEPENDENTS).map(|number| secret(&format!("{prefix}-{number}")).blocking(owner, true));
    let children = expected_objects.create(dynamic_client, children).await?;
    let parents = children.iter().step_by(3).enumerate();
    let grandchildren = parents.map(|(number, parent)| config_map(&format!("{prefix}-{number}-own")).owned_by(parent));
    expected_objects.create(dynamic_client, grandchildren).await?;
    Ok(())
}
