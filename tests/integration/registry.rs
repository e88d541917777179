//! The profiles of all controllers, and what follows from them.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use portreeve_api::Resource;
use portreeve_reconcile::{Descriptor, Rule};
use portreeve_testing::{ControlPlane, Matcher};

use crate::{
    aggregation,
    fixtures::namespace::NamespaceFixture,
    foo, garbage, namespaces,
    profile::{self, Expected, Profile, Reach, Reads},
    rootca, schedules, serviceaccount, ttl, volumes,
};

/// The profile of every controller.
pub(crate) static PROFILES: [&Profile; 11] = [
    &aggregation::profile::PROFILE,
    &schedules::profile::CRONTAB,
    &schedules::profile::CRONJOB,
    &foo::profile::PROFILE,
    &garbage::profile::PROFILE,
    &namespaces::profile::PROFILE,
    &volumes::profile::VOLUMES,
    &volumes::profile::CLAIMS,
    &rootca::profile::PROFILE,
    &serviceaccount::profile::PROFILE,
    &ttl::profile::PROFILE,
];

/// Returns the profiles of controllers with this reach.
pub(crate) fn profiles_with(reach: Reach) -> impl Iterator<Item = &'static Profile> {
    PROFILES.into_iter().filter(move |profile| profile.reach == reach)
}

/// Returns the names of all controllers.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|profile| profile.descriptor.name)
}

/// Returns the names of the controllers that read single objects at these times.
pub(crate) fn names_with(reads: Reads) -> impl Iterator<Item = &'static str> {
    let with = PROFILES.iter().filter(move |profile| profile.reads == reads);
    with.map(|profile| profile.descriptor.name)
}

/// Returns the resources whose whole objects informers list and watch.
pub(crate) fn watched_objects() -> Vec<&'static Resource> {
    let mut watched: Vec<_> = PROFILES.iter().flat_map(|profile| profile.objects).collect();
    watched.sort_by(|one, other| one.plural.cmp(&other.plural));
    watched.dedup();
    watched
}

/// Returns the plurals of the resources that controllers watch.
pub(crate) fn watched() -> BTreeSet<&'static str> {
    let profiles = PROFILES.iter();
    let resources = profiles.flat_map(|profile| profile.objects.iter().chain(&profile.metadata));
    resources.map(|resource| &*resource.plural).collect()
}

/// Returns matchers for the lists or watches of each informer, which cover all namespaces. A
/// dependent scan lists one namespace, so it does not match.
pub(crate) fn informers(requests: fn() -> Matcher) -> Vec<(&'static str, Matcher)> {
    let all = |resource: &'static Resource| {
        let matcher = requests().path_prefix(resource.collection_path(None));
        (&*resource.plural, matcher)
    };
    let objects = watched_objects().into_iter().map(all);
    let mut metadata: Vec<_> = PROFILES
        .iter()
        .filter_map(|profile| profile.metadata.as_ref())
        .collect();
    metadata.dedup();
    let metadata = metadata.into_iter().map(all);
    objects
        .map(|(name, requests)| (name, requests.whole()))
        .chain(metadata.map(|(name, requests)| (name, requests.metadata())))
        .collect()
}

/// Work for every controller, created before the daemon starts.
pub(crate) struct PendingWork {
    pub(crate) fixture: NamespaceFixture,
    /// The state that each controller must reach, by name.
    expected: Vec<(&'static str, Box<dyn Expected>)>,
}

impl PendingWork {
    /// Creates the work in a new namespace, whose name begins with `prefix`.
    pub(crate) async fn create(plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let fixture = NamespaceFixture::new(plane, prefix).await?;
        let mut expected = Vec::new();
        for profile in PROFILES {
            let name = profile.descriptor.name;
            expected.push((name, (profile.pending)(fixture.clone()).await.context(name)?));
        }
        Ok(Self { fixture, expected })
    }

    fn expected(&self) -> Vec<(&'static str, &dyn Expected)> {
        let expected = self.expected.iter();
        expected.map(|(name, expected)| (*name, &**expected)).collect()
    }

    pub(crate) async fn wait_until_done(&self) -> Result<()> {
        profile::wait_until_done(&self.expected()).await
    }

    /// Checks that nothing else has happened to the work, which is done.
    pub(crate) async fn verify(&self) -> Result<()> {
        profile::verify(&self.expected()).await
    }
}

#[test]
fn every_controller_has_a_profile() -> Result<()> {
    let controllers: BTreeSet<_> = portreeve_cli::CONTROLLERS
        .iter()
        .map(|controller| controller.name)
        .collect();
    let profiles: BTreeSet<_> = names().collect();
    let missing = &controllers - &profiles;
    ensure!(
        missing.is_empty(),
        "PROFILES has no {missing:?}: write a Profile in the folder of the controller's tests and add it"
    );
    ensure!(
        profiles == controllers && PROFILES.len() == profiles.len(),
        "PROFILES has {profiles:?}, and the binary {controllers:?}"
    );
    Ok(())
}

/// Returns the resources on which a controller has all these verbs, as `resource.group`.
fn resources_with(controller: &Descriptor, verbs: &[&str]) -> BTreeSet<String> {
    let with = |rule: &&Rule| verbs.iter().all(|verb| rule.verbs.contains(verb));
    let rules = controller.rules.iter().filter(with);
    rules
        .flat_map(|rule| rule.groups.iter().map(move |group| (rule, group)))
        .flat_map(|(rule, group)| rule.resources.iter().map(move |resource| format!("{resource}.{group}")))
        .collect()
}

/// A controller has the permission to read or watch exactly what its faults affect.
#[test]
fn the_reads_and_watches_of_a_profile_are_those_that_the_rules_allow() -> Result<()> {
    for profile in PROFILES {
        let name = profile.descriptor.name;
        let may_read = !resources_with(&profile.descriptor, &["get"]).is_empty();
        ensure!(
            may_read == (profile.reads != Reads::Never),
            "the profile of {name} has reads {:?}, but its RBAC rules {} `get`; correct the profile",
            profile.reads,
            if may_read { "allow" } else { "do not allow" }
        );
        let objects = profile.objects.iter();
        let mut watched: BTreeSet<_> = objects
            .map(|resource| format!("{}.{}", resource.plural, resource.group))
            .collect();
        let allowed = resources_with(&profile.descriptor, &["list", "watch"]);
        let everything = "*.*".to_owned();
        watched.extend(profile.metadata.iter().map(|resource| {
            let own = format!("{}.{}", resource.plural, resource.group);
            if allowed.contains(&everything) {
                everything.clone()
            } else {
                own
            }
        }));
        ensure!(
            watched == allowed,
            "by its profile, {name} watches {watched:?}, but its RBAC rules allow {allowed:?}; correct the profile"
        );
    }
    Ok(())
}
