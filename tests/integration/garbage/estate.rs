//! Owners and what they own, in numbers that take a collector a while.

use anyhow::Result;
use kube::api::DynamicObject;

use super::{
    draft::{config_map, secret},
    judge::Ledger,
    yard::{Policy, Yard},
};

/// What each owner has. A third of these have one of their own.
const DEPENDENTS: usize = 30;
/// How many objects a doomed owner shares with a living one.
const SHARED: usize = 10;
/// How many objects nobody owns.
const UNRELATED: usize = 20;

/// One living owner, and one for each of these policies that is to be deleted by it.
pub(super) struct Estate {
    pub(super) ledger: Ledger,
    doomed: Vec<(DynamicObject, Policy)>,
}

impl Estate {
    pub(super) async fn build(yard: &Yard, prefix: &str, policies: &[Policy]) -> Result<Self> {
        let mut ledger = Ledger::default();
        let living = ledger.create_one(yard, config_map(&format!("{prefix}-living"))).await?;
        dependents(&mut ledger, yard, &living, &format!("{prefix}-of-living")).await?;
        let unrelated = (0..UNRELATED).map(|number| config_map(&format!("{prefix}-unrelated-{number}")));
        ledger.create(yard, unrelated).await?;
        let mut doomed = Vec::new();
        for (place, policy) in policies.iter().enumerate() {
            let name = format!("{prefix}-doomed-{place}");
            let owner = ledger.create_one(yard, config_map(&name)).await?;
            dependents(&mut ledger, yard, &owner, &name).await?;
            if *policy != Policy::Orphan {
                let shared = |number| secret(&format!("{name}-shared-{number}")).blocking(&owner, true);
                let shared = (0..SHARED).map(|number| shared(number).owned_by(&living));
                ledger.create(yard, shared).await?;
            }
            doomed.push((owner, *policy));
        }
        Ok(Self { ledger, doomed })
    }

    /// Deletes whatever is doomed.
    pub(super) async fn bring_down(&mut self, yard: &Yard) -> Result<()> {
        for (owner, policy) in self.doomed.drain(..) {
            self.ledger.delete(yard, &owner, policy).await?;
        }
        Ok(())
    }
}

async fn dependents(ledger: &mut Ledger, yard: &Yard, owner: &DynamicObject, prefix: &str) -> Result<()> {
    let children = (0..DEPENDENTS).map(|number| secret(&format!("{prefix}-{number}")).blocking(owner, true));
    let children = ledger.create(yard, children).await?;
    let parents = children.iter().step_by(3).enumerate();
    let grandchildren = parents.map(|(number, parent)| config_map(&format!("{prefix}-{number}-own")).owned_by(parent));
    ledger.create(yard, grandchildren).await?;
    Ok(())
}
