//! What is proven not to exist. Pure.
//!
//! A proof is a deletion that was seen, a consistent list without the object, or an answer of 404 that names it; a UID never comes back,
//! so it holds for good, or until an apiserver's versions go back. It is kept as long as anything refers to the UID.

use std::collections::HashMap;

use crate::{identity::Identity, metadata::Reference, uid::Uid};

/// Owners that are proven absent, by apiVersion, kind, namespace, name and UID.
#[derive(Debug, Default)]
pub(crate) struct AbsentOwnerCache {
    by_uid: HashMap<Uid, Vec<Coordinates>>,
    count: usize,
    /// How many look-ups found a proof, and how many did not.
    pub(crate) lookups: Lookups,
}

/// How often a proof was asked for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lookups {
    /// There was one.
    pub hits: u64,
    /// There was none.
    pub misses: u64,
}

#[derive(Debug, Eq, PartialEq)]
struct Coordinates {
    api_version: Box<str>,
    kind: Box<str>,
    namespace: Option<Box<str>>,
    name: Box<str>,
}

impl AbsentOwnerCache {
    /// It is proven that there is no such object. Returns whether that is new.
    pub(crate) fn add(&mut self, uid: Uid, identity: &Identity) -> bool {
        let coordinates = Coordinates {
            api_version: identity.api_version.clone(),
            kind: identity.kind.clone(),
            namespace: identity.namespace.clone(),
            name: identity.name.clone(),
        };
        let known = self.by_uid.entry(uid).or_default();
        let is_new = !known.contains(&coordinates);
        if is_new {
            known.push(coordinates);
            self.count += 1;
        }
        is_new
    }

    /// Whether what a dependent in this namespace refers to is proven absent: there, or in the cluster.
    pub(crate) fn contains(&self, uid: Uid, reference: &Reference, namespace: Option<&str>) -> bool {
        self.by_uid.get(&uid).is_some_and(|known| {
            known.iter().any(|absent| {
                (absent.namespace.is_none() || absent.namespace.as_deref() == namespace)
                    && absent.name == reference.name
                    && absent.kind == reference.kind
                    && absent.api_version == reference.api_version
            })
        })
    }

    /// The same, counted.
    pub(crate) fn lookup(&mut self, uid: Uid, reference: &Reference, namespace: Option<&str>) -> bool {
        let knows = self.contains(uid, reference, namespace);
        if knows {
            self.lookups.hits += 1;
        } else {
            self.lookups.misses += 1;
        }
        knows
    }

    /// Nothing refers to the UID any more, or there is an object that has it.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if let Some(known) = self.by_uid.remove(&uid) {
            self.count -= known.len();
        }
    }

    /// Nothing is proven any more.
    pub(crate) fn clear(&mut self) {
        self.by_uid.clear();
        self.count = 0;
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
    fn a_proof_is_of_the_very_coordinates() {
        let uid = Uids::default().intern("u");
        let mut absences = AbsentOwnerCache::default();
        let pod = reference("Pod", "a");
        assert!(absences.add(uid, &Identity::of_owner(&pod, Some("n"))));
        assert!(
            !absences.add(uid, &Identity::of_owner(&pod, Some("n"))),
            "it is known already"
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
    fn what_is_absent_in_the_cluster_is_so_for_every_namespace() {
        let uid = Uids::default().intern("u");
        let mut absences = AbsentOwnerCache::default();
        let node = reference("Node", "a");
        absences.add(uid, &Identity::of_owner(&node, None));
        assert!(absences.contains(uid, &node, Some("n")) && absences.contains(uid, &node, None));
        absences.forget(uid);
        assert_eq!((absences.len(), absences.contains(uid, &node, None)), (0, false));
    }
}
