//! A model of the parts of an apiserver that garbage collection depends on.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Finalizers, Identity, PartialMetadata, PartialObject, ReadResult, Reference, verdict::PropagationPolicy};

/// A kind as `apiVersion/Kind`.
pub(super) type KindName = &'static str;

/// The location of an object: kind, namespace and name.
pub(super) type ObjectLocation = (String, Option<Box<str>>, Box<str>);

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) meta: PartialMetadata,
    /// Whether it has a finalizer of another controller.
    pub(super) has_foreign_finalizer: bool,
    /// Whether it has been a waiting owner. A collector that read it then may still delete its
    /// dependents after the finalizer `foregroundDeletion` is gone.
    pub(super) has_waited: bool,
}

/// An event of the watch on a kind.
#[derive(Clone, Debug)]
pub(super) enum WatchEvent {
    Applied(PartialObject),
    Deleted(PartialObject),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Simulation {
    pub(super) objects: BTreeMap<ObjectLocation, Object>,
    /// Each kind, and whether it is namespaced.
    kinds: BTreeMap<String, bool>,
    pub(super) unserved: BTreeSet<String>,
    /// Kinds (API versions) under which the objects of another kind are served as well.
    aliases: BTreeMap<String, String>,
    pub(super) logs: BTreeMap<String, Vec<WatchEvent>>,
    pub(super) version: u64,
    born: u64,
    /// The version and the objects of the last backup.
    backup: Option<(u64, BTreeMap<ObjectLocation, Object>)>,
    /// The requests that the collector has sent.
    pub(super) requests: Vec<String>,
    /// Actions of the collector that must never happen.
    pub(super) violations: Vec<String>,
    /// The number of writes until the collector crashes. It does not receive the answer to the last
    /// one.
    pub(super) writes_until_crash: Option<usize>,
}

fn kind_of(api_version: &str, kind: &str) -> String {
    format!("{api_version}/{kind}")
}

pub(super) fn split(kind: &str) -> (&str, &str) {
    kind.rsplit_once('/').unwrap_or(("", kind))
}

/// Returns a reference to the object of this kind, name and UID, which need not exist.
pub(super) fn reference(kind: &str, name: &str, uid: &str, blocks: bool) -> Reference {
    let (api_version, kind) = split(kind);
    Reference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        blocks,
    }
}

impl Simulation {
    pub(super) fn new(kinds: &[(KindName, bool)]) -> Self {
        let mut simulation = Self::default();
        for (kind, namespaced) in kinds {
            simulation.kinds.insert((*kind).to_owned(), *namespaced);
            simulation.logs.insert((*kind).to_owned(), Vec::new());
        }
        simulation
    }

    pub(super) fn alias(&mut self, other: KindName, kind: KindName) {
        self.aliases.insert(other.to_owned(), kind.to_owned());
    }

    pub(super) fn serve(&mut self, kind: &str, on: bool) {
        if on {
            self.unserved.remove(kind);
        } else {
            self.unserved.insert(kind.to_owned());
        }
    }

    pub(super) fn is_served(&self, kind: &str) -> bool {
        !self.unserved.contains(kind)
    }

    pub(super) fn place(&self, identity: &Identity) -> Option<ObjectLocation> {
        let kind = kind_of(&identity.api_version, &identity.kind);
        let kind = self.aliases.get(&kind).unwrap_or(&kind).clone();
        let namespaced = *self.kinds.get(&kind)?;
        let namespace = identity.namespace.clone().filter(|_| namespaced);
        Some((kind, namespace, identity.name.clone()))
    }

    /// Creates an object, with a new UID if none is given. Returns the UID.
    pub(super) fn create(
        &mut self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        uid: Option<&str>,
        owners: Vec<Reference>,
    ) -> Option<Box<str>> {
        let namespaced = *self.kinds.get(kind)?;
        let place = (
            kind.to_owned(),
            namespace.filter(|_| namespaced).map(Into::into),
            name.into(),
        );
        if self.objects.contains_key(&place) || !self.is_served(kind) {
            return None;
        }
        self.born += 1;
        let uid: Box<str> = uid.map_or_else(|| format!("uid-{}", self.born), str::to_owned).into();
        let object = Object {
            meta: PartialMetadata {
                namespace: place.1.clone(),
                name: name.into(),
                uid: uid.clone(),
                owner_references: owners,
                ..PartialMetadata::default()
            },
            has_foreign_finalizer: false,
            has_waited: false,
        };
        self.write(&place, object);
        Some(uid)
    }

