//! Decodes the bytes of lists and watches: pages and lines in, events out.
//!
//! Each object stays a raw slice until it is decoded individually, so one bad object does not
//! affect the others.
//!
//! Architecture Invariant: pure.

use std::{
    borrow::Cow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::BytesMut;
use portreeve_api::ObjectKey;
use serde::{
    Deserialize,
    de::{Error as _, Unexpected},
};
use serde_json::value::RawValue;

use crate::{
    Event, WatchedObject,
    explain::{JsonError, explain},
};

/// One page of a list.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    pub(crate) metadata: PageMetadata,
    /// May be null, but not absent.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

impl<'a> Page<'a> {
    /// Decodes a page, and rejects any response that is not a list. Objects that are missing from a
    /// list count as deleted, so another response (of a proxy, for example) must not be decoded as
    /// an empty list.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let page: Self = serde_json::from_slice(bytes).map_err(|error| JsonError::new(&error))?;
        // The kind cannot be checked further, because a CRD may choose any kind for its lists.
        if page.kind != "Status" && page.metadata.resource_version.is_some() {
            Ok(page)
        } else {
            let error = serde_json::Error::invalid_value(Unexpected::Str(&page.kind), &"a list with a resourceVersion");
            Err(JsonError::new(&error))
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PageMetadata {
    pub(crate) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}

/// One line of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    type_: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The fields that are read from an object that cannot be decoded, and from a bookmark.
#[derive(Deserialize)]
struct Named {
    metadata: Identity,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Identity {
    namespace: Option<Arc<str>>,
    name: Arc<str>,
    uid: Arc<str>,
    resource_version: String,
}

/// Splits the bytes of a watch into lines. The bytes may arrive in any pieces.
#[derive(Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// The length of the prefix that contains no line end. A long line is thus not searched again
    /// with each new piece.
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// Returns the next complete line, including its line end.
    pub(crate) fn next(&mut self) -> Option<BytesMut> {
        let rest = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(end) = memchr::memchr(b'\n', rest) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end + 1);
        self.searched = 0;
        Some(line)
    }

    /// Returns the size of the incomplete last line in bytes.
    pub(crate) fn unfinished(&self) -> usize {
        self.buffer.len()
    }
}

/// An event whose object is not decoded yet. Each reader of a watch decodes it into its own type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RawEvent<'a> {
    /// A list begins.
    Relisting,
    /// An object in the list.
    Listed(&'a RawValue),
    /// The list is complete.
    Synced,
    /// An object was added.
    Added(&'a RawValue),
    /// An object was changed.
    Applied(&'a RawValue),
    /// An object was deleted.
    Deleted(&'a RawValue),
}

impl RawEvent<'_> {
    /// Returns by how much a change that a watch reports changes the number of objects.
    pub(crate) fn count_change(&self) -> i64 {
        match self {
            Self::Added(_) => 1,
            Self::Deleted(_) => -1,
            Self::Relisting | Self::Listed(_) | Self::Synced | Self::Applied(_) => 0,
        }
    }
}

/// A line of a watch.
#[derive(Debug)]
pub(crate) enum WatchMessage<'a> {
    /// An object changed.
    Event(RawEvent<'a>),
    /// All changes up to `version` have been sent.
    Bookmark { version: Option<String> },
    /// The apiserver ends the watch with an error.
    Failed(Box<kube::core::Status>),
}

/// Reads a line of a watch.
pub(crate) fn read_line(line: &[u8]) -> Result<WatchMessage<'_>, JsonError> {
    parse_line(line).map_err(|error| JsonError::new(&error))
}

fn parse_line(line: &[u8]) -> Result<WatchMessage<'_>, serde_json::Error> {
    let Line { type_, object } = serde_json::from_slice(line)?;
    match type_ {
        "ADDED" => Ok(WatchMessage::Event(RawEvent::Added(object))),
        "MODIFIED" => Ok(WatchMessage::Event(RawEvent::Applied(object))),
        "DELETED" => Ok(WatchMessage::Event(RawEvent::Deleted(object))),
        "BOOKMARK" => {
            let Named { metadata } = serde_json::from_str(object.get())?;
            let version = version(&metadata.resource_version);
            Ok(WatchMessage::Bookmark { version })
        }
        "ERROR" => Ok(WatchMessage::Failed(serde_json::from_str(object.get())?)),
        unknown => Err(serde_json::Error::unknown_variant(
            unknown,
            &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"],
        )),
    }
}

/// Decodes an event. For a change that a watch reports, also returns the version after which the
/// watch resumes.
pub(crate) fn decode<T: WatchedObject>(event: RawEvent<'_>) -> (Event<T>, Option<String>) {
    let (raw, is_deletion) = match event {
        RawEvent::Relisting => return (Event::Relisting, None),
        RawEvent::Synced => return (Event::Synced, None),
        RawEvent::Listed(raw) => return (decode_object(raw).map_or_else(Undecodable::event, Event::Listed), None),
        RawEvent::Added(raw) | RawEvent::Applied(raw) => (raw, false),
        RawEvent::Deleted(raw) => (raw, true),
    };
    match decode_object::<T>(raw) {
        Ok(object) => {
            let version = version(object.resource_version());
            let event = if is_deletion { Event::Deleted } else { Event::Applied };
            (event(object), version)
        }
        Err(undecodable) => {
            let version = version(&undecodable.version);
            let event = if is_deletion {
                Event::DeletedUndecodable(undecodable.key)
            } else {
                undecodable.event()
            };
            (event, version)
        }
    }
}

/// Returns the version, or `None` if it is empty. A watch cannot resume there: an empty version in
/// a request would start the watch at an arbitrary point.
fn version(version: &str) -> Option<String> {
    (!version.is_empty()).then(|| version.to_owned())
}

/// An object that cannot be decoded into the projection.
struct Undecodable {
    key: ObjectKey,
    uid: Arc<str>,
    version: String,
    error: String,
}

impl Undecodable {
    fn event<T>(self) -> Event<T> {
        Event::Undecodable {
            key: self.key,
            uid: self.uid,
            error: self.error,
        }
    }
}

fn decode_object<T: WatchedObject>(raw: &RawValue) -> Result<T, Undecodable> {
    // The decoder belongs to the projection. Like an error, a panic of it makes the object
    // undecodable.
    let decoded = catch_unwind(AssertUnwindSafe(|| {
        let object: T = serde_json::from_str(raw.get())?;
        let is_named = !object.name().is_empty();
        Ok((object, is_named))
    }));
    let error = match decoded {
        Ok(Ok((object, true))) => return Ok(object),
        Ok(Ok((_, false))) => "metadata.name: missing".to_owned(),
        Ok(Err(error)) => explain::<T>(raw, &error),
        Err(_) => "the decoder panicked".to_owned(),
    };
    let named = serde_json::from_str::<Named>(raw.get()).map(|named| named.metadata);
    let Identity {
        namespace,
        name,
        uid,
        resource_version,
    } = named.unwrap_or_default();
    let name = if name.is_empty() { "(unnamed)".into() } else { name };
    Err(Undecodable {
        key: ObjectKey { namespace, name },
        uid,
        version: resource_version,
        error,
    })
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
pub(crate) mod decoded;
#[cfg(test)]
mod tests {
    use portreeve_api::Metadata;

    use super::{
        decoded::{Decoded, decode_item, decode_line},
        *,
    };
    use crate::{MetadataOnly, Projection};

    #[derive(Debug, Deserialize)]
    struct Sized {
        metadata: Metadata,
        spec: Size,
    }

    #[derive(Debug, Deserialize)]
    struct Size {
        replicas: i32,
    }

    impl Projection for Sized {
        fn metadata(&self) -> &Metadata {
            &self.metadata
        }
    }

    #[test]
    fn a_bad_object_in_a_list_is_reported_and_the_others_are_decoded() {
        let page: Page<'_> = serde_json::from_str(
            r#"{"kind":"FooList","metadata":{"resourceVersion":"9","continue":"c"},"items":[
                {"metadata":{"name":"bad","namespace":"n"},"spec":{"replicas":"three"}},
                {"metadata":{"name":"good","namespace":"n"},"spec":{"replicas":3}}]}"#,
        )
        .unwrap();
        let events: Vec<Event<Sized>> = page.items.unwrap().into_iter().map(decode_item).collect();
        let Event::Undecodable { key, error, .. } = &events[0] else {
            panic!("{:?}", events[0]);
        };
        assert_eq!(*key, ObjectKey::namespaced("n", "bad"));
        // The error names the field but not the value, which may be a misplaced password.
        assert_eq!(error, "spec.replicas: invalid type, expected i32");
        assert!(matches!(&events[1], Event::Listed(object) if object.spec.replicas == 3));
        assert_eq!(page.metadata.next.as_deref(), Some("c"));
    }

    #[test]
    fn watch_lines_are_decoded_with_their_version() {
        let line = |text: &str| decode_line::<MetadataOnly>(text.as_bytes());
        let bookmark = line(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}"#);
        assert!(matches!(bookmark, Ok(Decoded::Bookmark { version: Some(v) }) if v == "12"));
        let expired = line(r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#);
        assert!(matches!(expired, Ok(Decoded::Failed(status)) if status.code == 410));
        let deleted = line(r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"13"}}}"#);
        assert!(matches!(deleted, Ok(Decoded::Event { event: Event::Deleted(_), version: Some(v) }) if v == "13"));
        assert!(line(r#"{"type":"ADDED","object":"#).is_err());
    }

    #[test]
    fn a_deleted_object_that_cannot_be_decoded_is_still_deleted() {
        let line = br#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"5"},"spec":7}}"#;
        let message = decode_line::<Sized>(line).unwrap();
        assert!(
            matches!(message, Decoded::Event { event: Event::DeletedUndecodable(key), version: Some(v) }
            if &*key.name == "a" && v == "5")
        );
    }

    #[test]
    fn an_undecodable_object_with_bad_metadata_is_still_named() {
        let raw: Box<RawValue> = serde_json::from_str(
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"5","labels":7},"spec":{"replicas":1}}"#,
        )
        .unwrap();
        let Event::Undecodable { key, error, .. } = decode_item::<Sized>(&raw) else {
            panic!("the object was decoded");
        };
        assert_eq!(key, ObjectKey::namespaced("n", "a"));
        assert!(error.starts_with("metadata.labels: invalid type, expected "), "{error}");
    }

    #[test]
    fn an_object_whose_decoder_panics_is_reported_as_undecodable() {
        #[derive(Debug)]
        struct Panics;
        impl<'de> Deserialize<'de> for Panics {
            fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                panic!("hunter2");
            }
        }
        impl Projection for Panics {
            fn metadata(&self) -> &Metadata {
                unreachable!("no value exists");
            }
        }
        let line = br#"{"type":"MODIFIED","object":{"metadata":{"name":"a","uid":"u","resourceVersion":"5"}}}"#;
        let message = decode_line::<Panics>(line).unwrap();
        assert!(
            matches!(&message, Decoded::Event { event: Event::Undecodable { key, uid, error }, version: Some(v) }
            if &*key.name == "a" && &**uid == "u" && error == "the decoder panicked" && v == "5"),
            "{message:?}"
        );
    }

    #[test]
    fn a_missing_version_is_not_decoded_as_an_empty_one() {
        for line in [
            r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#,
        ] {
            let message = decode_line::<MetadataOnly>(line.as_bytes());
            let Ok(Decoded::Event { version, .. } | Decoded::Bookmark { version }) = message else {
                panic!("{message:?}");
            };
            assert_eq!(version, None, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_are_split(
            lines in proptest::collection::vec("[a-z]{0,6}", 0..8),
            cuts in proptest::collection::vec(1..9_usize, 0..40),
        ) {
            let whole = format!("{}rest", lines.iter().flat_map(|line| [line, "\n"]).collect::<String>());
            let (mut found, mut buffer, mut rest) = (Vec::new(), Lines::default(), whole.as_bytes());
            for cut in cuts.into_iter().chain([whole.len()]) {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                buffer.push(piece);
                rest = left;
                while let Some(line) = buffer.next() {
                    found.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                }
            }
            proptest::prop_assert_eq!(found, lines);
            proptest::prop_assert_eq!(buffer.unfinished(), 4);
        }
    }
}
