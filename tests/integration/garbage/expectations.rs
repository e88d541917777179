//! Computes from a test's creations and deletions which objects the collector must delete and which
//! it must keep.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::eventually;

use super::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::ObjectBuilder,
};
use crate::support::RETRY_LIMIT;

/// The number of concurrent requests of a test.
const CONCURRENCY: usize = 16;

/// The objects that a test created and deleted.
///
/// Do not orphan the dependents of an owner if one of them has several owners: the outcome would
/// depend on which owner the collector observes first.
#[derive(Default)]
pub(crate) struct ExpectedObjects {
    /// The created objects, by UID.
    objects: BTreeMap<String, DynamicObject>,
    /// The deleted objects, by UID, and whether their dependents are orphaned.
    deleted: BTreeMap<String, bool>,
}

/// The expected outcome for an object.
#[derive(Debug, Eq, PartialEq)]
enum ExpectedOutcome {
    Gone,
    /// The object remains, with exactly these owners.
    Kept(BTreeSet<String>),
}

impl ExpectedObjects {
    /// Creates objects in a namespace, and records them.
    pub(crate) async fn create(
        &mut self,
        dynamic_client: &DynamicClient,
        builders: impl IntoIterator<Item = ObjectBuilder>,
    ) -> Result<Vec<DynamicObject>> {
        let created = stream::iter(builders.into_iter().map(|builder| dynamic_client.create(builder)));
        let created: Vec<_> = created.buffered(CONCURRENCY).try_collect().await?;
        for object in &created {
            self.record(object)?;
        }
        Ok(created)
    }

    /// Creates one object in a namespace, and records it.
    pub(crate) async fn create_one(
        &mut self,
        dynamic_client: &DynamicClient,
        builder: ObjectBuilder,
    ) -> Result<DynamicObject> {
        let created = self.create(dynamic_client, [builder]).await?;
        created.into_iter().next().context("no object was created")
    }

    /// Deletes an object, and records whether its dependents are orphaned.
    pub(crate) async fn delete(
        &mut self,
        dynamic_client: &DynamicClient,
        object: &DynamicObject,
        policy: Policy,
    ) -> Result<()> {
        let orphans = match policy {
            Policy::Background | Policy::Foreground | Policy::OrphanDependents(false) => false,
            Policy::Orphan | Policy::OrphanDependents(true) => true,
            Policy::Unspecified => {
                let kind = object.types.as_ref().map(|types| types.kind.as_str());
                object.finalizers().contains(&"orphan".to_owned()) || kind == Some("ReplicationController")
            }
        };
        dynamic_client.delete(object, policy).await?;
        let uid = object.uid().context("the object has no UID")?;
        self.deleted.insert(uid, orphans);
        Ok(())
    }

    /// Waits until every object that must be deleted is gone, and then until the others have
    /// exactly the expected owners. Fails at once when an object that must remain is gone.
    pub(crate) async fn verify(&self, dynamic_client: &DynamicClient) -> Result<()> {
        let expected_outcomes = expected_outcomes(&self.owners(), &self.deleted);
        let outcomes = || stream::iter(expected_outcomes.iter().map(Ok));
        let gone = outcomes().try_for_each_concurrent(CONCURRENCY, |(uid, outcome)| async move {
            let object = self.objects.get(uid).context("the object was not recorded")?;
            match outcome {
                ExpectedOutcome::Gone => dynamic_client.wait_until_gone(object).await,
                ExpectedOutcome::Kept(_) => Ok(()),
            }
        });
        gone.await?;
        // Any wrong deletion has been sent when this returns.
        dynamic_client.catch_up().await?;
        let kept = outcomes().try_for_each_concurrent(CONCURRENCY, |(uid, outcome)| async move {
            let object = self.objects.get(uid).context("the object was not recorded")?;
            match outcome {
                ExpectedOutcome::Gone => Ok(()),
                ExpectedOutcome::Kept(owners) => wait_for_owners(dynamic_client, object, owners).await,
            }
        });
        kept.await
    }

    fn record(&mut self, object: &DynamicObject) -> Result<()> {
        let uid = object.uid().context("the object has no UID")?;
        self.objects.insert(uid, object.clone());
        Ok(())
    }

    fn owners(&self) -> BTreeMap<String, BTreeSet<String>> {
        let owners = self.objects.iter();
        owners.map(|(uid, object)| (uid.clone(), owners_of(object))).collect()
    }
}

fn owners_of(object: &DynamicObject) -> BTreeSet<String> {
    let references = object.owner_references().iter();
    references.map(|reference| reference.uid.clone()).collect()
}