    fn write(&mut self, place: &ObjectLocation, mut object: Object) {
        self.version += 1;
        object.meta.resource_version = self.version.to_string().into();
        let finalizers = object.meta.finalizers;
        let is_free = !object.has_foreign_finalizer && !finalizers.orphan && !finalizers.foreground;
        let seen = PartialObject {
            metadata: object.meta.clone(),
        };
        let log = self.logs.entry(place.0.clone()).or_default();
        if object.meta.deleting && is_free {
            log.push(WatchEvent::Deleted(seen));
            self.objects.remove(place);
        } else {
            log.push(WatchEvent::Applied(seen));
            self.objects.insert(place.clone(), object);
        }
    }

    pub(super) fn change(&mut self, place: &ObjectLocation, change: impl FnOnce(&mut Object)) {
        if let Some(mut object) = self.objects.get(place).cloned() {
            change(&mut object);
            self.write(place, object);
        }
    }

    /// Backs up the objects.
    pub(super) fn back_up(&mut self) {
        self.backup = Some((self.version, self.objects.clone()));
    }

    /// Restores the last backup: resourceVersions decrease, and deleted objects exist again.
    /// Returns whether there was one.
    pub(super) fn restore(&mut self) -> bool {
        let Some((version, objects)) = self.backup.clone() else {
            return false;
        };
        self.version = version;
        self.objects = objects;
        true
    }

    /// Deletes an object as a client does.
    pub(super) fn delete(&mut self, place: &ObjectLocation, policy: PropagationPolicy) {
        self.change(place, |object| {
            object.meta.deleting = true;
            object.has_waited = policy == PropagationPolicy::Foreground;
            object.meta.finalizers = Finalizers {
                foreground: policy == PropagationPolicy::Foreground,
                orphan: policy == PropagationPolicy::Orphan,
            };
        });
    }

    pub(super) fn get(&self, identity: &Identity) -> ReadResult {
        let kind = kind_of(&identity.api_version, &identity.kind);
        let canonical = self.aliases.get(&kind).unwrap_or(&kind);
        let Some(namespaced) = self.kinds.get(canonical).filter(|_| self.is_served(canonical)) else {
            return ReadResult::Unknown;
        };
        if *namespaced && identity.namespace.is_none() {
            return ReadResult::Misplaced;
        }
        let place = self.place(identity);
        match place.and_then(|place| self.objects.get(&place)) {
            Some(object) if object.meta.uid == identity.uid => ReadResult::Found(Box::new(PartialObject {
                metadata: object.meta.clone(),
            })),
            _ => ReadResult::Absent,
        }
    }

    /// Returns whether an owner exists and keeps a dependent in this namespace.
    pub(super) fn keeps(&self, reference: &Reference, namespace: Option<&str>) -> bool {
        let identity = Identity::of_owner(reference, namespace);
        let place = self.place(&identity);
        let found = place.as_ref().and_then(|place| self.objects.get(place));
        let is_misplaced = place.is_some_and(|place| self.kinds[&place.0] && namespace.is_none());
        // It is unknown whether an owner of an unknown kind exists.
        let is_unknown = self.place(&identity).is_none();
        is_misplaced
            || is_unknown
            || found.is_some_and(|owner| owner.meta.uid == reference.uid && !owner.meta.is_waiting_for_dependents())
    }

    /// Returns whether the collector has crashed.
    pub(super) fn has_collector_crashed(&self) -> bool {
        self.writes_until_crash == Some(0)
    }

