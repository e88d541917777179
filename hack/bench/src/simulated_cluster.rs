//! A cluster of any size, as its watches tell of it. Pure: the same size is always the same cluster.

/// What a watch tells of an object, as far as a garbage collector looks at it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SimulatedObject {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// As the apiserver counts: one for each change of anything.
    pub(crate) version: u64,
    /// Its controller, which it has or has not.
    pub(crate) owner: Option<Owner>,
}

/// As an owner reference has it. It keeps a foreground deletion waiting, as the references of controllers do.
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
    /// In the order of their numbers.
    pub(crate) const ALL: [Self; 4] = [Self::Deployment, Self::ReplicaSet, Self::Pod, Self::ConfigMap];

    /// Group and version, and the kind, as objects have them.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Deployment => ("apps/v1", "Deployment"),
            Self::ReplicaSet => ("apps/v1", "ReplicaSet"),
            Self::Pod => ("v1", "Pod"),
            Self::ConfigMap => ("v1", "ConfigMap"),
        }
    }
}

/// What one application is made of, and the place of each object's owner among them: a deployment, a replica set that has been replaced
/// and the one that has its pods, and a ConfigMap that nobody owns.
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
/// How many applications share a namespace.
const SHARE: usize = 100;

/// The object at a place of the cluster, in a round of changes: round 0 is how it is created.
pub(crate) fn object(place: usize, count: usize, round: usize) -> SimulatedObject {
    let (application, part) = (place / APPLICATION.len(), place % APPLICATION.len());
    let (kind, owner) = APPLICATION[part];
    let owner = owner.map(|part| Owner {
        kind: APPLICATION[part].0,
        name: name(application, part),
        uid: uid(application * APPLICATION.len() + part),
    });
    SimulatedObject {
        kind,
        namespace: format!("team-{:04}", application / SHARE),
        name: name(application, part),
        uid: uid(place),
        version: (1 + place + count * round) as u64,
        owner,
    }
}

/// As long as names are that controllers make.
fn name(application: usize, part: usize) -> String {
    let hash = mixed(application as u64) >> 32;
    match APPLICATION[part].0 {
        Kind::Deployment => format!("application-{application:06}"),
        Kind::ConfigMap => format!("application-{application:06}-settings"),
        Kind::ReplicaSet => format!("application-{application:06}-{hash:08x}{part}"),
        Kind::Pod => format!("application-{application:06}-{hash:08x}2-{part:05x}"),
    }
}

/// A UUID, of which no two places have the same.
fn uid(place: usize) -> String {
    let (high, low) = (mixed(place as u64), mixed(!(place as u64)));
    // Fourth version, and the usual variant.
    let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 1 << 63);
    let (first, second, third) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
    format!(
        "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}",
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Bits that look like chance (the finalizer of `SplitMix64`): no order of them is left for a map to profit from.
fn mixed(number: u64) -> u64 {
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
    fn every_owner_is_in_the_cluster_and_nobody_is_twice() {
        let count = 20_000;
        let all: Vec<SimulatedObject> = (0..count).map(|place| object(place, count, 0)).collect();
        let by_uid: HashMap<&str, &SimulatedObject> = all.iter().map(|seen| (&*seen.uid, seen)).collect();
        assert_eq!(by_uid.len(), count);
        for owner in all.iter().filter_map(|seen| seen.owner.as_ref()) {
            let found = by_uid[&*owner.uid];
            assert_eq!((found.kind, &found.name), (owner.kind, &owner.name));
        }
        assert_eq!(all.iter().filter(|seen| seen.owner.is_some()).count(), count / 10 * 8);
    }

    #[test]
    fn an_object_changes_in_nothing_but_its_version() {
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
    fn names_and_uids_are_such_as_a_cluster_has() {
        let pod = object(8, 10, 0);
        assert_eq!(pod.name, "application-000000-e220a8392-00008");
        assert_eq!(pod.uid.len(), 36);
        assert_eq!((&pod.uid[14..15], pod.namespace.as_str()), ("4", "team-0000"));
    }
}
