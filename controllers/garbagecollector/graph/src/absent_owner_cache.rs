//! A cache of the owners that are proven absent.
//!
//! A proof is an observed deletion, a consistent list without the object, a 404 that names the
//! object, or another UID under its name. UIDs are never reused, so a proof holds until an
//! apiserver's resourceVersions decrease. The cache keeps it as long as anything refers to the UID.
//!
//! Architecture Invariant: pure.

use std::collections::HashMap;

use crate::{identity::Identity, metadata::Reference, uid::Uid};

/// Returns the group of an apiVersion; empty for the core group.
pub(crate) fn group_of(api_version: &str) -> &str {
    api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// The owners that are proven absent, by apiVersion, kind, namespace, name and UID.
#[derive(Debug, Default)]
pub(crate) struct AbsentOwnerCache {
    by_uid: HashMap<Uid, Vec<Coordinates>>,
    count: usize,
    /// Counts of lookups with and without a proof.
    pub(crate) lookups: Lookups,
}

/// Counts of lookups in the cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lookups {
    /// Lookups that found a proof.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
}

#[derive(Debug)]
struct Coordinates {
    api_version: Box<str>,
    kind: Box<str>,
    namespace: Option<Box<str>>,
    name: Box<str>,
    /// Whether a watch or a list has shown that the object is gone, and not a read.
    is_observed: bool,
}

impl AbsentOwnerCache {
    /// Adds a proof that this object is absent. `is_observed` says whether a watch or a list has
    /// shown it, and not a read. Returns whether the proof is new.
    pub(crate) fn add(&mut self, uid: Uid, identity: &Identity, is_observed: bool) -> bool {
        let is_it = |known: &&mut Coordinates| {
            known.api_version == identity.api_version
                && known.kind == identity.kind
                && known.namespace == identity.namespace
                && known.name == identity.name
        };
        let known = self.by_uid.entry(uid).or_default();
        if let Some(same) = known.iter_mut().find(is_it) {
            same.is_observed |= is_observed;
            return false;
        }
        known.push(Coordinates {
            api_version: identity.api_version.clone(),
            kind: identity.kind.clone(),
            namespace: identity.namespace.clone(),
            name: identity.name.clone(),
            is_observed,
        });
        self.count += 1;
        true
    }

    /// Returns whether the owner that a dependent in this namespace refers to is proven absent,
    /// either in that namespace or as a cluster-scoped object. All versions of a kind have the same
    /// objects, so the proof may be by another version than the reference.
    pub(crate) fn contains(&self, uid: Uid, reference: &Reference, namespace: Option<&str>) -> bool {
        self.by_uid.get(&uid).is_some_and(|known| {
            known.iter().any(|absent| {
                (absent.namespace.is_none() || absent.namespace.as_deref() == namespace)
                    && absent.name == reference.name
                    && absent.kind == reference.kind
                    && group_of(&absent.api_version) == group_of(&reference.api_version)
            })
        })
    }

    /// Does the same as [`AbsentOwnerCache::contains`], and counts the lookup.
    pub(crate) fn lookup(&mut self, uid: Uid, reference: &Reference, namespace: Option<&str>) -> bool {
        let knows = self.contains(uid, reference, namespace);
        if knows {
            self.lookups.hits += 1;
        } else {
            self.lookups.misses += 1;
        }
        knows
    }

    /// Drops the proofs for the UID of an object that was observed, unless none is about this
    /// object. The proofs may be by any version of its API.
    pub(crate) fn forget_object(&mut self, uid: Uid, observed: &Identity) {
        let is_it = |absent: &Coordinates| {
            (absent.namespace.is_none() || absent.namespace == observed.namespace)
                && absent.name == observed.name
                && absent.kind == observed.kind
                && group_of(&absent.api_version) == group_of(&observed.api_version)
        };
        if self.by_uid.get(&uid).is_some_and(|known| known.iter().any(is_it)) {
            self.forget(uid);
        }
    }

    /// Drops the proofs for a UID that nothing refers to any more.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(known) = self.by_uid.remove(&uid) {
            self.count -= known.len();
        }
    }

    /// Keeps only the proofs about objects of which `is_kept` accepts the group, the kind, and
    /// whether a watch or a list has shown that the object is gone.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str, &str, bool) -> bool) {
        let mut count = 0;
        self.by_uid.retain(|_, known| {
            known.retain(|absent| is_kept(group_of(&absent.api_version), &absent.kind, absent.is_observed));
            count += known.len();
            !known.is_empty()
        });
        self.count = count;
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uid::Uids;

    fn reference(kind: &str, name: &str) -> Reference {
        Reference {
            api_version: "v1".into(),
            kind: kind.into(),
            name: name.into(),
            uid: "u".into(),
            blocks: false,
        }
    }

    #[test]
    fn proof_applies_to_exact_coordinates_only() {
        let uid = Uids::default().intern("u");
        let mut absences = AbsentOwnerCache::default();
        let pod = reference("Pod", "a");
        assert!(absences.add(uid, &Identity::of_owner(&pod, Some("n")), false));
        assert!(
            !absences.add(uid, &Identity::of_owner(&pod, Some("n")), false),
            "the proof is not new"
        );
        assert!(absences.lookup(uid, &pod, Some("n")));
        for (other, namespace) in [
            (&pod, Some("m")),
            (&pod, None),
            (&reference("Pod", "b"), Some("n")),
            (&reference("Node", "a"), Some("n")),
        ] {
            assert!(!absences.lookup(uid, other, namespace), "{other:?} in {namespace:?}");
        }
        assert_eq!(absences.lookups, Lookups { hits: 1, misses: 4 });
    }

    #[test]
    fn proof_applies_to_every_version_of_the_group() {
        let uid = Uids::default().intern("u");
        let mut absences = AbsentOwnerCache::default();
        let in_version = |api_version: &str| Reference {
            api_version: api_version.into(),
            ..reference("Job", "a")
        };
        absences.add(uid, &Identity::of_owner(&in_version("batch/v1"), Some("n")), true);
        assert!(absences.contains(uid, &in_version("batch/v1beta1"), Some("n")));
        assert!(!absences.contains(uid, &in_version("other/v1"), Some("n")));
    }

    #[test]
    fn proof_for_a_cluster_scoped_owner_applies_to_every_namespace() {
        let uid = Uids::default().intern("u");
        let mut absences = AbsentOwnerCache::default();
        let node = reference("Node", "a");
        absences.add(uid, &Identity::of_owner(&node, None), false);
        assert!(absences.contains(uid, &node, Some("n")) && absences.contains(uid, &node, None));
        absences.forget(uid);
        assert_eq!((absences.len(), absences.contains(uid, &node, None)), (0, false));
    }
}
