//! The requests of each controller that faults can affect.
//!
//! A controller of the registry that is not declared here fails
//! `faults_are_declared_for_every_controller` in `integration/registry.rs`. A declared controller
//! must send its requests in every wave of `integration/chaos/work.rs`, because the chaos tests
//! wait until each fault has affected each controller.

use portreeve_api::{CRONTABS, FOOS, Resource};
use portreeve_testing::Matcher;

use crate::fixtures::schedules::CRON_JOBS;

/// The requests of a controller besides its writes.
pub(crate) struct ControllerRequests {
    /// The name in the registry. The user agent of the controller's requests ends with it.
    pub(crate) controller: &'static str,
    pub(crate) reads: Reads,
    /// The resources whose whole objects its informers list and watch, in all namespaces.
    pub(crate) objects: &'static [Resource],
    /// A resource whose metadata its informers list and watch in all namespaces, if no other
    /// controller watches whole objects of it.
    pub(crate) metadata: Option<Resource>,
}

/// When a controller reads a single object from the apiserver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reads {
    Never,
    /// In each wave of work: it reads a Foo or an owner before it acts, to check that it still
    /// exists.
    InEachWave,
    /// When a test deletes a running Job: it reads a Job that is in the status but not in the
    /// cache, before it removes the Job from the status.
    AfterDeletion,
}

const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "Deployment", "deployments");
const JOBS: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");

/// Every controller.
pub(crate) static DECLARED: [ControllerRequests; 5] = [
    ControllerRequests {
        controller: "crontab-controller",
        reads: Reads::AfterDeletion,
        objects: &[CRONTABS, JOBS],
        metadata: None,
    },
    ControllerRequests {
        controller: "cronjob-controller",
        reads: Reads::AfterDeletion,
        objects: &[CRON_JOBS, JOBS],
        metadata: None,
    },
    ControllerRequests {
        controller: "foo-controller",
        reads: Reads::InEachWave,
        objects: &[FOOS, DEPLOYMENTS],
        metadata: None,
    },
    // The collector also watches the metadata of the resources above.
    ControllerRequests {
        controller: "garbage-collector-controller",
        reads: Reads::InEachWave,
        objects: &[],
        metadata: Some(CONFIG_MAPS),
    },
    ControllerRequests {
        controller: "ttl-after-finished-controller",
        reads: Reads::Never,
        objects: &[JOBS],
        metadata: None,
    },
];

/// Returns the names of all controllers.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().map(|declared| declared.controller)
}

/// Returns the names of the controllers that read single objects at these times.
pub(crate) fn names_with(reads: Reads) -> impl Iterator<Item = &'static str> {
    let with = DECLARED.iter().filter(move |declared| declared.reads == reads);
    with.map(|declared| declared.controller)
}

/// Returns the resources whose whole objects informers list and watch.
pub(crate) fn watched_objects() -> Vec<&'static Resource> {
    let mut watched: Vec<_> = DECLARED.iter().flat_map(|declared| declared.objects).collect();
    watched.sort_by(|one, other| one.plural.cmp(&other.plural));
    watched.dedup();
    watched
}

/// Returns matchers for the lists or watches of each informer, which cover all namespaces. A
/// dependent scan lists one namespace, so it does not match.
pub(crate) fn informers(requests: fn() -> Matcher) -> Vec<(&'static str, Matcher)> {
    let all = |resource: &'static Resource| {
        let matcher = requests().path_prefix(resource.collection_path(None));
        (&*resource.plural, matcher)
    };
    let objects = watched_objects().into_iter().map(all);
    let metadata = DECLARED
        .iter()
        .filter_map(|declared| declared.metadata.as_ref())
        .map(all);
    objects
        .map(|(name, requests)| (name, requests.whole()))
        .chain(metadata.map(|(name, requests)| (name, requests.metadata())))
        .collect()
}