async fn wait_for_owners(
    dynamic_client: &DynamicClient,
    object: &DynamicObject,
    owners: &BTreeSet<String>,
) -> Result<()> {
    let what = format!("{} to be owned by {owners:?}", object.name_any());
    let checked = eventually(RETRY_LIMIT, &what, || async {
        let found = match dynamic_client.find(object).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Err("it is gone")),
            Err(error) => return Err(error),
        };
        ensure!(&owners_of(&found) == owners, "{:?}", found.owner_references());
        let is_kept = found.metadata.deletion_timestamp.is_none();
        Ok(if is_kept { Ok(()) } else { Err("it is being deleted") })
    });
    let outcome = checked.await?;
    outcome.map_err(|wrong| anyhow!("{} must remain, but {wrong}", object.name_any()))
}

/// Returns the expected outcome for each object. `deleted` has the deleted owners, and whether
/// their dependents are orphaned.
fn expected_outcomes(
    owners: &BTreeMap<String, BTreeSet<String>>,
    deleted: &BTreeMap<String, bool>,
) -> BTreeMap<String, ExpectedOutcome> {
    let keeps = |owner: &String| deleted.get(owner) != Some(&true);
    let kept = owners.iter().map(|(uid, references)| {
        let kept: BTreeSet<_> = references.iter().filter(|owner| keeps(owner)).cloned().collect();
        (uid, kept)
    });
    let kept: BTreeMap<_, _> = kept.collect();
    let mut gone: BTreeSet<&String> = deleted.keys().collect();
    loop {
        let is_gone = |uid: &String| gone.contains(uid) || !owners.contains_key(uid);
        let next = kept.iter().filter(|(uid, references)| {
            !gone.contains(*uid) && !references.is_empty() && references.iter().all(is_gone)
        });
        let next: Vec<_> = next.map(|(uid, _)| *uid).collect();
        if next.is_empty() {
            break;
        }
        gone.extend(next);
    }
    let outcome = |(uid, references): (&String, BTreeSet<String>)| {
        let kept_owners = references
            .into_iter()
            .filter(|owner| owners.contains_key(owner) && !gone.contains(owner));
        let outcome = if gone.contains(uid) {
            ExpectedOutcome::Gone
        } else {
            ExpectedOutcome::Kept(kept_owners.collect())
        };
        (uid.clone(), outcome)
    };
    kept.into_iter().map(outcome).collect()
}

/// Checks the expected outcomes. `objects` are names with their owners, `deleted` are objects that
/// are deleted with their dependents, and `orphaning` are objects whose dependents are orphaned
/// when they are deleted.
fn check(objects: &[(&str, &[&str])], deleted: &[&str], orphaning: &[&str], expected: &str) {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let owners = objects.iter().map(|(name, owners)| ((*name).to_owned(), set(owners)));
    let of = |names: &[&str], orphans| {
        names
            .iter()
            .map(move |name| ((*name).to_owned(), orphans))
            .collect::<Vec<_>>()
    };
    let deleted = of(deleted, false).into_iter().chain(of(orphaning, true));
    let expected_outcomes = expected_outcomes(&owners.collect(), &deleted.collect());
    let described = expected_outcomes.iter().map(|(name, outcome)| match outcome {
        ExpectedOutcome::Gone => format!("-{name}"),
        ExpectedOutcome::Kept(owners) => {
            let owners: Vec<_> = owners.iter().map(String::as_str).collect();
            format!("{name}({})", owners.join(","))
        }
    });
    assert_eq!(described.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn objects_with_a_living_owner_or_no_owner_remain() {
    let chain: &[(&str, &[&str])] = &[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &[])];
    check(chain, &[], &[], "a() b(a) c(b) d()");
    check(chain, &["a"], &[], "-a -b -c d()");
    check(chain, &["b"], &[], "a() -b -c d()");
    check(chain, &[], &["a"], "-a b() c(b) d()");
    let shared: &[(&str, &[&str])] = &[("a", &[]), ("b", &[]), ("c", &["a", "b"]), ("d", &["a", "nobody"])];
    check(shared, &["a"], &[], "-a b() c(b) -d");
    check(shared, &["a", "b"], &[], "-a -b -c -d");
    check(&[("a", &["nobody"]), ("b", &["a"])], &[], &[], "-a -b");
    let circle: &[(&str, &[&str])] = &[("a", &["c"]), ("b", &["a"]), ("c", &["b"])];
    check(circle, &[], &[], "a(c) b(a) c(b)");
    check(circle, &["a"], &[], "-a -b -c");
}
