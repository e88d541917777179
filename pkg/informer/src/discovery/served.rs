//! The known served resources: group versions, their resources, and the supported verbs.
//!
//! Architecture Invariant: pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use portreeve_api::{Resource, Scope};

/// A verb of the Kubernetes API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "each has the name that the API uses")]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

impl Verb {
    /// Returns the verb with this name, or `None` for verbs that no caller needs, such as
    /// `impersonate`.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "create" => Self::Create,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            "get" => Self::Get,
            "list" => Self::List,
            "patch" => Self::Patch,
            "update" => Self::Update,
            "watch" => Self::Watch,
            _ => return None,
        })
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Verbs(u8);

impl Verbs {
    pub(super) fn of(verbs: &[Verb]) -> Self {
        Self(verbs.iter().fold(0, |set, verb| set | 1 << *verb as u8))
    }

    pub(super) fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let verbs: Vec<_> = names.into_iter().filter_map(Verb::named).collect();
        Self::of(&verbs)
    }

    fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

/// A resource with its supported verbs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DiscoveredResource {
    pub(super) resource: Resource,
    pub(super) verbs: Verbs,
}

/// One group version of a response. `None` means that its resources are currently unknown.
pub(super) type VersionResources = (Box<str>, Option<Arc<[DiscoveredResource]>>);

/// The versions of each group in a response, the preferred one first.
pub(super) type Groups = BTreeMap<Box<str>, Vec<VersionResources>>;

/// All served resources, as far as discovery knows them.
///
/// A group version that cannot be discovered keeps its last known resources and is marked as
/// failed.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct ServedResources {
    groups: BTreeMap<Box<str>, Vec<GroupVersion>>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct GroupVersion {
    /// The group version, in the form of `apiVersion`.
    api_version: Box<str>,
    /// The resources, shared with the response that listed them.
    resources: Arc<[DiscoveredResource]>,
    failed: bool,
    /// Whether the resources were ever discovered.
    was_read: bool,
}

impl ServedResources {
    /// Returns a set of exactly these resources, as if an apiserver had listed them. The first
    /// version of each group is the preferred one.
    pub fn of(resources: &[(Resource, &[Verb])]) -> Self {
        let mut response = Groups::new();
        for (resource, _) in resources {
            let api_version = resource.api_version();
            let versions = response.entry((*resource.group).into()).or_default();
            if versions.iter().any(|(version, _)| **version == *api_version) {
                continue;
            }
            let discovered = resources.iter().filter(|(other, _)| other.api_version() == api_version);
            let discovered = discovered.map(|(resource, verbs)| DiscoveredResource {
                resource: resource.clone(),
                verbs: Verbs::of(verbs),
            });
            let discovered = discovered.collect();
            versions.push((api_version.into(), Some(discovered)));
        }
        Self::default().updated_by(&[&response], &BTreeMap::new())
    }

    /// Returns the resources that support all these verbs, each once per group.
    ///
    /// Each resource has the preferred version of its group, or the first version that serves it if
    /// the preferred one does not. A version that lacks a verb is not replaced by another version
    /// that supports it.
    pub fn preferred(&self, verbs: &[Verb]) -> impl Iterator<Item = &Resource> {
        let required = Verbs::of(verbs);
        let deduplicated = self.groups.values().flat_map(|versions| {
            let mut seen = HashSet::new();
            let resources = versions.iter().flat_map(|version| &*version.resources);
            resources.filter(move |discovered| seen.insert(&*discovered.resource.plural))
        });
        deduplicated
            .filter(move |discovered| discovered.verbs.has_all(required))
            .map(|discovered| &discovered.resource)
    }

    /// Returns the resource of an `apiVersion` and a kind. If that version does not serve the kind,
    /// returns it in the first version of the group that does, because a version may be removed
    /// while objects still refer to it.
    ///
    /// Returns `None` if no version is known to serve the kind, if the version cannot be
    /// discovered, or if `api_version` is malformed. The core group has only ever had one version.
    ///
    /// Only the exact kind counts. kube-controller-manager's REST mapper also accepts a kind in
    /// lower case, and that of a list (`PodList`), and so takes the absence of an object of the
    /// kind `Access` for that of an `AccessList`.
    pub fn lookup(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        let version = self.version(api_version);
        if let Some(found) = version.and_then(|version| version.find(kind)) {
            return Some(found);
        }
        let group = group_of(api_version);
        let is_unknown = version.is_some_and(|version| version.failed);
        if group.is_empty() || is_unknown {
            return None;
        }
        self.groups.get(group)?.iter().find_map(|version| version.find(kind))
    }

