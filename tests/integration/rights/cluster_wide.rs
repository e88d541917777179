//! Tests of the permissions of controllers that act on the whole cluster, such as the garbage
//! collector with five verbs on every resource. Each controller and test has its own control plane.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::{
    permissions::printed_roles,
    required_verbs::{NO_ELECTION, RightsChecker},
};
use crate::{
    fixtures::{daemon::PROMPT_NAMESPACES, namespace::NamespaceFixture},
    profile::Reach,
    registry,
};

#[tokio::test]
async fn the_printed_permissions_of_a_cluster_wide_controller_are_used_and_suffice() -> Result<()> {
    for profile in registry::profiles_with(Reach::Cluster) {
        let checker = RightsChecker::start_control_plane().await?;
        let controller = format!("--controllers={}", profile.descriptor.name);
        let flags = [&*controller, NO_ELECTION];
        let printed = printed_roles(&flags)?;
        let all: Vec<_> = printed.values().flatten().collect();
        let daemon = checker
            .start("cluster-wide", &all, &[&flags, &PROMPT_NAMESPACES[..]].concat())
            .await?;
        let fixture = NamespaceFixture::new(&checker.plane, "everything").await?;
        (profile.use_permissions)(fixture, daemon.clock.clone()).await?;
        let requests = checker.requests_of("cluster-wide", 0)?;
        let used: BTreeSet<_> = requests.iter().map(|request| &*request.verb).collect();
        let permissions = &printed[&*format!("portreeve:{}", profile.descriptor.name)];
        let allowed: BTreeSet<_> = permissions.iter().map(|permission| &*permission.verb).collect();
        ensure!(allowed.is_subset(&used), "{used:?} of {allowed:?}");
        checker.ensure_nothing_forbidden("cluster-wide")?;
    }
    Ok(())
}
