//! The objects of a simulated cluster of any size, as watches deliver them. Pure: the same size
//! gives the same cluster.

/// The metadata of an object that a garbage collector reads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SimulatedObject {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The resource version. Each change of any object increments the latest version of the
    /// cluster.
    pub(crate) version: u64,
    /// The owner of the object, if it has one.
    pub(crate) owner: Option<Owner>,
}

/// An owner reference. It blocks a foreground deletion, as the references of controllers do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Owner {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) uid: String,
}

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum Kind {
    Deployment,
    ReplicaSet,
    Pod,
    ConfigMap,
}

impl Kind {
    /// All kinds, in the order of their discriminants.
    pub(crate) const ALL: [Self; 4] = [Self::Deployment, Self::ReplicaSet, Self::Pod, Self::ConfigMap];

    /// Returns the `apiVersion` and the kind.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("apps/v1", "Deployment"),
            Self::ReplicaSet => ("apps/v1", "ReplicaSet"),
            Self::Pod => ("v1", "Pod"),
            Self::ConfigMap => ("v1", "ConfigMap"),
        }
    }
}

/// The objects of an application, with the index of each object's owner: a deployment, an old
/// replica set, the current one with its pods, and a `ConfigMap` without an owner.
const APPLICATION: [(Kind, Option<usize>); 10] = [
    (Kind::Deployment, None),
    (Kind::ReplicaSet, Some(0)),
    (Kind::ReplicaSet, Some(0)),
    (Kind::Pod, Some(2)),
    (Kind::Pod, Some(2)),
    (Kind::Pod, Some(2)),
    (Kind::Pod, Some(2)),
    (Kind::Pod, Some(2)),
    (Kind::Pod, Some(2)),
    (Kind::ConfigMap, None),
];
/// The number of applications in a namespace.
const APPLICATIONS_PER_NAMESPACE: usize = 100;

/// Returns the object with this index in a cluster of `count` objects, after `round` changes of
/// each object.
pub(crate) fn object(index: usize, count: usize, round: usize) -> SimulatedObject {
    let (application, part) = (index / APPLICATION.len(), index % APPLICATION.len());
    let (kind, owner) = APPLICATION[part];
    let owner = owner.map(|part| Owner {
        kind: APPLICATION[part].0,
        name: name(application, part),
        uid: uid(application * APPLICATION.len() + part),
    });
    SimulatedObject {
        kind,
        namespace: format!("team-{:04}", application / APPLICATIONS_PER_NAMESPACE),
        name: name(application, part),
        uid: uid(index),
        version: (1 + index + count * round) as u64,
        owner,
    }
}

/// Returns a name as long as those of real controllers.
fn name(application: usize, part: usize) -> String {
    let hash = mix(application as u64) >> 32;
    match APPLICATION[part].0 {
        Kind::Deployment => format!("application-{application:06}"),
        Kind::ConfigMap => format!("application-{application:06}-settings"),
        Kind::ReplicaSet => format!("application-{application:06}-{hash:08x}{part}"),
        Kind::Pod => format!("application-{application:06}-{hash:08x}2-{part:05x}"),
    }
}

/// Returns a UUID that is unique to the index.
fn uid(index: usize) -> String {
    let (high, low) = (mix(index as u64), mix(!(index as u64)));
    // Version 4, variant 1.
    let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 1 << 63);
    let (first, second, third) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!(
        "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}",
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Returns pseudorandom bits (the finalizer of `SplitMix64`), so that a map cannot profit from the
/// order of keys.
fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn every_owner_exists_and_uids_are_unique() {
        let count = 20_000;
        let all: Vec<SimulatedObject> = (0..count).map(|index| object(index, count, 0)).collect();
        let by_uid: HashMap<&str, &SimulatedObject> = all.iter().map(|seen| (&*seen.uid, seen)).collect();
        assert_eq!(by_uid.len(), count);
        for owner in all.iter().filter_map(|seen| seen.owner.as_ref()) {
            let found = by_uid[&*owner.uid];
            assert_eq!((found.kind, &found.name), (owner.kind, &owner.name));
        }
        assert_eq!(all.iter().filter(|seen| seen.owner.is_some()).count(), count / 10 * 8);
    }

    #[test]
    fn a_change_affects_only_the_version() {
        let (first, second) = (object(1234, 5000, 0), object(1234, 5000, 1));
        assert_eq!((first.version, second.version), (1235, 6235));
        assert_eq!(
            SimulatedObject {
                version: 1235,
                ..second
            },
            first
        );
    }

    #[test]
    fn names_and_uids_look_like_those_of_a_real_cluster() {
        let pod = object(8, 10, 0);
        assert_eq!(pod.name, "application-000000-e220a8392-00008");
        assert_eq!(pod.uid.len(), 36);
        assert_eq!((&pod.uid[14..15], pod.namespace.as_str()), ("4", "team-0000"));
    }
}
