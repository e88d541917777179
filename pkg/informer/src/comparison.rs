//! Compares each watch with a fresh list, for callers that must know whether its readers are up to
//! date.
//!
//! This needs no second copy of the objects. The loop of a watch counts its objects, and knows the
//! resourceVersion W up to which every reader has processed every change. Take a consistent list as
//! of L, with `n` objects of which the newest has the version N:
//!
//! - If W ≥ L, every change up to L was processed.
//! - If N ≤ W, nothing was created or changed after W and up to L. Only deletions can be missing,
//!   and each of them changes the number of objects. So if the watch has `n` objects, its readers
//!   have exactly the listed ones.
//!
//! A version that decreases, as after a restore of etcd from a backup, is never up to date.
//!
//! etcd has one counter for all that it stores. If all lists are as of the same version, and a
//! later request shows the same one, nothing was written since, and no list would be different.

use std::{collections::BTreeSet, sync::Arc};

use futures::{StreamExt, stream};
use http::{Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_api::{CRDS, ObjectKey, Resource};
use portreeve_client::{ApiErrorKind, METADATA_LIST, error_chain, refusal};
use serde::{Deserialize, de::IgnoredAny};

use crate::{Factory, Watch, explain::JsonError, protocol::Page, shared_watch::SharedWatch, watch::Query};

const EVENTS: Resource = Resource::namespaced("", "v1", "Event", "events");
/// The number of lists that are requested at once.
const LISTS: usize = 8;

/// The result of [`Factory::compare`].
#[derive(Debug, Default)]
pub struct Comparison {
    /// The names of the watches that are not up to date, and why, sorted by name.
    pub lags: Vec<(String, Lag)>,
    /// The listed objects that are being deleted and have finalizers, sorted.
    pub terminating: Vec<TerminatingObject>,
    /// The names of the listed CustomResourceDefinitions.
    pub definitions: Vec<Arc<str>>,
    /// What was compared, if all lists are as of the same version.
    snapshot: Option<Snapshot>,
}

/// What a comparison has compared.
#[derive(Debug, Eq, PartialEq)]
struct Snapshot {
    /// The version of all lists.
    version: u64,
    /// The names of the watches, sorted.
    watches: Vec<String>,
}

/// An object that is being deleted, and what keeps it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct TerminatingObject {
    /// The name of the resource.
    pub resource: String,
    /// The key of the object.
    pub key: ObjectKey,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
}

/// The reason why a watch is not up to date.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
pub enum Lag {
    /// A reader has not received a complete list, or has panicked.
    #[error("its cache waits for a list")]
    Unlisted,
    /// A handler of an informer has missed changes.
    #[error("a handler has missed changes: {0}")]
    Missed(String),
    /// The list has changes that the readers have not processed.
    #[error("its cache is at resourceVersion {watched}, and the apiserver at {listed}")]
    Behind {
        /// The version of the watch.
        watched: u64,
        /// The version of the list.
        listed: u64,
    },
    /// The list is older than what the watch had received before.
    #[error("the apiserver is at resourceVersion {listed}, before {watched} of its cache; was etcd restored?")]
    Decreased {
        /// The version of the watch before the list.
        watched: u64,
        /// The version of the list.
        listed: u64,
    },
    /// The resource is not served, but the readers have objects of it.
    #[error("it is no longer served, and its cache has {0} objects")]
    Unserved(i64),
    /// The list failed.
    #[error("failed to list it: {0}")]
    Failed(String),
}

/// A list that cannot be compared.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error("the request failed")]
    Request(#[source] kube::Error),
    #[error("the response is not a list")]
    Page(#[source] JsonError),
    #[error("an object cannot be decoded: {0}")]
    Item(JsonError),
    #[error("the resourceVersion {0:?} is not a number, so it cannot be compared")]
    Version(String),
}

/// How far all readers of a watch are.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Whether every reader has received a complete list and every change since then.
    is_listed: bool,
    /// The version up to which they have processed every change.
    version: Option<u64>,
    /// The number of objects as of that version, or later.
    objects: i64,
}

impl Position {
    fn of(shared: &SharedWatch) -> Self {
        let status = shared.reporter.status();
        Self {
            is_listed: shared.readers.all_listed(),
            version: status.resource_version,
            objects: status.objects,
        }
    }

    /// Returns why the readers are not up to date with a list that was requested when they were at
    /// `before`. `None` is the list of a resource that is not served.
    fn lag(self, before: Option<u64>, list: Option<&Totals>) -> Option<Lag> {
        let Some(list) = list else {
            return (self.objects != 0).then_some(Lag::Unserved(self.objects));
        };
        let listed = list.version;
        let watched = match self.version {
            Some(version) if self.is_listed => version,
            _ => return Some(Lag::Unlisted),
        };
        if let Some(watched) = before.filter(|before| listed < *before) {
            return Some(Lag::Decreased { watched, listed });
        }
        let is_same = list.newest <= watched && list.objects == self.objects;
        (watched < listed && !is_same).then_some(Lag::Behind { watched, listed })
    }
}

