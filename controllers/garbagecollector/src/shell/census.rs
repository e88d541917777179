//! A census: every collectable resource listed in one namespace, or in all, for the dependents that no watch has shown yet.
//!
//! Owners that wait for one in the same namespace share it: one that began after the last of them was seen serves them all.

use std::{collections::HashMap, sync::Arc};

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use portreeve_api::Resource;
use tokio::time::Instant;

use super::{
    Core,
    requests::{self, Failure},
};
use crate::{Identity, Places, Seen};

/// How many resources are listed at once.
const LISTS: usize = 10;

/// The references to one owner that were found.
type Found = Vec<(Identity, Places)>;

/// The censuses of each namespace.
#[derive(Default)]
pub(super) struct Censuses(Mutex<HashMap<Option<Box<str>>, Shared>>);

type Shared = Arc<tokio::sync::Mutex<Count>>;

/// One at a time in a namespace.
#[derive(Default)]
struct Count {
    /// When the last one began that was complete.
    began: Option<Instant>,
    /// What it found, by the UID of the owner.
    found: HashMap<Box<str>, Found>,
}

impl Core {
    /// The dependents of an owner, as a census that began after `since` has found them.
    pub(super) async fn census(&self, owner: &Identity, since: Instant) -> Result<Found, Failure> {
        let namespace = owner.namespace.clone();
        let count = Arc::clone(self.censuses.0.lock().entry(namespace.clone()).or_default());
        let mut count = count.lock().await;
        if count.began.is_none_or(|began| began < since) {
            let began = Instant::now();
            count.found = self.take_census(namespace.as_deref()).await?;
            count.began = Some(began);
        }
        let found = count.found.remove(&owner.uid).unwrap_or_default();
        drop(count);
        let mut all = self.censuses.0.lock();
        all.retain(|_, count| Arc::strong_count(count) > 1);
        Ok(found)
    }

    /// Every reference to an owner that is being orphaned, as every collectable resource lists them now.
    async fn take_census(&self, namespace: Option<&str>) -> Result<HashMap<Box<str>, Found>, Failure> {
        let resources: Vec<_> = self
            .watched
            .borrow()
            .iter()
            .map(|state| state.resource.clone())
            .collect();
        let lists = resources
            .into_iter()
            .filter(|resource| namespace.is_none() || resource.scope == portreeve_api::Scope::Namespaced)
            .map(|resource| self.count(resource, namespace));
        let mut lists = stream::iter(lists).buffer_unordered(LISTS);
        let mut all: HashMap<Box<str>, Found> = HashMap::new();
        while let Some(found) = lists.next().await {
            for (owner, dependent) in found? {
                all.entry(owner).or_default().push(dependent);
            }
        }
        Ok(all)
    }

    async fn count(
        &self,
        resource: Resource,
        namespace: Option<&str>,
    ) -> Result<Vec<(Box<str>, (Identity, Places))>, Failure> {
        let mut found = Vec::new();
        let mut next = None;
        loop {
            let page = requests::list(&self.client, &resource, namespace, next.as_deref()).await;
            let (items, following) = page.map_err(|failure| in_resource(failure, &resource))?;
            for Seen { metadata } in items {
                for owner in self.orphaning_owners(&metadata.owner_references) {
                    let identity = Identity {
                        api_version: resource.api_version().into(),
                        kind: (*resource.kind).into(),
                        namespace: metadata.namespace.clone(),
                        name: metadata.name.clone(),
                        uid: metadata.uid.clone(),
                    };
                    let references = metadata.references_to(&owner);
                    found.push((owner, (identity, references)));
                }
            }
            match following {
                None => return Ok(found),
                following => next = following,
            }
        }
    }

    /// The owners among these that wait for their dependents to be orphaned, each once.
    fn orphaning_owners(&self, references: &[crate::Reference]) -> Vec<Box<str>> {
        if references.is_empty() {
            return Vec::new();
        }
        let graph = self.graph.lock();
        let mut owners: Vec<Box<str>> = references
            .iter()
            .filter(|reference| graph.uid(&reference.uid).is_some_and(|uid| graph.is_orphaning(uid)))
            .map(|reference| reference.uid.clone())
            .collect();
        owners.sort();
        owners.dedup();
        owners
    }
}

/// Says what is waited for.
fn in_resource(failure: Failure, resource: &Resource) -> Failure {
    match failure {
        Failure::Other { message, answer, after } => Failure::Other {
            message: format!("waiting for a list of {resource}: {message}"),
            answer,
            after,
        },
        other => other,
    }
}
