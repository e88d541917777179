//! A watch that detects when an owner is gone and its dependents are deleted or orphaned.

use std::collections::HashSet;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{Stream, StreamExt};
use kube::api::{DynamicObject, ListParams, ObjectMeta, PartialObjectMeta, WatchEvent, WatchParams};
use kube::{Api, Client};
use tokio::time::timeout;

use crate::family::{self, Family, LABEL};

/// The expected outcome for the dependents of a deleted owner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// They are deleted with the owner.
    Collected,
    /// They remain, without an owner reference.
    Orphaned,
}

type Metadata = PartialObjectMeta<DynamicObject>;
type Changes = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<Metadata>>> + Send>>;

/// A watch of a family. When the apiserver ends the watch because the client reads too slowly, it
/// is restarted at the last received version.
pub(crate) struct CascadeCompletion {
    members: Api<DynamicObject>,
    /// The last version that was received.
    version: String,
    changes: Changes,
    waiting: PendingObjects,
}

impl CascadeCompletion {
    /// Starts the watch. Call it before the deletion.
    pub(crate) async fn watch(client: &Client, family: &Family, fate: Fate) -> Result<Self> {
        let members = family::api(client);
        let now = members
            .list_metadata(&ListParams::default().labels(LABEL).limit(1))
            .await;
        let now = now.context("failed to list the family")?.metadata.resource_version;
        let version = now.context("a list has no version")?;
        Ok(Self {
            changes: changes(&members, &version).await?,
            members,
            version,
            waiting: PendingObjects::of(family, fate),
        })
    }

    /// Waits until every member is deleted or orphaned, and returns the time of the last event.
    pub(crate) async fn reached(mut self, limit: Duration) -> Result<Instant> {
        let all = async {
            while !self.waiting.is_over() {
                let Some(event) = self.changes.next().await else {
                    self.changes = changes(&self.members, &self.version).await?;
                    continue;
                };
                let event = event.context("the watch of the family failed")?;
                if let Some(version) = version(&event) {
                    self.version.replace_range(.., version);
                }
                self.waiting.handle_event(event)?;
            }
            Ok(Instant::now())
        };
        let outcome = timeout(limit, all).await;
        outcome.with_context(|| {
            format!(
                "{} members of the family were left after {limit:?}",
                self.waiting.left.len()
            )
        })?
    }
}

async fn changes(members: &Api<DynamicObject>, version: &str) -> Result<Changes> {
    let changes = members
        .watch_metadata(&WatchParams::default().labels(LABEL), version)
        .await;
    Ok(Box::pin(changes.context("failed to watch the family")?))
}

/// Returns the resource version of an event.
fn version(event: &WatchEvent<Metadata>) -> Option<&str> {
    match event {
        WatchEvent::Added(member) | WatchEvent::Modified(member) | WatchEvent::Deleted(member) => {
            member.metadata.resource_version.as_deref()
        }
        WatchEvent::Bookmark(bookmark) => Some(&bookmark.metadata.resource_version),
        WatchEvent::Error(_) => None,
    }
}

/// The members of a family that are not deleted or orphaned yet. Pure.
struct PendingObjects {
    owner: String,
    /// The UIDs, including the owner's.
    left: HashSet<String>,
    fate: Fate,
}

impl PendingObjects {
    fn of(family: &Family, fate: Fate) -> Self {
        let all = family.dependents.iter().chain([&family.owner]);
        Self {
            owner: family.owner.uid.clone(),
            left: all.map(|member| member.uid.clone()).collect(),
            fate,
        }
    }

    fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    fn handle_event(&mut self, event: WatchEvent<Metadata>) -> Result<()> {
        match event {
            WatchEvent::Added(_) | WatchEvent::Bookmark(_) => {}
            WatchEvent::Modified(Metadata { metadata, .. }) => {
                let has_no_owner = metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
                let uid = uid(metadata)?;
                if self.fate == Fate::Orphaned && has_no_owner && uid != self.owner {
                    self.left.remove(&uid);
                }
            }
            WatchEvent::Deleted(Metadata { metadata, .. }) => {
                let name = metadata.name.clone().unwrap_or_default();
                let uid = uid(metadata)?;
                let is_expected = self.fate == Fate::Collected || uid == self.owner;
                ensure!(is_expected, "{name} was deleted instead of orphaned");
                self.left.remove(&uid);
            }
            WatchEvent::Error(status) => bail!("the apiserver rejected the watch of the family: {}", status.message),
        }
        Ok(())
    }
}

fn uid(metadata: ObjectMeta) -> Result<String> {
    metadata.uid.context("the watch received an object without a UID")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::Created;

    fn created(uid: &str) -> Created {
        Created {
            name: uid.to_owned(),
            uid: uid.to_owned(),
            version: "1".to_owned(),
        }
    }

    fn waiting(fate: Fate) -> PendingObjects {
        let family = Family {
            owner: created("owner"),
            dependents: vec![created("a"), created("b")],
        };
        PendingObjects::of(&family, fate)
    }

    fn event(kind: &str, uid: &str, references: &Value) -> WatchEvent<Metadata> {
        let object = json!({"metadata": {"name": uid, "uid": uid, "ownerReferences": references}});
        serde_json::from_value(json!({"type": kind, "object": object})).unwrap()
    }

    fn owned() -> Value {
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "owner"}])
    }

    #[test]
    fn a_family_is_collected_when_all_members_are_deleted() {
        let mut waiting = waiting(Fate::Collected);
        for (kind, uid) in [
            ("MODIFIED", "owner"),
            ("DELETED", "b"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ] {
            waiting.handle_event(event(kind, uid, &Value::Null)).unwrap();
            assert!(!waiting.is_over(), "{kind} {uid}");
        }
        waiting.handle_event(event("DELETED", "owner", &Value::Null)).unwrap();
        assert!(waiting.is_over());
    }

    #[test]
    fn a_family_is_orphaned_when_no_dependent_has_an_owner_and_the_owner_is_deleted() {
        let mut waiting = waiting(Fate::Orphaned);
        waiting.handle_event(event("MODIFIED", "owner", &Value::Null)).unwrap();
        waiting.handle_event(event("MODIFIED", "a", &owned())).unwrap();
        waiting.handle_event(event("MODIFIED", "a", &Value::Null)).unwrap();
        waiting.handle_event(event("DELETED", "owner", &Value::Null)).unwrap();
        assert!(!waiting.is_over());
        waiting.handle_event(event("MODIFIED", "b", &json!([]))).unwrap();
        assert!(waiting.is_over());
    }

    #[test]
    fn an_orphan_that_is_deleted_is_an_error() {
        let outcome = waiting(Fate::Orphaned).handle_event(event("DELETED", "a", &Value::Null));
        assert_eq!(outcome.unwrap_err().to_string(), "a was deleted instead of orphaned");
    }
}
