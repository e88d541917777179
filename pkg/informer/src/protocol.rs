//! The bytes of lists and watches: pages and lines in, events out. Pure.
//!
//! Objects are kept as raw slices until each is decoded by itself, so that one bad object cannot poison the rest.

use std::sync::Arc;

use bytes::BytesMut;
use portreeve_api::ObjectKey;
use serde::{Deserialize, de::Error as _};
use serde_json::value::RawValue;

use crate::{Event, Projection};

/// One page of a list.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(default)]
    pub(crate) metadata: PageMetadata,
    #[serde(borrow, default)]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

impl<'a> Page<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, BadJson> {
        serde_json::from_slice(bytes).map_err(|error| BadJson::new(&error))
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

/// The part of an object that names it, for those that decode no further.
#[derive(Deserialize)]
struct Named {
    metadata: Identity,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Identity {
    namespace: Option<Arc<str>>,
    name: Arc<str>,
    resource_version: String,
}

/// Cuts the bytes of a watch into lines, however they arrive.
#[derive(Default)]
pub(crate) struct Lines {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no end of a line: a long one is not searched again with each piece of it.
    searched: usize,
}

impl Lines {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    /// The next complete line, with its end.
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

    /// How many bytes there are of a line whose end has not come.
    pub(crate) fn unfinished(&self) -> usize {
        self.buffer.len()
    }
}

/// What a line of a watch says.
#[derive(Debug)]
pub(crate) enum Heard<T> {
    /// Something happened to an object; the watch resumes after `version`.
    Event { event: Event<T>, version: Option<String> },
    /// Nothing happened up to `version`.
    Bookmark { version: Option<String> },
    /// The apiserver gives up on this watch.
    Failed(Box<kube::core::Status>),
}

/// Decodes an object of a list.
pub(crate) fn listed<T: Projection>(raw: &RawValue) -> Event<T> {
    decode(raw).map_or_else(Bad::event, Event::Listed)
}

/// Decodes a line of a watch.
pub(crate) fn heard<T: Projection>(line: &[u8]) -> Result<Heard<T>, BadJson> {
    hear(line).map_err(|error| BadJson::new(&error))
}

fn hear<T: Projection>(line: &[u8]) -> Result<Heard<T>, serde_json::Error> {
    let Line { type_, object } = serde_json::from_slice(line)?;
    match type_ {
        "ADDED" | "MODIFIED" => Ok(match decode::<T>(object) {
            Ok(object) => Heard::Event {
                version: version(&object.metadata().resource_version),
                event: Event::Applied(object),
            },
            Err(bad) => Heard::Event {
                version: version(&bad.version),
                event: bad.event(),
            },
        }),
        "DELETED" => Ok(match decode::<T>(object) {
            Ok(object) => Heard::Event {
                version: version(&object.metadata().resource_version),
                event: Event::Deleted(object),
            },
            Err(bad) => Heard::Event {
                version: version(&bad.version),
                event: Event::DeletedUndecodable(bad.key),
            },
        }),
        "BOOKMARK" => {
            let Named { metadata } = serde_json::from_str(object.get())?;
            let version = version(&metadata.resource_version);
            Ok(Heard::Bookmark { version })
        }
        "ERROR" => Ok(Heard::Failed(serde_json::from_str(object.get())?)),
        unknown => Err(serde_json::Error::unknown_variant(
            unknown,
            &["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"],
        )),
    }
}

/// An object without a version does not say where to resume; an empty one would make the watch start anywhere.
fn version(version: &str) -> Option<String> {
    (!version.is_empty()).then(|| version.to_owned())
}

/// JSON that is not what is expected, told without the values in it: they may be secret, and this ends up in logs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadJson(String);

impl BadJson {
    fn new(error: &serde_json::Error) -> Self {
        Self(without_values(&error.to_string()))
    }
}

/// serde quotes the text that it did not expect. What it did expect stands in backticks, and stays.
fn without_values(text: &str) -> String {
    match (text.find('"'), text.rfind('"')) {
        (Some(first), Some(last)) if first < last => format!("{}\"…\"{}", &text[..first], &text[last + 1..]),
        _ => text.to_owned(),
    }
}

/// An object that is not what the projection expects.
struct Bad {
    key: ObjectKey,
    version: String,
    error: String,
}

impl Bad {
    fn event<T>(self) -> Event<T> {
        Event::Undecodable {
            key: self.key,
            error: self.error,
        }
    }
}

fn decode<T: Projection>(raw: &RawValue) -> Result<T, Bad> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let named = serde_json::from_str::<Named>(raw.get()).map(|named| named.metadata);
        let Identity {
            namespace,
            name,
            resource_version,
        } = named.unwrap_or_default();
        let name = if name.is_empty() { "(unnamed)".into() } else { name };
        Bad {
            key: ObjectKey { namespace, name },
            version: resource_version,
            error: explain::<T>(raw, &error),
        }
    })
}

