//! The part of an object's metadata that garbage collection depends on, decoded straight from the
//! response.

use std::fmt;

use portreeve_api::null_as_default;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};

use crate::verdict::DeletionStage;

/// The finalizer with which an object waits until its dependents are deleted.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer with which an object waits until its dependents are orphaned.
pub const ORPHAN: &str = "orphan";

/// An object with the part of its metadata that the collector uses.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct PartialObject {
    /// Its metadata.
    pub metadata: PartialMetadata,
}

/// The fields of `metadata` that the collector uses.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct PartialMetadata {
    /// The namespace; `None` for a cluster-scoped object.
    #[serde(deserialize_with = "empty_is_none")]
    pub namespace: Option<Box<str>>,
    /// The name, unique within its namespace and resource.
    pub name: Box<str>,
    /// The UID, unique in space and time.
    pub uid: Box<str>,
    /// The resourceVersion. It is opaque, except that numeric versions of one resource can be
    /// compared: the greater one is newer.
    pub resource_version: Box<str>,
    /// Whether its deletion has been requested.
    #[serde(rename = "deletionTimestamp", deserialize_with = "is_set")]
    pub deleting: bool,
    /// The collector's finalizers that it has.
    pub finalizers: Finalizers,
    /// Its owner references, in their order in the object.
    #[serde(deserialize_with = "null_as_default")]
    pub owner_references: Vec<Reference>,
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Reference {
    /// The group and version of the owner.
    pub api_version: Box<str>,
    /// The kind of the owner.
    pub kind: Box<str>,
    /// The name of the owner.
    pub name: Box<str>,
    /// The UID of the owner.
    pub uid: Box<str>,
    /// Whether foreground deletion of the owner waits for this object.
    #[serde(rename = "blockOwnerDeletion", deserialize_with = "null_as_default")]
    pub blocks: bool,
}

/// Which of the collector's finalizers an object has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Finalizers {
    /// `foregroundDeletion`.
    pub foreground: bool,
    /// `orphan`.
    pub orphan: bool,
}

/// References of an object: the position of each, and the UID that it has there.
pub type ReferencePositions = Vec<(usize, Box<str>)>;

impl PartialMetadata {
    /// Returns the positions and UIDs of its references to that owner.
    pub fn references_to(&self, owner: &str) -> ReferencePositions {
        let references = self.owner_references.iter().enumerate();
        let to_owner = references.filter(|(_, reference)| *reference.uid == *owner);
        to_owner
            .map(|(place, reference)| (place, reference.uid.clone()))
            .collect()
    }

    /// Returns how far its deletion has progressed. With both finalizers, orphaning comes
    /// first.
    pub(crate) fn stage(&self) -> DeletionStage {
        match (self.deleting, self.finalizers) {
            (false, _) => DeletionStage::Present,
            (true, Finalizers { orphan: true, .. }) => DeletionStage::Orphaning,
            (true, Finalizers { foreground: true, .. }) => DeletionStage::WaitingForDependents,
            (true, _) => DeletionStage::Deleting,
        }
    }

    /// Returns whether it waits until its dependents are deleted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_fields_are_decoded_and_null_means_absent() {
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
