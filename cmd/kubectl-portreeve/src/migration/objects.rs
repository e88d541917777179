//! Lists the metadata of objects in pages.

use std::collections::BTreeMap;

use kube::{
    Api,
    api::ListParams,
    core::{DynamicObject, ListMeta, Request},
};
use portreeve_api::null_as_default;
use portreeve_client::ApiErrorKind;
use serde::Deserialize;

use super::{cluster::Cluster, definition::Definition, error::Error, retry::retry};

/// How often a list begins again because its continue token has expired.
const RESTARTS: u32 = 100;

/// An object of which only the metadata was requested.
#[derive(Deserialize)]
pub(super) struct PartialObject {
    pub(super) metadata: ListedObject,
}

/// A list of objects of which only the metadata was requested.
#[derive(Deserialize)]
struct PartialObjectList {
    metadata: ListMeta,
    /// `null` if there are none.
    #[serde(deserialize_with = "null_as_default")]
    items: Vec<PartialObject>,
}

/// The metadata of an object. It lacks the managed fields, which may be too deep to be decoded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListedObject {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Its annotations.
    annotations: Option<BTreeMap<String, String>>,
}

impl ListedObject {
    /// Returns `namespace/name`, or the name of a cluster-scoped object.
    pub(super) fn key(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns whether the object has one of these annotations.
    pub(super) fn has_any(&self, annotations: &[String]) -> bool {
        let mut own = self.annotations.iter().flatten();
        own.any(|(own, _)| annotations.contains(own))
    }
}

/// A part of the list.
pub(super) struct Page {
    /// Whether the list begins with it. What earlier pages contained is then outdated.
    pub(super) is_first: bool,
    pub(super) objects: Vec<ListedObject>,
    /// The number of objects in this page and in those before, since the first one.
    pub(super) seen: u64,
    /// The number of objects in the pages that follow.
    pub(super) remaining: u64,
    /// The version of the list.
    pub(super) resource_version: String,
}

/// A list of all objects in one version of the definition, as they are now.
pub(super) struct Pages<'a> {
    cluster: &'a Cluster,
    api: Api<DynamicObject>,
    version: &'a str,
    parameters: ListParams,
    is_first: bool,
    seen: u64,
    has_ended: bool,
    restarts: u32,
}

impl<'a> Pages<'a> {
    pub(super) fn new(cluster: &'a Cluster, definition: &Definition, version: &'a str, size: u32) -> Self {
        Self {
            cluster,
            api: Api::all_with(cluster.client.clone(), &definition.resource(version)),
            version,
            parameters: ListParams::default().limit(size),
            is_first: true,
            seen: 0,
            has_ended: false,
            restarts: 0,
        }
    }

    async fn list(&self) -> kube::Result<PartialObjectList> {
        let request = Request::new(self.api.resource_url()).list_metadata(&self.parameters);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.cluster.client.request(request).await
    }

    /// Returns the next page, or `None` after the last one. Begins again with the first page if the
    /// apiserver no longer has the list.
    pub(super) async fn next(&mut self) -> Result<Option<Page>, Error> {
        let is_expired = |error: &kube::Error| ApiErrorKind::of(error) == ApiErrorKind::Expired;
        while !self.has_ended {
            let listed = retry(is_expired, || self.list()).await;
            match listed {
                Ok(listed) => {
                    let token = listed.metadata.continue_.filter(|token| !token.is_empty());
                    self.has_ended = token.is_none();
                    self.parameters.continue_token = token;
                    self.seen += listed.items.len() as u64;
                    let remaining = listed.metadata.remaining_item_count.unwrap_or_default();
                    return Ok(Some(Page {
                        is_first: std::mem::take(&mut self.is_first),
                        objects: listed.items.into_iter().map(|object| object.metadata).collect(),
                        seen: self.seen,
                        remaining: u64::try_from(remaining).unwrap_or_default(),
                        resource_version: listed.metadata.resource_version.unwrap_or_default(),
                    }));
                }
                Err(error) if is_expired(&error) && self.restarts < RESTARTS => {
                    self.restarts += 1;
                    self.is_first = true;
                    self.seen = 0;
                    self.parameters.continue_token = None;
                }
                Err(source) => {
                    return Err(Error::List {
                        name: self.cluster.name.clone(),
                        version: self.version.to_owned(),
                        source,
                    });
                }
            }
        }
        Ok(None)
    }
}

/// Returns the keys of the objects that `is_wanted`, in order, and the number of all objects.
pub(super) async fn find(
    mut pages: Pages<'_>,
    is_wanted: impl Fn(&ListedObject) -> bool,
) -> Result<(Vec<String>, u64), Error> {
    let (mut found, mut count) = (Vec::new(), 0);
    while let Some(page) = pages.next().await? {
        if page.is_first {
            found.clear();
        }
        count = page.seen;
        found.extend(
            page.objects
                .iter()
                .filter(|object| is_wanted(object))
                .map(ListedObject::key),
        );
    }
    found.sort();
    Ok((found, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_objects_is_empty() {
        let list: PartialObjectList = serde_json::from_str(r#"{"metadata":{},"items":null}"#).unwrap();
        assert!(list.items.is_empty());
    }

    /// The apiserver stores managed fields of any depth.
    #[test]
    fn objects_of_any_depth_are_listed() {
        const DEPTH: usize = 100_000;
        let deep = format!("{}{}", "{\"f:a\":[".repeat(DEPTH), "]}".repeat(DEPTH));
        let list = format!(
            r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{{"metadata":{{"namespace":"n","name":"a","uid":"u",
                "resourceVersion":"7","annotations":{{"x":"y"}},"managedFields":[{{"fieldsV1":{deep}}}]}}}}]}}"#
        );
        let list: PartialObjectList = serde_json::from_str(&list).unwrap();
        let [PartialObject { metadata }] = &list.items[..] else {
            panic!("one object");
        };
        assert_eq!((&*metadata.key(), &*metadata.resource_version), ("n/a", "7"));
        assert!(metadata.has_any(&["x".to_owned()]) && !metadata.has_any(&["y".to_owned()]));
    }
}
