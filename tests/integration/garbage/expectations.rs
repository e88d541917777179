//! What must be gone and what must be left, from what a test made and deleted.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::eventually;

use super::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::ObjectBuilder,
};
use crate::support::SETTLED;

/// How many requests of a test's are under way at a time.
const CONCURRENCY: usize = 16;

/// What a test made, and what it deleted.
///
/// Of an object with several owners none may be deleted with its dependents orphaned: what becomes of it depends on which of them
/// the collector hears of first.
#[derive(Default)]
pub(crate) struct ExpectedObjects {
    /// By their UIDs.
    objects: BTreeMap<String, DynamicObject>,
    /// Whether the dependents of each are orphaned.
    deleted: BTreeMap<String, bool>,
}

/// What must become of an object.
#[derive(Debug, Eq, PartialEq)]
enum ExpectedOutcome {
    Gone,
    /// Left, and owned by these.
    Left(BTreeSet<String>),
}

impl ExpectedObjects {
    /// Creates objects in a namespace, and writes them down.
    pub(crate) async fn create(
        &mut self,
        dynamic_client: &DynamicClient,
        builders: impl IntoIterator<Item = ObjectBuilder>,
    ) -> Result<Vec<DynamicObject>> {
        let created = stream::iter(builders.into_iter().map(|builder| dynamic_client.create(builder)));
        let created: Vec<_> = created.buffered(CONCURRENCY).try_collect().await?;
        for object in &created {
            self.note(object)?;
        }
        Ok(created)
    }

    /// Creates one.
    pub(crate) async fn create_one(
        &mut self,
        dynamic_client: &DynamicClient,
        builder: ObjectBuilder,
    ) -> Result<DynamicObject> {
        let created = self.create(dynamic_client, [builder]).await?;
        created.into_iter().next().context("it was created")
    }

    /// Deletes an object, whose dependents are to be orphaned or not.
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
        let uid = object.uid().context("it has no UID")?;
        self.deleted.insert(uid, orphans);
        Ok(())
    }

    /// Waits until everything is gone that must be, and then until what is left has the owners that it must have and no other. It fails at
    /// once when anything is gone that must be left.
    pub(crate) async fn verify(&self, dynamic_client: &DynamicClient) -> Result<()> {
        let expected_outcomes = expected_outcomes(&self.owners(), &self.deleted);
        let all = || stream::iter(expected_outcomes.iter().map(Ok));
        let gone = all().try_for_each_concurrent(CONCURRENCY, |(uid, outcome)| async move {
            let object = self.objects.get(uid).context("it was made")?;
            match outcome {
                ExpectedOutcome::Gone => dynamic_client.wait_until_gone(object).await,
                ExpectedOutcome::Left(_) => Ok(()),
            }
        });
        gone.await?;
        // What the collector does wrong, it has done by now.
        dynamic_client.wait_for_round().await?;
        let left = all().try_for_each_concurrent(CONCURRENCY, |(uid, outcome)| async move {
            let object = self.objects.get(uid).context("it was made")?;
            match outcome {
                ExpectedOutcome::Gone => Ok(()),
                ExpectedOutcome::Left(owners) => wait_for_owners(dynamic_client, object, owners).await,
            }
        });
        left.await
    }

    fn note(&mut self, object: &DynamicObject) -> Result<()> {
        let uid = object.uid().context("it has no UID")?;
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
    let judged = eventually(SETTLED, &what, || async {
        let found = match dynamic_client.find(object).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Err("it is gone")),
            Err(error) => return Err(error),
        };
        ensure!(&owners_of(&found) == owners, "{:?}", found.owner_references());
        let is_spared = found.metadata.deletion_timestamp.is_none();
        Ok(if is_spared { Ok(()) } else { Err("it is being deleted") })
    });
    let verdict = judged.await?;
    verdict.map_err(|wrong| anyhow!("{} must be left: {wrong}", object.name_any()))
}

/// What must become of each object. Of those that are deleted, `deleted` says whether their dependents are orphaned.
fn expected_outcomes(
    owners: &BTreeMap<String, BTreeSet<String>>,
    deleted: &BTreeMap<String, bool>,
) -> BTreeMap<String, ExpectedOutcome> {
    let keeps = |owner: &String| deleted.get(owner) != Some(&true);
    let kept = owners.iter().map(|(uid, of_it)| {
        let kept: BTreeSet<_> = of_it.iter().filter(|owner| keeps(owner)).cloned().collect();
        (uid, kept)
    });
    let kept: BTreeMap<_, _> = kept.collect();
    let mut gone: BTreeSet<&String> = deleted.keys().collect();
    loop {
        let is_gone = |uid: &String| gone.contains(uid) || !owners.contains_key(uid);
        let next = kept
            .iter()
            .filter(|(uid, of_it)| !gone.contains(*uid) && !of_it.is_empty() && of_it.iter().all(is_gone));
        let next: Vec<_> = next.map(|(uid, _)| *uid).collect();
        if next.is_empty() {
            break;
        }
        gone.extend(next);
    }
    let outcome = |(uid, of_it): (&String, BTreeSet<String>)| {
        let living = of_it
            .into_iter()
            .filter(|owner| owners.contains_key(owner) && !gone.contains(owner));
        let outcome = if gone.contains(uid) {
            ExpectedOutcome::Gone
        } else {
            ExpectedOutcome::Left(living.collect())
        };
        (uid.clone(), outcome)
    };
    kept.into_iter().map(outcome).collect()
}

/// Objects as `name: owners`, what is deleted, and what is orphaned; and what is expected of all.
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
    let told = expected_outcomes.iter().map(|(name, outcome)| match outcome {
        ExpectedOutcome::Gone => format!("-{name}"),
        ExpectedOutcome::Left(owners) => {
            let owners: Vec<_> = owners.iter().map(String::as_str).collect();
            format!("{name}({})", owners.join(","))
        }
    });
    assert_eq!(told.collect::<Vec<_>>().join(" "), expected);
}

#[test]
fn what_has_a_living_owner_or_none_is_left() {
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