    /// Counts a write of the collector. Returns whether it arrives.
    fn accepts_write(&mut self) -> bool {
        let hears = !self.has_collector_crashed();
        self.writes_until_crash = self.writes_until_crash.map(|writes| writes.saturating_sub(1));
        hears
    }

    /// Handles a DELETE of the collector with its preconditions. Records a violation if an owner
    /// keeps the object.
    pub(super) fn collect(&mut self, item: &Identity, version: &str, policy: PropagationPolicy) -> Outcome {
        let Some(place) = self.place(item) else {
            return Outcome::Failed;
        };
        if !self.is_served(&place.0) {
            return Outcome::Failed;
        }
        let Some(object) = self.objects.get(&place) else {
            return Outcome::Gone;
        };
        if object.meta.uid != item.uid || *object.meta.resource_version != *version {
            return Outcome::Conflict;
        }
        let owners = &object.meta.owner_references;
        let namespace = object.meta.namespace.as_deref();
        let keeper = owners.iter().find(|owner| {
            let place = self.place(&Identity::of_owner(owner, namespace));
            let has_waited = place
                .and_then(|place| self.objects.get(&place))
                .is_some_and(|owner| owner.has_waited);
            self.keeps(owner, namespace) && !has_waited
        });
        if let Some(keeper) = keeper {
            self.violations
                .push(format!("{item} was deleted although {keeper:?} keeps it"));
        }
        if owners.is_empty() {
            self.violations
                .push(format!("{item} was deleted although it has no owner"));
        }
        if !self.accepts_write() {
            return Outcome::Failed;
        }
        self.delete(&place, policy);
        Outcome::Done
    }

    /// Applies a JSON patch that removes references. If `unblock` gives a version, unsets
    /// `blockOwnerDeletion` in that version instead. Fails if a reference is no longer at its
    /// position.
    pub(super) fn edit(&mut self, item: &Identity, unblock: Option<&str>, references: &[(usize, Box<str>)]) -> Outcome {
        let Some(place) = self.place(item).filter(|place| self.is_served(&place.0)) else {
            return Outcome::Failed;
        };
        let Some(object) = self.objects.get(&place) else {
            return Outcome::Gone;
        };
        let is_there = |(place, uid): &(usize, Box<str>)| {
            object
                .meta
                .owner_references
                .get(*place)
                .is_some_and(|known| known.uid == *uid)
        };
        let is_another = unblock.is_some_and(|version| *object.meta.resource_version != *version);
        if object.meta.uid != item.uid || is_another || !references.iter().all(is_there) {
            return Outcome::Conflict;
        }
        if !self.accepts_write() {
            return Outcome::Failed;
        }
        self.change(&place, |object| {
            let mut number = 0;
            object.meta.owner_references.retain_mut(|reference| {
                let is_meant = references.iter().any(|(place, _)| *place == number);
                number += 1;
                if is_meant && unblock.is_some() {
                    reference.blocks = false;
                }
                !is_meant || unblock.is_some()
            });
        });
        Outcome::Done
    }

    /// Removes all references to an owner from an object.
    pub(super) fn remove_references_to(&mut self, place: &ObjectLocation, owner: &str) -> Outcome {
        if !self.accepts_write() {
            return Outcome::Failed;
        }
        self.change(place, |object| {
            object
                .meta
                .owner_references
                .retain(|reference| *reference.uid != *owner);
        });
        Outcome::Done
    }

    pub(super) fn finish(&mut self, item: &Identity, orphan: bool) -> Outcome {
        let Some(place) = self.place(item).filter(|place| self.is_served(&place.0)) else {
            return Outcome::Failed;
        };
        if self
            .objects
            .get(&place)
            .is_some_and(|object| object.meta.uid == item.uid)
        {
            if !self.accepts_write() {
                return Outcome::Failed;
            }
            self.change(&place, |object| {
                let finalizers = &mut object.meta.finalizers;
                if orphan {
                    finalizers.orphan = false;
                } else {
                    finalizers.foreground = false;
                }
            });
        }
        Outcome::Done
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    Done,
    Gone,
    Conflict,
    Failed,
}
