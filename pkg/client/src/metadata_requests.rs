//! Paths, media types and answers of requests for metadata.
//!
//! Architecture Invariant: pure.

use std::fmt::Write;

use portreeve_api::Resource;
use serde::Deserialize;

/// The `Accept` header for the metadata of one object.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// The `Accept` header for a list of the metadata of objects.
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// An object cannot have this name: in a path, it would name something else.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid object name {0:?}")]
pub struct InvalidObjectName(String);

/// Returns the path of an object. A reference can contain any name, so names that would change the
/// path are rejected.
///
/// # Errors
/// Returns an error for such a name.
pub fn object_path(resource: &Resource, namespace: Option<&str>, name: &str) -> Result<String, InvalidObjectName> {
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', '%']) {
        return Err(InvalidObjectName(name.to_owned()));
    }
    let mut path = resource.collection_path(namespace);
    path.push('/');
    escape(name, &mut path);
    Ok(path)
}

/// Returns the path of one page of a list in a namespace, or in all: the first, or the one that
/// `next` names.
pub fn page_path(resource: &Resource, namespace: Option<&str>, limit: u32, next: Option<&str>) -> String {
    let mut path = format!("{}?limit={limit}", resource.collection_path(namespace));
    if let Some(next) = next {
        path.push_str("&continue=");
        escape(next, &mut path);
    }
    path
}

/// Returns the path of the list of the objects with this name, of which there is at most one if
/// the resource has no namespaces.
pub fn named_path(resource: &Resource, name: &str) -> String {
    let mut path = format!("{}?fieldSelector=metadata.name%3D", resource.collection_path(None));
    escape(name, &mut path);
    path
}

/// Appends `text`, percent-encoded for a path or a query.
fn escape(text: &str, path: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' | b'@' => path.push(byte.into()),
            // Writing to a string never fails.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
}

/// The answer to a request for one page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct ListPage<T> {
    kind: String,
    #[serde(default)]
    metadata: PageMetadata,
    /// The field may be null, but must be present.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<T>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
    resource_version: String,
}

/// The response is not a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the response is not a list")]
pub struct NotAList;

impl<T> ListPage<T> {
    /// Returns the resourceVersion of the list.
    pub fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }

    /// Returns the items, and the name of the next page unless this is the last.
    ///
    /// # Errors
    /// An answer of another kind is an error: taken for an empty list, it would hide objects.
    pub fn into_items(self) -> Result<(Vec<T>, Option<String>), NotAList> {
        if !self.kind.ends_with("List") {
            return Err(NotAList);
        }
        let next = self.metadata.next.filter(|next| !next.is_empty());
        Ok((self.items.unwrap_or_default(), next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

    #[test]
    fn names_that_would_change_the_path_are_rejected() {
        let path = |name: &str| object_path(&PODS, Some("n"), name).ok();
        assert_eq!(path("a-b.c").as_deref(), Some("/api/v1/namespaces/n/pods/a-b.c"));
        assert_eq!(
            path("system:x?y#z").as_deref(),
            Some("/api/v1/namespaces/n/pods/system:x%3Fy%23z")
        );
        for name in ["", ".", "..", "../secrets/s", "a/b", "a%2fb"] {
            assert_eq!(path(name), None, "{name}");
        }
    }

    #[test]
    fn queries_are_encoded() {
        assert_eq!(page_path(&PODS, None, 5, None), "/api/v1/pods?limit=5");
        assert_eq!(
            page_path(&PODS, Some("n"), 5, Some("a+b=")),
            "/api/v1/namespaces/n/pods?limit=5&continue=a%2Bb%3D"
        );
        assert_eq!(
            named_path(&PODS, "a&b"),
            "/api/v1/pods?fieldSelector=metadata.name%3Da%26b"
        );
    }

    #[test]
    fn only_a_list_with_items_is_a_list() {
        let items = |json: &str| {
            let page = serde_json::from_str::<ListPage<u8>>(json).ok()?;
            page.into_items().ok()
        };
        assert_eq!(items(r#"{"kind":"PodList","items":null}"#), Some((vec![], None)));
        assert_eq!(
            items(r#"{"kind":"List","metadata":{"continue":"c"},"items":[1]}"#),
            Some((vec![1], Some("c".to_owned())))
        );
        assert_eq!(
            items(r#"{"kind":"List","metadata":{"continue":""},"items":[1]}"#),
            Some((vec![1], None))
        );
        for other in [
            r#"{"kind":"Pod","items":[]}"#,
            r#"{"kind":"PodList"}"#,
            r#"{"items":[]}"#,
        ] {
            assert_eq!(items(other), None, "{other}");
        }
    }
}
