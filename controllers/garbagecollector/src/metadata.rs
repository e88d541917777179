//! What is read of an object: the part of its metadata that its collection depends on, straight from the wire.

use std::fmt;

use portreeve_informer::WatchedObject;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

use crate::{graph::ReferencePositions, verdict::DeletionStage};

/// The finalizer by which an object waits for its dependents to be deleted.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer by which an object waits for its dependents to be orphaned.
pub(crate) const ORPHAN: &str = "orphan";

/// An object as its metadata shows it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct PartialObject {
    /// The part of it that counts.
    pub metadata: PartialMetadata,
}

/// The part of `metadata` that counts.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct PartialMetadata {
    /// `None` of an object of the cluster.
    #[serde(deserialize_with = "empty_is_none")]
    pub namespace: Option<Box<str>>,
    /// Unique in its namespace and resource.
    pub name: Box<str>,
    /// Unique in time and space.
    pub uid: Box<str>,
    /// Opaque; of two numbers of one resource the greater is the later.
    pub resource_version: Box<str>,
    /// Whether its deletion was asked for.
    #[serde(rename = "deletionTimestamp", deserialize_with = "is_set")]
    pub deleting: bool,
    /// What it waits for before it goes.
    pub finalizers: Finalizers,
    /// In the order that the object has them.
    #[serde(deserialize_with = "null_is_none")]
    pub owner_references: Vec<Reference>,
}

/// A reference to an owner, as it is written.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Reference {
    /// Group and version of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner.
    pub uid: Box<str>,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(rename = "blockOwnerDeletion", deserialize_with = "null_is_none")]
    pub blocks: bool,
}

/// The collector's own finalizers among an object's.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Finalizers {
    /// `foregroundDeletion`.
    pub foreground: bool,
    /// `orphan`.
    pub orphan: bool,
}

impl WatchedObject for PartialObject {
    const METADATA_ONLY: bool = true;

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

impl PartialMetadata {
    /// Its references to that owner: places and UIDs.
    pub(crate) fn references_to(&self, owner: &str) -> ReferencePositions {
        let references = self.owner_references.iter().enumerate();
        let to_owner = references.filter(|(_, reference)| *reference.uid == *owner);
        to_owner
            .map(|(place, reference)| (place, reference.uid.clone()))
            .collect()
    }

    /// How far it is on its way out. Who waits both for dependents to be orphaned and to be deleted does the former first.
    pub(crate) fn stage(&self) -> DeletionStage {
        match (self.deleting, self.finalizers) {
            (false, _) => DeletionStage::Present,
            (true, Finalizers { orphan: true, .. }) => DeletionStage::Orphaning,
            (true, Finalizers { foreground: true, .. }) => DeletionStage::WaitingForDependents,
            (true, _) => DeletionStage::Deleting,
        }
    }

    /// Whether it waits for its dependents to be deleted.
    pub(crate) fn is_waiting_for_dependents(&self) -> bool {
        self.stage() == DeletionStage::WaitingForDependents
    }
}

impl<'de> Deserialize<'de> for Finalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Finalizers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of finalizers")
            }

            fn visit_unit<E>(self) -> Result<Finalizers, E> {
                Ok(Finalizers::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Finalizers, A::Error> {
                let mut found = Finalizers::default();
                while let Some(name) = list.next_element::<std::borrow::Cow<'de, str>>()? {
                    found.foreground |= name == FOREGROUND;
                    found.orphan |= name == ORPHAN;
                }
                Ok(found)
            }
        }
        deserializer.deserialize_any(List)
    }
}

fn is_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::<IgnoredAny>::deserialize(deserializer)?.is_some())
}

fn empty_is_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<str>>, D::Error> {
    let text = Option::<Box<str>>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// `null` and an absent field mean the same in Kubernetes' JSON.
fn null_is_none<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_counts_and_null_is_nothing() {
        let seen: PartialObject = serde_json::from_str(
            r#"{"kind":"PartialObjectMetadata","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7",
                "deletionTimestamp":"2026-01-02T03:04:05Z","finalizers":["x/y","orphan"],"managedFields":[{"manager":"m"}],
                "ownerReferences":[{"apiVersion":"v1","kind":"Foo","name":"o","uid":"1","blockOwnerDeletion":null},
                                   {"apiVersion":"v1","kind":"Foo","name":"p","uid":"2","controller":true,"blockOwnerDeletion":true}]}}"#,
        )
        .unwrap();
        let PartialMetadata {
            deleting,
            finalizers,
            owner_references,
            ..
        } = &seen.metadata;
        assert!(*deleting && finalizers.orphan && !finalizers.foreground);
        assert_eq!(
            owner_references.iter().map(|owner| owner.blocks).collect::<Vec<_>>(),
            [false, true]
        );
        let bare: PartialObject = serde_json::from_str(
            r#"{"metadata":{"name":"a","namespace":"","deletionTimestamp":null,"finalizers":null,"ownerReferences":null}}"#,
        )
        .unwrap();
        let expected = PartialMetadata {
            name: "a".into(),
            ..PartialMetadata::default()
        };
        assert_eq!(bare.metadata, expected);
    }
}
