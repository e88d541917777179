//! The bytes of lists and watches: pages and lines in, events out. Pure.
//!
//! Objects are kept as raw slices until each is decoded by itself, so that one bad object cannot poison the rest.

use portreeve_api::{Metadata, ObjectKey};
use serde::Deserialize;
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
    metadata: Metadata,
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
pub(crate) fn heard<T: Projection>(line: &[u8]) -> Result<Heard<T>, serde_json::Error> {
    let Line { type_, object } = serde_json::from_slice(line)?;
    match type_ {
        "BOOKMARK" => {
            let Named { metadata } = serde_json::from_str(object.get())?;
            let version = Some(metadata.resource_version.to_string());
            Ok(Heard::Bookmark { version })
        }
        "ERROR" => Ok(Heard::Failed(serde_json::from_str(object.get())?)),
        "DELETED" => Ok(match decode::<T>(object) {
            Ok(object) => Heard::Event {
                version: Some(object.metadata().resource_version.to_string()),
                event: Event::Deleted(object),
            },
            Err(bad) => Heard::Event {
                version: bad.version,
                event: Event::DeletedUndecodable(bad.key),
            },
        }),
        _ => Ok(match decode::<T>(object) {
            Ok(object) => Heard::Event {
                version: Some(object.metadata().resource_version.to_string()),
                event: Event::Applied(object),
            },
            Err(bad) => Heard::Event {
                version: bad.version.clone(),
                event: bad.event(),
            },
        }),
    }
}

/// An object that is not what the projection expects.
struct Bad {
    key: ObjectKey,
    version: Option<String>,
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
        let metadata = named.unwrap_or_else(|_| Metadata {
            name: "(unnamed)".into(),
            ..Metadata::default()
        });
        Bad {
            key: metadata.key(),
            version: (!metadata.resource_version.is_empty()).then(|| metadata.resource_version.to_string()),
            error: error.to_string(),
        }
    })
}

#[cfg(test)]
mod tests {
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
        assert!(matches!(&events[0], Event::Undecodable { key, error }
            if *key == ObjectKey::namespaced("n", "bad") && error.contains("three")));
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
}