/// What counts of a list.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    version: u64,
    /// The highest version of an object.
    newest: u64,
    objects: i64,
}

/// A complete list.
#[derive(Default)]
struct Listed {
    totals: Totals,
    terminating: Vec<TerminatingObject>,
    /// The names of the objects, if they are CustomResourceDefinitions.
    definitions: Vec<Arc<str>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: ItemMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMetadata {
    namespace: Option<Arc<str>>,
    name: Arc<str>,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(default)]
    finalizers: Vec<String>,
}

impl Listed {
    /// Adds a page, and returns the token of the next one.
    fn add_page(&mut self, watch: &Watch, bytes: &[u8]) -> Result<Option<String>, ListError> {
        let page = Page::read(bytes).map_err(ListError::Page)?;
        for raw in page.items.into_iter().flatten() {
            let Item { metadata } =
                serde_json::from_str(raw.get()).map_err(|error| ListError::Item(JsonError::new(&error)))?;
            self.totals.objects += 1;
            self.totals.newest = self.totals.newest.max(number(&metadata.resource_version)?);
            if watch.resource == CRDS {
                self.definitions.push(Arc::clone(&metadata.name));
            }
            if metadata.deletion_timestamp.is_some() && !metadata.finalizers.is_empty() {
                self.terminating.push(TerminatingObject {
                    resource: watch.resource.to_string(),
                    key: ObjectKey {
                        namespace: metadata.namespace,
                        name: metadata.name,
                    },
                    finalizers: metadata.finalizers,
                });
            }
        }
        self.totals.version = number(page.metadata.resource_version.as_deref().unwrap_or_default())?;
        Ok(page.metadata.next.filter(|next| !next.is_empty()))
    }
}

/// Parses a resourceVersion. Those of one resource can be compared as numbers (KEP-5504).
fn number(version: &str) -> Result<u64, ListError> {
    version.parse().map_err(|_| ListError::Version(version.to_owned()))
}

impl Factory {
    /// Compares each watch with a fresh, consistent list of the metadata of its objects. If nothing
    /// was written since an earlier comparison that has found no lag, this keeps its result, at the
    /// cost of one request.
    pub async fn compare(&self, comparison: &mut Comparison) {
        let watches = self.live_watches();
        if !self.is_current(comparison, &watches).await {
            *comparison = self.compare_lists(watches).await;
        }
    }

    async fn is_current(&self, comparison: &Comparison, watches: &[Arc<SharedWatch>]) -> bool {
        match &comparison.snapshot {
            Some(snapshot) if comparison.lags.is_empty() && snapshot.watches == names(watches) => {
                latest_version(&self.lister().0).await == Some(snapshot.version)
            }
            _ => false,
        }
    }

    async fn compare_lists(&self, watches: Vec<Arc<SharedWatch>>) -> Comparison {
        let (client, page_size) = self.lister();
        let names = names(&watches);
        let mut versions = BTreeSet::new();
        let compared = watches.into_iter().map(|shared| {
            let client = client.clone();
            async move {
                let before = Position::of(&shared).version;
                let listed = list(&client, &shared.watch, page_size).await;
                (shared, before, listed)
            }
        });
        let mut compared = stream::iter(compared).buffer_unordered(LISTS);
        let mut comparison = Comparison::default();
        while let Some((shared, before, listed)) = compared.next().await {
            let lag = match listed {
                Ok(listed) => {
                    let totals = listed.as_ref().map(|listed| &listed.totals);
                    let lag = Position::of(&shared).lag(before, totals);
                    versions.extend(totals.map(|totals| totals.version));
                    let listed = listed.unwrap_or_default();
                    comparison.terminating.extend(listed.terminating);
                    comparison.definitions.extend(listed.definitions);
                    lag.or_else(|| shared.missed().map(Lag::Missed))
                }
                Err(error) => Some(Lag::Failed(error_chain(&error))),
            };
            comparison.lags.extend(lag.map(|lag| (shared.watch.to_string(), lag)));
        }
        comparison.lags.sort_by(|(one, _), (other, _)| one.cmp(other));
        comparison.terminating.sort();
        // Watches with selectors may list the same objects.
        comparison.terminating.dedup();
        let first = versions.pop_first();
        comparison.snapshot = first.filter(|_| versions.is_empty()).map(|version| Snapshot {
            version,
            watches: names,
        });
        comparison
    }
}

/// Returns the sorted names of watches.
fn names(watches: &[Arc<SharedWatch>]) -> Vec<String> {
    let mut names: Vec<_> = watches.iter().map(|shared| shared.watch.to_string()).collect();
    names.sort();
    names
}

