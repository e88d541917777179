//! What must be gone and what must be left, from what a test made and deleted.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::eventually;

use super::{
    draft::Draft,
    yard::{Policy, Yard},
};
use crate::support::SETTLED;

/// How many requests of a test's are under way at a time.
const CONCURRENCY: usize = 16;

/// What a test made, and what it deleted.
///
/// Of an object with several owners none may be deleted with its dependents orphaned: what becomes of it depends on which of them
/// the collector hears of first.
#[derive(Default)]
pub(crate) struct Ledger {
    /// By their UIDs.
    objects: BTreeMap<String, DynamicObject>,
    /// Whether the dependents of each are orphaned.
    deleted: BTreeMap<String, bool>,
}

/// What must become of an object.
#[derive(Debug, Eq, PartialEq)]
enum Fate {
    Gone,
    /// Left, and owned by these.
    Left(BTreeSet<String>),
}

impl Ledger {
    /// Creates objects in a namespace, and writes them down.
    pub(crate) async fn create(
        &mut self,
        yard: &Yard,
        drafts: impl IntoIterator<Item = Draft>,
    ) -> Result<Vec<DynamicObject>> {
        let created = stream::iter(drafts.into_iter().map(|draft| yard.create(draft)));
        let created: Vec<_> = created.buffered(CONCURRENCY).try_collect().await?;
        for object in &created {
            self.note(object)?;
        }
        Ok(created)
    }

    /// Creates one.
    pub(crate) async fn create_one(&mut self, yard: &Yard, draft: Draft) -> Result<DynamicObject> {
        let created = self.create(yard, [draft]).await?;
        created.into_iter().next().context("it was created")
    }

    /// Deletes an object, whose dependents are to be orphaned or not.
    pub(crate) async fn delete(&mut self, yard: &Yard, object: &DynamicObject, policy: Policy) -> Result<()> {
        let orphans = match policy {
            Policy::Background | Policy::Foreground | Policy::OrphanDependents(false) => false,
            Policy::Orphan | Policy::OrphanDependents(true) => true,
            Policy::Unsaid => {
                let kind = object.types.as_ref().map(|types| types.kind.as_str());
                object.finalizers().contains(&"orphan".to_owned()) || kind == Some("ReplicationController")
            }
        };
        yard.delete(object, policy).await?;
        let uid = object.uid().context("it has no UID")?;
        self.deleted.insert(uid, orphans);
        Ok(())
    }

    /// Waits until everything is gone that must be, and then until what is left has the owners that it must have and no other. It fails at
    /// once when anything is gone that must be left.
    pub(crate) async fn judge(&self, yard: &Yard) -> Result<()> {
        let fates = fates(&self.owners(), &self.deleted);
        let all = || stream::iter(fates.iter().map(Ok));
        let gone = all().try_for_each_concurrent(CONCURRENCY, |(uid, fate)| async move {
            let object = self.objects.get(uid).context("it was made")?;
            match fate {
                Fate::Gone => yard.wait_until_gone(object).await,
                Fate::Left(_) => Ok(()),
            }
        });
        gone.await?;
        // What the collector does wrong, it has done by now.
        yard.wait_for_round().await?;
        let left = all().try_for_each_concurrent(CONCURRENCY, |(uid, fate)| async move {
            let object = self.objects.get(uid).context("it was made")?;
            match fate {
                Fate::Gone => Ok(()),
                Fate::Left(owners) => wait_for_owners(yard, object, owners).await,
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

async fn wait_for_owners(yard: &Yard, object: &DynamicObject, owners: &BTreeSet<String>) -> Result<()> {
    let what = format!("{} to be owned by {owners:?}", object.name_any());
    let judged = eventually(SETTLED, &what, || async {
        let found = match yard.find(object).await {
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

/// What must become of each object. Of those that are deleted, the ledger says whether their dependents are orphaned.
fn fates(owners: &BTreeMap<String, BTreeSet<String>>, deleted: &BTreeMap<String, bool>) -> BTreeMap<String, Fate> {
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
    let fate = |(uid, of_it): (&String, BTreeSet<String>)| {
        let living = of_it
            .into_iter()
            .filter(|owner| owners.contains_key(owner) && !gone.contains(owner));
        let fate = if gone.contains(uid) {
            Fate::Gone
        } else {
            Fate::Left(living.collect())
        };
        (uid.clone(), fate)
    };
    kept.into_iter().map(fate).collect()
}

/// Objects as `name: owners`, what is deleted, and what is orphaned; and the fates of all.
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
    let fates = fates(&owners.collect(), &deleted.collect());
    let told = fates.iter().map(|(name, fate)| match fate {
        Fate::Gone => format!("-{name}"),
        Fate::Left(owners) => {
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
