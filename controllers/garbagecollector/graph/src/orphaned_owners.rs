//! The owners whose dependents are still to be orphaned after the owners are gone.
//!
//! Architecture Invariant: pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

/// The maximum number of owners.
const CAPACITY: usize = 256;
/// The maximum length of the text. An object may have 256 KiB of annotations, and every renewal of
/// the Lease sends them.
const MAX_BYTES: usize = 64 << 10;

/// The owners that were deleted with `Orphan` while some resources could not be listed, and these
/// resources, as `plural.group`.
///
/// A dependent that is found later is orphaned instead of deleted. An owner is forgotten once each
/// of its resources is settled: it was listed and contained no dependent of the owner. That a
/// resource is no longer served settles nothing, because its objects may exist again.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OrphanedOwners(BTreeMap<Box<str>, BTreeSet<Box<str>>>);

/// Owners with the same resources, as the text contains them.
#[derive(Deserialize)]
struct Group {
    owners: BTreeSet<Box<str>>,
    resources: BTreeSet<Box<str>>,
}

impl OrphanedOwners {
    /// Returns whether it has no owner.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of owners.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether it has the owner with this UID.
    pub fn contains(&self, owner: &str) -> bool {
        self.0.contains_key(owner)
    }

    /// Returns the UIDs of the owners.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|owner| &**owner)
    }

    /// Adds an owner and the resources that could not be listed. Returns `false` and changes
    /// nothing if it is full.
    pub fn add(&mut self, owner: &str, resources: &BTreeSet<Box<str>>) -> bool {
        if self.0.len() >= CAPACITY && !self.contains(owner) {
            return false;
        }
        let mut added = self.clone();
        added
            .0
            .entry(owner.into())
            .or_default()
            .extend(resources.iter().cloned());
        let has_room = added.to_text().len() <= MAX_BYTES;
        if has_room {
            *self = added;
        }
        has_room
    }

    /// Adds the owners and resources of another record, however many they are.
    pub fn merge(&mut self, other: Self) {
        for (owner, resources) in other.0 {
            self.0.entry(owner).or_default().extend(resources);
        }
    }

    /// Returns the resources that are not settled.
    pub fn resources(&self) -> BTreeSet<Box<str>> {
        self.0.values().flatten().cloned().collect()
    }

    /// Returns the owners for which this resource is not settled.
    pub fn owners_of(&self, resource: &str) -> BTreeSet<Box<str>> {
        let owners = self.0.iter().filter(|(_, resources)| resources.contains(resource));
        owners.map(|(owner, _)| owner.clone()).collect()
    }

    /// Settles a resource for one owner.
    pub fn settle(&mut self, owner: &str, resource: &str) {
        if let Some(resources) = self.0.get_mut(owner) {
            resources.remove(resource);
            if resources.is_empty() {
                self.0.remove(owner);
            }
        }
    }

    /// Forgets one owner whose resources are all among these, to make room. Returns its UID.
    pub fn evict(&mut self, resources: &BTreeSet<Box<str>>) -> Option<Box<str>> {
        let mut owners = self.0.iter();
        let (owner, _) = owners.find(|(_, of_owner)| of_owner.is_subset(resources))?;
        let owner = owner.clone();
        self.0.remove(&owner);
        Some(owner)
    }

    /// Forgets an owner.
    pub fn remove(&mut self, owner: &str) {
        self.0.remove(owner);
    }

    /// Returns the text from which [`OrphanedOwners::parse`] reads the same owners.
    pub fn to_text(&self) -> String {
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (owner, resources) in &self.0 {
            groups.entry(resources).or_default().push(owner);
        }
        let groups = groups.into_iter();
        let groups = groups.map(|(resources, owners)| json!({"owners": owners, "resources": resources}));
        groups.collect::<Value>().to_string()
    }

    /// Reads the owners from a text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text has not the form that [`OrphanedOwners::to_text`] writes.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let groups: Vec<Group> = serde_json::from_str(text)?;
        let mut all: BTreeMap<Box<str>, BTreeSet<Box<str>>> = BTreeMap::new();
        for Group { owners, resources } in groups.into_iter().filter(|group| !group.resources.is_empty()) {
            for owner in owners {
                all.entry(owner).or_default().extend(resources.iter().cloned());
            }
        }
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<Box<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn owners_with_the_same_resources_share_them_in_the_text() {
        let mut owners = OrphanedOwners::default();
        for owner in ["u1", "u2"] {
            assert!(owners.add(owner, &names(&["foos.a", "bars.b"])));
        }
        assert!(owners.add("u3", &names(&["foos.a"])));
        let text = owners.to_text();
        assert_eq!(
            text,
            r#"[{"owners":["u1","u2"],"resources":["bars.b","foos.a"]},{"owners":["u3"],"resources":["foos.a"]}]"#
        );
        assert_eq!(OrphanedOwners::parse(&text).unwrap(), owners);
        assert!(OrphanedOwners::parse("u1,u2").is_err());
    }

    #[test]
    fn owner_is_forgotten_when_its_last_resource_is_settled() {
        let mut owners = OrphanedOwners::default();
        assert!(owners.add("u1", &names(&["foos.a", "bars.b"])));
        assert!(owners.add("u2", &names(&["foos.a"])));
        assert_eq!(owners.owners_of("foos.a"), names(&["u1", "u2"]));
        for owner in ["u1", "u2", "unknown"] {
            owners.settle(owner, "foos.a");
        }
        assert!(owners.contains("u1") && !owners.contains("u2"));
        assert_eq!(owners.resources(), names(&["bars.b"]));
        owners.settle("u1", "bars.b");
        assert!(owners.is_empty());
    }

    #[test]
    fn only_an_owner_without_other_resources_is_forgotten_to_make_room() {
        let mut owners = OrphanedOwners::default();
        assert!(owners.add("u1", &names(&["foos.a", "bars.b"])));
        assert!(owners.add("u2", &names(&["foos.a"])));
        assert_eq!(owners.evict(&names(&["bars.b"])), None);
        assert_eq!(owners.evict(&names(&["foos.a"])).as_deref(), Some("u2"));
        assert!(owners.contains("u1") && owners.evict(&names(&["foos.a"])).is_none());
    }

    #[test]
    fn capacity_limits_the_owners_and_the_text() {
        let mut owners = OrphanedOwners::default();
        for number in 0..CAPACITY {
            assert!(owners.add(&format!("u{number}"), &names(&["foos.a"])));
        }
        assert!(!owners.add("another", &names(&["foos.a"])));
        assert!(owners.add("u0", &names(&["bars.b"])), "it has a place already");
        let long = "x".repeat(MAX_BYTES);
        assert!(!owners.add("u1", &names(&[&long])) && owners.owners_of(&long).is_empty());
        assert_eq!(owners.len(), CAPACITY);
    }
}
