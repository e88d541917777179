//! What is served, as far as is known: group versions, their resources, and what can be done with each. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use portreeve_api::Resource;

/// Something that can be done with a resource.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "each is called what the API calls it")]
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
    /// `None` for a verb of others (`impersonate`), which nobody here asks for.
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

/// A resource, and what can be done with it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct DiscoveredResource {
    pub(super) resource: Resource,
    pub(super) verbs: Verbs,
}

/// What an answer says of one group version; `None`: that nobody knows at the moment.
pub(super) type VersionResources = (Box<str>, Option<Arc<[DiscoveredResource]>>);

/// What an answer says, by group: its versions, the preferred one first.
pub(super) type Groups = BTreeMap<Box<str>, Vec<VersionResources>>;

/// Everything that is served, as far as is known.
///
/// What is known outlives failures: a group version that cannot be discovered keeps the resources that it had, and is marked.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct ServedResources {
    groups: BTreeMap<Box<str>, Vec<GroupVersion>>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct GroupVersion {
    /// As it stands in `apiVersion`.
    api_version: Box<str>,
    /// Shared with the answer that said so.
    offers: Arc<[DiscoveredResource]>,
    failed: bool,
}

impl ServedResources {
    /// Exactly these resources: what an apiserver with them would answer. Of each group, the version that comes first is preferred.
    pub fn of(offers: &[(Resource, &[Verb])]) -> Self {
        let mut answer = Groups::new();
        for (resource, _) in offers {
            let api_version = resource.api_version();
            let versions = answer.entry((*resource.group).into()).or_default();
            if versions.iter().any(|(version, _)| **version == *api_version) {
                continue;
            }
            let of_version = offers.iter().filter(|(other, _)| other.api_version() == api_version);
            let of_version = of_version.map(|(resource, verbs)| DiscoveredResource {
                resource: resource.clone(),
                verbs: Verbs::of(verbs),
            });
            let of_version = of_version.collect();
            versions.push((api_version.into(), Some(of_version)));
        }
        Self::default().updated_by(&[&answer], &BTreeSet::new())
    }

    /// The resources that have all these verbs: each of a group once, in the group's preferred version, or in the first version that has
    /// it if the preferred one does not. A version that lacks a verb is not replaced by another that has it.
    pub fn preferred(&self, verbs: &[Verb]) -> impl Iterator<Item = &Resource> {
        let wanted = Verbs::of(verbs);
        let each_once = self.groups.values().flat_map(|versions| {
            let mut seen = HashSet::new();
            let offers = versions.iter().flat_map(|version| &*version.offers);
            offers.filter(move |offer| seen.insert(&*offer.resource.plural))
        });
        each_once
            .filter(move |offer| offer.verbs.has_all(wanted))
            .map(|offer| &offer.resource)
    }

    /// The resource of an `apiVersion` and a kind, in whichever version is asked for. `None`: not served, as far as is known, or no
    /// `apiVersion` at all.
    ///
    /// The kind may also be in lower case, or be that of the list: kube-controller-manager's mapper takes those too, and owner
    /// references with them are collected.
    pub fn lookup(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        let version = self.version(api_version)?;
        let matching = |matches: fn(&str, &str) -> bool| {
            let mut offers = version.offers.iter();
            offers.find(|offer| matches(&offer.resource.kind, kind))
        };
        let exact = matching(|known, asked| known == asked);
        let loose =
            || matching(|known, asked| known.to_lowercase() == asked || asked.strip_suffix("List") == Some(known));
        exact.or_else(loose).map(|offer| &offer.resource)
    }

    /// The group versions that could not be discovered, as they stand in `apiVersion`. What they served before is kept.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        let versions = self.groups.values().flatten();
        versions
            .filter(|version| version.failed)
            .map(|version| &*version.api_version)
    }

    /// Whether the group version of `resource` could not be discovered.
    pub fn is_failed(&self, resource: &Resource) -> bool {
        self.version(&resource.api_version())
            .is_some_and(|version| version.failed)
    }

    fn version(&self, api_version: &str) -> Option<&GroupVersion> {
        let mut versions = self.groups.get(group_of(api_version))?.iter();
        versions.find(|version| *version.api_version == *api_version)
    }

    /// What is known after an answer. `services` are the names of the API services that exist: a group version that has one and is missing
    /// from the answer has failed, and is not gone. An apiserver that has just started leaves out what it has not loaded yet.
    pub(super) fn updated_by(&self, answers: &[&Groups], services: &BTreeSet<Box<str>>) -> Self {
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (group, versions) in answers.iter().copied().flatten() {
            let versions = versions.iter().map(|said| self.heard(said));
            groups.entry(group.clone()).or_default().extend(versions);
        }
        for (group, versions) in &self.groups {
            for (place, version) in versions.iter().enumerate() {
                let is_here =
                    |now: &Vec<GroupVersion>| now.iter().any(|other| other.api_version == version.api_version);
                let exists = services.contains(&*service_name(&version.api_version));
                if exists && !groups.get(group).is_some_and(is_here) {
                    let now = groups.entry(group.clone()).or_default();
                    // In its old place: what was preferred stays so.
                    now.insert(place.min(now.len()), version.failing());
                }
            }
        }
        Self { groups }
    }

    fn heard(&self, (api_version, offers): &VersionResources) -> GroupVersion {
        let now = |offers, failed| GroupVersion {
            api_version: api_version.clone(),
            offers,
            failed,
        };
        match (offers, self.version(api_version)) {
            (Some(offers), _) => now(Arc::clone(offers), false),
            (None, Some(before)) => before.failing(),
            (None, None) => now(Arc::default(), true),
        }
    }

    /// The names of the resources that `other` does not have, for the log.
    pub(super) fn names_missing_from(&self, other: &Self) -> String {
        let names = |served: &Self| -> BTreeSet<String> {
            let versions = served.groups.values().flatten();
            let offers = versions.flat_map(|version| &*version.offers);
            offers.map(|offer| offer.resource.to_string()).collect()
        };
        let (ours, others) = (names(self), names(other));
        let beyond: Vec<_> = ours.difference(&others).map(String::as_str).collect();
        beyond.join(" ")
    }
}

impl GroupVersion {
    /// The same, now that it could not be discovered.
    fn failing(&self) -> Self {
        let failed = true;
        Self { failed, ..self.clone() }
    }
}

/// The group of an `apiVersion`; empty for the core group.
fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// `version.group`, the name of the API service of an `apiVersion`. The core group's ends in a dot.
fn service_name(api_version: &str) -> String {
    let version = api_version.rsplit('/').next().unwrap_or_default();
    format!("{version}.{}", group_of(api_version))
}

#[cfg(test)]
mod tests;