    /// Returns the group versions that could not be discovered, in the form of `apiVersion`. Their
    /// last known resources are kept.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let versions = self.groups.values().flatten();
        versions
            .filter(|version| version.failed)
            .map(|version| &*version.api_version)
    }

    /// Returns the group versions that could not be discovered and may serve namespaced resources
    /// with this verb, in the form of `apiVersion`: those that did so when they were last
    /// discovered, and those that were never discovered.
    pub fn may_hide_namespaced(&self, verb: Verb) -> impl Iterator<Item = &str> {
        let verb = Verbs::of(&[verb]);
        let hides = move |discovered: &DiscoveredResource| {
            discovered.resource.scope == Scope::Namespaced && discovered.verbs.has_all(verb)
        };
        let failed = self.groups.values().flatten().filter(|version| version.failed);
        failed
            .filter(move |version| !version.was_read || version.resources.iter().any(hides))
            .map(|version| &*version.api_version)
    }

    /// Returns whether the resource, in its version, is known to support the verb.
    pub fn supports(&self, resource: &Resource, verb: Verb) -> bool {
        let version = self.version(&resource.api_version());
        let mut resources = version.into_iter().flat_map(|version| &*version.resources);
        resources.any(|discovered| {
            discovered.resource.plural == resource.plural && discovered.verbs.has_all(Verbs::of(&[verb]))
        })
    }

    /// Returns whether the group version of the API service with this name is known. It may have
    /// failed.
    pub fn knows_service(&self, name: &str) -> bool {
        let mut versions = self.groups.values().flatten();
        versions.any(|version| service_name(&version.api_version) == name)
    }

    /// Returns whether the group version of `resource` could not be discovered.
    pub fn is_failed(&self, resource: &Resource) -> bool {
        self.version(&resource.api_version())
            .is_some_and(|version| version.failed)
    }

    fn version(&self, api_version: &str) -> Option<&GroupVersion> {
        let mut versions = self.groups.get(group_of(api_version))?.iter();
        versions.find(|version| *version.api_version == *api_version)
    }

    /// Returns the known resources after new responses.
    ///
    /// `services` are the names of the existing API services, and whether the apiserver itself
    /// serves them. A group version that has an API service and is missing from the responses has
    /// failed and is not removed: an apiserver that has just started omits the group versions that
    /// it has not loaded yet. If an aggregated apiserver serves it, it has failed even if it was
    /// never discovered. Those that the apiserver serves itself do not count: it keeps the API
    /// service of a CRD whose names are not accepted, and never lists its resources.
    pub(super) fn updated_by(&self, responses: &[&Groups], services: &BTreeMap<Box<str>, bool>) -> Self {
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (group, versions) in responses.iter().copied().flatten() {
            let versions = versions.iter().map(|version| self.version_after(version));
            groups.entry(group.clone()).or_default().extend(versions);
        }
        for (group, versions) in &self.groups {
            for (position, version) in versions.iter().enumerate() {
                let is_listed =
                    |now: &Vec<GroupVersion>| now.iter().any(|other| other.api_version == version.api_version);
                let exists = services.contains_key(&*service_name(&version.api_version));
                if exists && !groups.get(group).is_some_and(is_listed) {
                    let now = groups.entry(group.clone()).or_default();
                    // The version keeps its position, so that the preferred version stays
                    // preferred.
                    now.insert(position.min(now.len()), version.marked_failed());
                }
            }
        }
        let aggregated = services.iter().filter(|(_, is_local)| !**is_local);
        for (group, api_version) in aggregated.filter_map(|(name, _)| group_version(name)) {
            let now: &mut Vec<GroupVersion> = groups.entry(group.into()).or_default();
            if now.iter().all(|version| *version.api_version != *api_version) {
                now.push(GroupVersion::never_read(api_version.into()));
            }
        }
        Self { groups }
    }

    /// Returns the state of a group version after a response that contains it.
    fn version_after(&self, (api_version, resources): &VersionResources) -> GroupVersion {
        match (resources, self.version(api_version)) {
            (Some(resources), _) => GroupVersion {
                api_version: api_version.clone(),
                resources: Arc::clone(resources),
                failed: false,
                was_read: true,
            },
            (None, Some(before)) => before.marked_failed(),
            (None, None) => GroupVersion::never_read(api_version.clone()),
        }
    }

    /// Returns the names of the resources that `other` lacks, separated by spaces, for the log.
    pub(super) fn names_missing_from(&self, other: &Self) -> String {
        let names = |served: &Self| -> BTreeSet<String> {
            let versions = served.groups.values().flatten();
            let resources = versions.flat_map(|version| &*version.resources);
            resources.map(|discovered| discovered.resource.to_string()).collect()
        };
        let (ours, others) = (names(self), names(other));
        let missing: Vec<_> = ours.difference(&others).map(String::as_str).collect();
        missing.join(" ")
    }
}

impl GroupVersion {
    /// Returns a version that exists and has failed since it was first seen.
    fn never_read(api_version: Box<str>) -> Self {
        Self {
            api_version,
            resources: Arc::default(),
            failed: true,
            was_read: false,
        }
    }

    /// Returns the resource of this kind.
    fn find(&self, kind: &str) -> Option<&Resource> {
        let mut resources = self.resources.iter();
        let found = resources.find(|discovered| discovered.resource.kind == kind);
        found.map(|discovered| &discovered.resource)
    }

    /// Returns a copy that is marked as failed.
    fn marked_failed(&self) -> Self {
        let failed = true;
        Self { failed, ..self.clone() }
    }
}

/// Returns the group of an `apiVersion`, which is empty for the core group.
fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Returns the group and the `apiVersion` of an API service, or `None` for the core group, of which
/// there is one version.
fn group_version(service: &str) -> Option<(&str, String)> {
    let (version, group) = service.split_once('.')?;
    (!group.is_empty()).then(|| (group, format!("{group}/{version}")))
}

/// Returns `version.group`, the name of the API service of an `apiVersion`. In the core group it
/// ends with a dot.
fn service_name(api_version: &str) -> String {
    let version = api_version.rsplit('/').next().unwrap_or_default();
    format!("{version}.{}", group_of(api_version))
}

#[cfg(test)]
mod tests;