/// Returns the version of etcd now, unless the request fails. The apiserver has no cache of events,
/// so it asks etcd at once. If events have an etcd of their own, its versions are others.
async fn latest_version(client: &Client) -> Option<u64> {
    let mut query = Query::new(&Watch::all(EVENTS));
    query.add("limit", "1");
    let bytes = page(client, query).await.ok()?;
    number(Page::read(&bytes).ok()?.metadata.resource_version?.as_str()).ok()
}

/// Lists the metadata of the objects. Returns `None` if the resource is not served.
async fn list(client: &Client, watch: &Watch, page_size: u32) -> Result<Option<Listed>, ListError> {
    let mut listed = Listed::default();
    let mut next: Option<String> = None;
    loop {
        let mut query = Query::new(watch);
        query.add("limit", &page_size.to_string());
        if let Some(next) = &next {
            query.add("continue", next);
        }
        let bytes = match page(client, query).await {
            Ok(bytes) => bytes,
            Err(error) if next.is_none() && ApiErrorKind::of(&error) == ApiErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ListError::Request(error)),
        };
        next = listed.add_page(watch, &bytes)?;
        if next.is_none() {
            return Ok(Some(listed));
        }
    }
}

async fn page(client: &Client, query: Query) -> Result<bytes::Bytes, kube::Error> {
    let request = Request::get(query.into_path()).header(header::ACCEPT, METADATA_LIST);
    let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    Ok(response.into_body().collect().await?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch at 10 with 3 objects, which was at 10 before the list too.
    fn lag(list: Option<(u64, u64, i64)>) -> Option<Lag> {
        let position = Position {
            is_listed: true,
            version: Some(10),
            objects: 3,
        };
        let totals = list.map(|(version, newest, objects)| Totals {
            version,
            newest,
            objects,
        });
        position.lag(Some(10), totals.as_ref())
    }

    #[test]
    fn a_watch_is_up_to_date_if_no_change_can_be_missing() {
        let behind = |listed| Some(Lag::Behind { watched: 10, listed });
        assert_eq!(lag(Some((10, 10, 3))), None);
        assert_eq!(lag(Some((12, 9, 3))), None, "other resources have changed");
        assert_eq!(lag(Some((12, 9, 2))), behind(12), "an object was deleted");
        assert_eq!(lag(Some((12, 12, 3))), behind(12), "an object has changed");
        assert_eq!(lag(Some((12, 12, 4))), behind(12), "an object was created");
        assert_eq!(lag(Some((12, 11, 3))), behind(12), "one was created, and one deleted");
        let decreased = Lag::Decreased { watched: 10, listed: 9 };
        assert_eq!(lag(Some((9, 9, 3))), Some(decreased));
        assert_eq!(lag(None), Some(Lag::Unserved(3)));
    }

    #[test]
    fn changes_after_the_list_do_not_count() {
        let position = Position {
            is_listed: true,
            version: Some(14),
            objects: 2,
        };
        let list = Totals {
            version: 12,
            newest: 12,
            objects: 3,
        };
        assert_eq!(
            position.lag(Some(10), Some(&list)),
            None,
            "an object was deleted after the list"
        );
    }

    #[test]
    fn a_watch_without_a_complete_list_is_behind_unless_nothing_is_served() {
        let position = Position {
            is_listed: false,
            version: None,
            objects: 0,
        };
        let list = Totals {
            version: 12,
            newest: 0,
            objects: 0,
        };
        assert_eq!(position.lag(None, Some(&list)), Some(Lag::Unlisted));
        assert_eq!(position.lag(None, None), None);
        let relisting = Position {
            version: Some(14),
            ..position
        };
        assert_eq!(relisting.lag(None, Some(&list)), Some(Lag::Unlisted));
    }

    #[test]
    fn a_list_is_summed_up_over_its_pages() {
        let page = |next: &str, items: &str| {
            format!(
                r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"20","continue":"{next}"}},"items":[{items}]}}"#
            )
        };
        let kept = r#"{"metadata":{"name":"b","namespace":"n","resourceVersion":"17","deletionTimestamp":"2024-01-01T00:00:00Z","finalizers":["example.com/f"]}}"#;
        let mut listed = Listed::default();
        let watch = Watch::all(CRDS);
        let first = page("more", r#"{"metadata":{"name":"a","resourceVersion":"18"}}"#);
        assert_eq!(
            listed.add_page(&watch, first.as_bytes()).unwrap().as_deref(),
            Some("more")
        );
        assert_eq!(listed.add_page(&watch, page("", kept).as_bytes()).unwrap(), None);
        let Totals {
            version,
            newest,
            objects,
        } = listed.totals;
        assert_eq!((version, newest, objects), (20, 18, 2));
        assert_eq!(listed.definitions, ["a".into(), "b".into()]);
        assert_eq!(listed.terminating[0].finalizers, ["example.com/f"]);
        let opaque = page("", r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#);
        assert!(listed.add_page(&watch, opaque.as_bytes()).is_err());
        assert!(listed.add_page(&watch, b"<html>").is_err());
    }
}