/// Decodes once more, to find out in which field the error is. That is too slow to do each time.
#[cold]
fn explain<T: Projection>(raw: &RawValue, error: &serde_json::Error) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    let located = serde_path_to_error::deserialize::<_, T>(&mut deserializer).err();
    let path = located.map(|error| error.path().to_string());
    let error = without_values(&error.to_string());
    match path {
        Some(path) if path != "." => format!("{path}: {error}"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use portreeve_api::Metadata;

    use super::*;
    use crate::MetadataOnly;

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
    fn a_bad_object_in_a_list_is_named_and_the_rest_is_read() {
        let page: Page<'_> = serde_json::from_str(
            r#"{"kind":"FooList","metadata":{"resourceVersion":"9","continue":"c"},"items":[
                {"metadata":{"name":"bad","namespace":"n"},"spec":{"replicas":"three"}},
                {"metadata":{"name":"good","namespace":"n"},"spec":{"replicas":3}}]}"#,
        )
        .unwrap();
        let events: Vec<Event<Sized>> = page.items.unwrap().into_iter().map(listed).collect();
        let Event::Undecodable { key, error } = &events[0] else {
            panic!("{:?}", events[0]);
        };
        assert_eq!(*key, ObjectKey::namespaced("n", "bad"));
        // The field by name, and not the value: it may be a password in the wrong place.
        assert!(
            error.starts_with("spec.replicas: invalid type: string \"…\", expected i32"),
            "{error}"
        );
        assert!(matches!(&events[1], Event::Listed(object) if object.spec.replicas == 3));
        assert_eq!(page.metadata.next.as_deref(), Some("c"));
    }

    #[test]
    fn lines_of_a_watch_say_what_happened_and_up_to_which_version() {
        let line = |text: &str| heard::<MetadataOnly>(text.as_bytes());
        let bookmark = line(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}"#);
        assert!(matches!(bookmark, Ok(Heard::Bookmark { version: Some(v) }) if v == "12"));
        let expired = line(r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#);
        assert!(matches!(expired, Ok(Heard::Failed(status)) if status.code == 410));
        let deleted = line(r#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"13"}}}"#);
        assert!(matches!(deleted, Ok(Heard::Event { event: Event::Deleted(_), version: Some(v) }) if v == "13"));
        assert!(line(r#"{"type":"ADDED","object":"#).is_err());
    }

    #[test]
    fn a_deleted_object_that_cannot_be_decoded_is_still_deleted() {
        let line = br#"{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"5"},"spec":7}}"#;
        let heard = heard::<Sized>(line).unwrap();
        assert!(
            matches!(heard, Heard::Event { event: Event::DeletedUndecodable(key), version: Some(v) }
            if &*key.name == "a" && v == "5")
        );
    }

    #[test]
    fn an_object_is_named_even_when_its_metadata_is_wrong_too() {
        let raw: Box<RawValue> = serde_json::from_str(
            r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"5","labels":7},"spec":{"replicas":1}}"#,
        )
        .unwrap();
        let Event::Undecodable { key, error } = listed::<Sized>(&raw) else {
            panic!("it is decoded");
        };
        assert_eq!(key, ObjectKey::namespaced("n", "a"));
        assert!(error.starts_with("metadata.labels: invalid type: integer"), "{error}");
    }

    #[test]
    fn a_version_that_is_missing_is_not_an_empty_one() {
        for line in [
            r#"{"type":"BOOKMARK","object":{"metadata":{}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":7}}}"#,
        ] {
            let heard = heard::<MetadataOnly>(line.as_bytes());
            let Ok(Heard::Event { version, .. } | Heard::Bookmark { version }) = heard else {
                panic!("{heard:?}");
            };
            assert_eq!(version, None, "{line}");
        }
    }

    #[test]
    fn what_was_not_expected_is_told_without_its_value() {
        let table = [
            (
                r#"invalid type: string "a \" b", expected u8 at line 1"#,
                r#"invalid type: string "…", expected u8 at line 1"#,
            ),
            (
                "missing field `spec` at line 1 column 2",
                "missing field `spec` at line 1 column 2",
            ),
            (r#"an odd " quote"#, r#"an odd " quote"#),
        ];
        for (text, expected) in table {
            assert_eq!(without_values(text), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn lines_are_the_same_however_they_arrive(
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
