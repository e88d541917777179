//! The pass that writes every object without a change, and its verification.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::{StreamExt, stream};
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::{DynamicObject, Request},
};
use portreeve_api::{ObjectKey, Resource, Scope};
use portreeve_client::{ApiErrorKind, error_chain, is_object_not_found};
use serde_json::json;

use super::super::{
    Error,
    cluster::{Cluster, MANAGER},
    definition::Definition,
    objects::{ListedObject, Pages, PartialObject, find},
    progress::Progress,
    retry::retry,
};

/// The pass ends after so many failures: they then have a common cause.
const MAX_FAILURES: usize = 100;

/// What a pass needs.
pub(super) struct Pass<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) definition: &'a Definition,
    pub(super) target: &'a str,
    /// Objects with a higher resourceVersion are stored in the target version.
    pub(super) written_since: u64,
    pub(super) page_size: u32,
    pub(super) concurrency: usize,
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    written: u64,
    /// Objects that somebody else has written or deleted meanwhile.
    changed: u64,
    /// Objects that were written after the switch, before this pass.
    skipped: u64,
    /// The UIDs and versions of objects whose stored bytes a write would not change.
    unchanged: HashSet<(String, String)>,
    /// The keys of objects that have data of a newer version.
    pub(super) inexpressible: BTreeSet<String>,
    /// The keys of objects that could not be written, and why.
    pub(super) failures: BTreeMap<String, String>,
}

impl Outcome {
    pub(super) fn summary(&self, name: &str, target: &str) -> String {
        let (unchanged, failed) = (self.unchanged.len(), self.failures.len());
        let Self {
            written,
            changed,
            skipped,
            ..
        } = self;
        format!(
            "objects of {name} in {target}: {written} written, {} stored in {target} before, {changed} changed or \
             deleted by others, {failed} failed",
            skipped + unchanged as u64
        )
    }
}

/// The result for one object.
enum Written {
    Yes,
    /// It was stored in the target version with the same content.
    Unchanged,
    /// Somebody else has written or deleted it since the list.
    ByOthers,
    Failed(String),
}

impl Pass<'_> {
    /// Writes all objects that may be stored in another version.
    pub(super) async fn run(&self) -> Result<Outcome, Error> {
        let newer = self.definition.annotations_of_newer(self.target);
        let mut outcome = Outcome::default();
        let progress = Progress::new(&format!("storing {} in {}", self.cluster.name, self.target), 0);
        let mut pages = Pages::new(self.cluster, self.definition, self.target, self.page_size);
        let mut done = 0;
        while let Some(page) = pages.next().await? {
            if page.is_first {
                done = 0;
                outcome.skipped = 0;
                outcome.inexpressible.clear();
                outcome.failures.clear();
            }
            progress.set_total(page.seen + page.remaining);
            let mut pending = Vec::new();
            for object in page.objects {
                if object.has_any(&newer) {
                    outcome.inexpressible.insert(object.key());
                } else if self.is_stored(&object, &outcome) {
                    outcome.skipped += 1;
                } else {
                    pending.push(object);
                    continue;
                }
                done += 1;
            }
            let writes = pending.into_iter().map(|object| self.write(object));
            let mut writes = stream::iter(writes).buffer_unordered(self.concurrency);
            while let Some((object, written)) = writes.next().await {
                outcome.add(object, written);
                done += 1;
                progress.set(done);
                if outcome.failures.len() >= MAX_FAILURES {
                    return Ok(outcome);
                }
            }
        }
        Ok(outcome)
    }

    /// Lists again, and returns the keys of the objects that may be stored in another version.
    pub(super) async fn missing(&self, outcome: &Outcome) -> Result<Vec<String>, Error> {
        let pages = Pages::new(self.cluster, self.definition, self.target, self.page_size);
        let is_missing =
            |object: &ListedObject| !self.is_stored(object, outcome) && !outcome.inexpressible.contains(&object.key());
        Ok(find(pages, is_missing).await?.0)
    }

    /// Returns whether the object is stored in the target version.
    fn is_stored(&self, object: &ListedObject, outcome: &Outcome) -> bool {
        let version = object.resource_version.parse::<u64>();
        let written = version.is_ok_and(|version| version > self.written_since);
        let identity = || (object.uid.clone(), object.resource_version.clone());
        written || outcome.unchanged.contains(&identity())
    }

    /// Writes an object without a change, if it is still the one of the list.
    async fn write(&self, object: ListedObject) -> (ListedObject, Written) {
        let resource = self.definition.resource(self.target);
        let client = &self.cluster.client;
        let api: Api<DynamicObject> = match &object.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let parameters = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({
            "metadata": {"uid": object.uid, "resourceVersion": object.resource_version},
        }));
        let is_gone = |error: &kube::Error| self.is_gone(error, &object);
        let send = || async {
            let request = Request::new(api.resource_url()).patch_metadata(&object.name, &parameters, &patch);
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request::<PartialObject>(request).await
        };
        let written = match retry(is_gone, send).await {
            Ok(patched) if patched.metadata.resource_version == object.resource_version => Written::Unchanged,
            Ok(_) => Written::Yes,
            Err(error) if is_gone(&error) || ApiErrorKind::of(&error) == ApiErrorKind::Conflict => Written::ByOthers,
            Err(error) => Written::Failed(error_chain(&error)),
        };
        (object, written)
    }

    fn is_gone(&self, error: &kube::Error, object: &ListedObject) -> bool {
        let Definition {
            group,
            kind,
            plural,
            is_namespaced,
            ..
        } = self.definition;
        let resource = Resource {
            group: group.clone().into(),
            version: self.target.to_owned().into(),
            kind: kind.clone().into(),
            plural: plural.clone().into(),
            scope: if *is_namespaced {
                Scope::Namespaced
            } else {
                Scope::Cluster
            },
        };
        let key = match &object.namespace {
            Some(namespace) => ObjectKey::namespaced(&**namespace, &*object.name),
            None => ObjectKey::cluster(&*object.name),
        };
        is_object_not_found(error, &resource, &key)
    }
}

impl Outcome {
    fn add(&mut self, object: ListedObject, written: Written) {
        match written {
            Written::Yes => self.written += 1,
            Written::ByOthers => self.changed += 1,
            Written::Unchanged => {
                self.unchanged.insert((object.uid, object.resource_version));
            }
            Written::Failed(reason) => {
                self.failures.insert(object.key(), reason);
            }
        }
    }
}
