//! Decodes discovery documents from JSON to [`Groups`].
//!
//! There are two forms: one aggregated document (`APIGroupDiscoveryList`), or lists of versions and
//! one document per version. Older apiservers and some aggregated apiservers serve only the second
//! form. Fields that discovery does not need (subresources, short names, categories) are skipped
//! and never stored.
//!
//! Architecture Invariant: pure.

use std::{borrow::Cow, sync::Arc};

use portreeve_api::{Resource, Scope};
use serde::{Deserialize, de::Error as _};

use super::served::{DiscoveredResource, Groups, Verbs, VersionResources};
use crate::explain::JsonError;

/// A response of `/api` or `/apis`.
#[derive(Debug)]
pub(super) enum Document {
    /// The aggregated document with all groups, versions and resources.
    Whole(Groups),
    /// Each group with its versions in the form of `apiVersion`, the preferred one first. Each
    /// version has its own document.
    Versions(Vec<(Box<str>, Vec<Box<str>>)>),
}

/// Decodes a response of `/api` or `/apis`.
pub(super) fn root(bytes: &[u8]) -> Result<Document, JsonError> {
    read_root(bytes).map_err(|error| JsonError::new(&error))
}

/// Decodes the document of one group version.
pub(super) fn version(api_version: &str, bytes: &[u8]) -> Result<Arc<[DiscoveredResource]>, JsonError> {
    let list = read_resources(bytes).map_err(|error| JsonError::new(&error))?;
    let resources = list.resources.into_iter().flatten();
    let resources = resources.filter_map(|plain| {
        let PlainResource { name, kind, .. } = &plain;
        discovered_resource(api_version, name, kind, plain.namespaced, plain.verbs.as_ref())
    });
    Ok(resources.collect())
}

/// Decodes a resource list. The caller treats resources that are missing from the list as not
/// served, so a response of another kind must not be decoded as an empty list.
fn read_resources(bytes: &[u8]) -> Result<PlainResources<'_>, serde_json::Error> {
    let list: PlainResources = serde_json::from_slice(bytes)?;
    match &*list.kind {
        "APIResourceList" => Ok(list),
        unknown => Err(serde_json::Error::unknown_variant(unknown, &["APIResourceList"])),
    }
}

fn read_root(bytes: &[u8]) -> Result<Document, serde_json::Error> {
    let root: Root = serde_json::from_slice(bytes)?;
    match &*root.kind {
        "APIGroupDiscoveryList" => Ok(Document::Whole(aggregated(root.items.unwrap_or_default()))),
        "APIVersions" => {
            let versions = root.versions.into_iter().flatten();
            Ok(Document::Versions(vec![(
                "".into(),
                versions.map(Into::into).collect(),
            )]))
        }
        "APIGroupList" => {
            let groups = root.groups.into_iter().flatten();
            Ok(Document::Versions(groups.map(preferred_first).collect()))
        }
        unknown => Err(serde_json::Error::unknown_variant(
            unknown,
            &["APIGroupDiscoveryList", "APIVersions", "APIGroupList"],
        )),
    }
}

fn aggregated(items: Vec<Group>) -> Groups {
    let mut groups = Groups::new();
    for group in items {
        let name = &group.metadata.name;
        let versions = group.versions.into_iter().flatten();
        let versions = versions.map(|version| version_resources(name, version));
        groups.entry(name.as_ref().into()).or_default().extend(versions);
    }
    groups
}

/// Converts one version. The apiserver marks a version as stale when the aggregated apiserver
/// behind it does not respond; the resources in the document are then unreliable.
fn version_resources(group: &str, version: Version) -> VersionResources {
    let api_version: Box<str> = match group {
        "" => version.name.into(),
        group => format!("{group}/{}", version.name).into(),
    };
    let is_stale = version.freshness.is_some_and(|freshness| freshness == "Stale");
    let resources = || {
        let served = version.resources.into_iter().flatten();
        let resources = served.filter_map(|served| {
            // An entry without a kind has only subresources and is not a resource.
            let kind = &served.response_kind?.kind;
            discovered_resource(
                &api_version,
                &served.resource,
                kind,
                served.scope == "Namespaced",
                served.verbs.as_ref(),
            )
        });
        resources.collect()
    };
    let resources = (!is_stale).then(resources);
    (api_version, resources)
}

fn preferred_first(group: PlainGroup) -> (Box<str>, Vec<Box<str>>) {
    let preferred = group.preferred_version.map(|version| version.group_version);
    let versions = group.versions.into_iter().flatten();
    let mut versions: Vec<Box<str>> = versions.map(|version| version.group_version.into()).collect();
    versions.sort_by_key(|version| preferred.as_deref() != Some(version));
    (group.name.into(), versions)
}

/// Builds a resource. Returns `None` for an entry that is not a resource: a subresource, or an
/// entry without a name or kind.
fn discovered_resource(
    api_version: &str,
    plural: &str,
    kind: &str,
    namespaced: bool,
    verbs: Option<&Vec<Cow<str>>>,
) -> Option<DiscoveredResource> {
    if plural.is_empty() || plural.contains('/') || kind.is_empty() {
        return None;
    }
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let owned = |text: &str| Cow::Owned(text.to_owned());
    Some(DiscoveredResource {
        resource: Resource {
            group: owned(group),
            version: owned(version),
            kind: owned(kind),
            plural: owned(plural),
            scope: if namespaced { Scope::Namespaced } else { Scope::Cluster },
        },
        verbs: Verbs::named(verbs.into_iter().flatten().map(|verb| &**verb)),
    })
}

/// Any response of `/api` and `/apis`. `kind` identifies the form.
#[derive(Deserialize)]
struct Root<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    items: Option<Vec<Group<'a>>>,
    #[serde(borrow, default)]
    versions: Option<Vec<Cow<'a, str>>>,
    #[serde(borrow, default)]
    groups: Option<Vec<PlainGroup<'a>>>,
}

#[derive(Deserialize)]
struct Group<'a> {
    #[serde(borrow, default)]
    metadata: GroupMetadata<'a>,
    #[serde(borrow, default)]
    versions: Option<Vec<Version<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupMetadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Version<'a> {
    #[serde(borrow)]
    #[serde(rename = "version")]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    resources: Option<Vec<Served<'a>>>,
    #[serde(borrow, default)]
    freshness: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Served<'a> {
    #[serde(borrow)]
    resource: Cow<'a, str>,
    #[serde(borrow, default)]
    response_kind: Option<ResponseKind<'a>>,
    #[serde(borrow, default)]
    scope: Cow<'a, str>,
    #[serde(borrow, default)]
    verbs: Option<Vec<Cow<'a, str>>>,
}

#[derive(Deserialize)]
struct ResponseKind<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlainGroup<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    versions: Option<Vec<PlainVersion<'a>>>,
    #[serde(borrow, default)]
    preferred_version: Option<PlainVersion<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlainVersion<'a> {
    #[serde(borrow)]
    group_version: Cow<'a, str>,
}

#[derive(Deserialize)]
struct PlainResources<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    resources: Option<Vec<PlainResource<'a>>>,
}

#[derive(Deserialize)]
struct PlainResource<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(default)]
    namespaced: bool,
    #[serde(borrow, default)]
    verbs: Option<Vec<Cow<'a, str>>>,
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
