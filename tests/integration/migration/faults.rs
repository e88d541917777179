//! Migrations that are interrupted, that meet writes of others, and whose requests fail.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use kube::api::{DeleteParams, Patch, PatchParams};
use portreeve_testing::{
    CannedResponse, Fault, FaultProxy, Matcher, Process, Repeat, RequestCounter, Signal, eventually,
};
use serde_json::json;

use super::{
    environment::{Environment, Gadgets, UNCONVERTIBLE, failed, shared, succeeded},
    steps::FAST,
};
use crate::fixtures::LIMIT;

const OBJECTS: u32 = 50;
/// The pages of a list after the first one, with the page size of [`FAST`].
const LATER_PAGES: u64 = 7;

/// A definition with objects in v1 and v2 served, and a proxy for the commands.
struct Migration<'a> {
    gadgets: Gadgets<'a>,
    proxy: FaultProxy,
    kubeconfig: std::path::PathBuf,
}

impl<'a> Migration<'a> {
    async fn prepare(environment: &'a Environment, name: &str) -> Result<Self> {
        let gadgets = environment.gadgets(name).await?;
        gadgets.create_many(OBJECTS).await?;
        gadgets.enable().await?;
        let proxy = FaultProxy::start(&environment.plane).await?;
        let kubeconfig = proxy.kubeconfig(environment.plane.kubeconfig(), name)?;
        Ok(Self {
            gadgets,
            proxy,
            kubeconfig,
        })
    }

    /// Starts a migration, and holds it at the write of this object.
    async fn start_until(&self, object: &str) -> Result<(Process, RequestCounter)> {
        let write = Matcher::writes().resource("gadgets").name(object);
        let held = self.proxy.fault(write, Fault::BlackHole, Repeat::UntilHealed);
        let process = self.gadgets.spawn(&self.kubeconfig, &FAST)?;
        held.wait_for_applied(1, LIMIT)
            .await
            .with_context(|| process.log_tail())?;
        Ok((process, held))
    }

    /// Starts a migration, holds it at one write, and waits until the rest of the page is written:
    /// 23 objects are stored in v1 and 27 in v2.
    async fn start_until_half(&self) -> Result<(Process, RequestCounter)> {
        // The page has the objects 21 to 27.
        let started = self.start_until("g-00025").await?;
        eventually(LIMIT, "the rest of the page to be written", || async {
            let (old, new) = self.gadgets.stored_in().await?;
            ensure!((old, new) == (23, 27), "{old} in v1, {new} in v2");
            anyhow::Ok(())
        })
        .await?;
        Ok(started)
    }

    /// Runs a migration to its end, and returns what it printed and how many objects it has tried
    /// to write.
    async fn complete(&self) -> Result<(String, u64)> {
        let writes = self.proxy.count(Matcher::writes().resource("gadgets"));
        let printed = succeeded(&self.gadgets.run(&self.kubeconfig, &FAST).await?)?;
        self.verify().await?;
        Ok((printed, writes.matched()))
    }

    /// Checks that all objects are stored in v2.
    async fn verify(&self) -> Result<()> {
        let (old, _) = self.gadgets.stored_in().await?;
        ensure!(old == 0, "{old} objects are stored in v1");
        let versions = self.gadgets.versions().await?;
        ensure!(versions == "served v1 v2, storage v2, [\"v2\"]", "{versions}");
        Ok(())
    }
}

async fn succeeds(process: &Process) -> Result<()> {
    let status = process.wait(LIMIT).await?;
    ensure!(status.success(), "{status}{}", process.log_tail());
    Ok(())
}

#[tokio::test]
async fn a_killed_migration_continues_where_it_stopped() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "killed").await?;
    let (process, held) = migration.start_until_half().await?;
    let versions = migration.gadgets.versions().await?;
    ensure!(versions.ends_with("storage v2, [\"v1\",\"v2\"]"), "{versions}");
    process.signal(Signal::KILL)?;
    process.wait(LIMIT).await?;
    migration.proxy.heal_one(&held);

    let (printed, writes) = migration.complete().await?;
    ensure!(printed.contains("23 written, 27 stored in v2 before"), "{printed}");
    ensure!(writes == 23, "{writes} writes");
    Ok(())
}

/// An apiserver that has not learned the storage version yet would store objects in v1.
#[tokio::test]
async fn no_object_is_written_before_the_wait_is_over() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "waiting").await?;
    let writes = migration.proxy.count(Matcher::writes().resource("gadgets"));
    let process = migration
        .gadgets
        .spawn(&migration.kubeconfig, &["migrate", "--switch-delay=1h"])?;
    let waiting = |line: &str| line.starts_with("waiting until every apiserver stores objects in v2");
    process.wait_for_log(LIMIT, waiting).await?;
    let versions = migration.gadgets.versions().await?;
    ensure!(versions.ends_with("storage v2, [\"v1\",\"v2\"]"), "{versions}");
    process.signal(Signal::KILL)?;
    process.wait(LIMIT).await?;
    ensure!(writes.matched() == 0, "{} writes", writes.matched());

    let again = migration
        .gadgets
        .spawn(&migration.kubeconfig, &["migrate", "--switch-delay=1h"])?;
    again.wait_for_log(LIMIT, waiting).await?;
    let log = std::fs::read_to_string(again.log().context("no log")?)?;
    let switches = log.matches("the storage version of").count();
    ensure!(switches == 1, "the wait began again: {log}");
    drop(again);
    migration.complete().await?;
    Ok(())
}

#[tokio::test]
async fn a_migration_survives_a_restart_of_the_apiserver() -> Result<()> {
    let environment = Environment::start().await?;
    let migration = Migration::prepare(&environment, "restarted").await?;
    let (process, held) = migration.start_until("g-00025").await?;
    environment.plane.apiserver().stop().await?;
    migration.proxy.heal_one(&held);
    environment.plane.apiserver().start().await?;
    succeeds(&process).await?;
    migration.verify().await
}

#[tokio::test]
async fn objects_that_others_write_or_delete_need_no_write() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "others").await?;
    let objects = migration.gadgets.api("v1");
    let (changed, deleted, replaced) = ("g-00022", "g-00023", "g-00024");
    let others = [deleted, replaced].map(|name| {
        let write = Matcher::writes().resource("gadgets").name(name);
        migration.proxy.fault(write, Fault::BlackHole, Repeat::UntilHealed)
    });
    let (process, held) = migration.start_until(changed).await?;
    for other in &others {
        other.wait_for_applied(1, LIMIT).await?;
    }
    let larger = Patch::Merge(json!({"spec": {"size": 1000}}));
    objects.patch(changed, &PatchParams::default(), &larger).await?;
    objects.delete(deleted, &DeleteParams::default()).await?;
    objects.delete(replaced, &DeleteParams::default()).await?;
    migration.gadgets.create("v1", replaced, json!({"size": 2000})).await?;
    for fault in others.iter().chain([&held]) {
        migration.proxy.heal_one(fault);
    }
    succeeds(&process).await?;
    migration.verify().await?;
    ensure!(objects.get(changed).await?.data["spec"] == json!({"size": 1000}));
    ensure!(objects.get(replaced).await?.data["spec"] == json!({"size": 2000}));
    ensure!(objects.get_opt(deleted).await?.is_none());
    Ok(())
}

#[tokio::test]
async fn requests_that_fail_are_repeated() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "repeated").await?;
    let proxy = &migration.proxy;
    let write = |number: u32| Matcher::writes().resource("gadgets").name(format!("g-{number:05}"));
    let busy = CannedResponse::too_many_requests(1);
    proxy.respond(write(1), busy, Repeat::Next(2));
    proxy.respond(write(2), CannedResponse::unavailable(), Repeat::Next(1));
    proxy.respond(write(3), CannedResponse::internal_error(), Repeat::Next(2));
    proxy.fault(write(4), Fault::DropResponse, Repeat::Next(1));
    proxy.fault(write(5), Fault::Cut, Repeat::Next(1));
    // The first pages are those of the list before the switch.
    let pages = Matcher::later_pages().resource("gadgets");
    proxy.respond(
        pages.clone(),
        CannedResponse::unavailable(),
        Repeat::Nth(LATER_PAGES + 2),
    );
    // The list begins again, and what is written already is left alone.
    let expired = proxy.respond(pages, CannedResponse::expired(), Repeat::Nth(LATER_PAGES + 5));
    let (printed, writes) = migration.complete().await?;
    ensure!(expired.applied() == 1);
    ensure!(
        printed.contains("49 written") && printed.contains("1 changed or deleted by others"),
        "{printed}"
    );
    ensure!(writes == u64::from(OBJECTS) + 7, "{writes} writes");
    Ok(())
}

#[tokio::test]
async fn objects_that_cannot_be_written_are_reported() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "rejected").await?;
    let write = Matcher::writes().resource("gadgets").name("g-00030");
    let rejection = CannedResponse::status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "a rule has changed");
    let rejected = migration.proxy.respond(write, rejection, Repeat::UntilHealed);
    let output = migration.gadgets.run(&migration.kubeconfig, &FAST).await?;
    let (printed, errors) = failed(&output)?;
    ensure!(
        printed.contains("49 written") && printed.contains("1 failed"),
        "{printed}"
    );
    ensure!(
        errors.contains("default/g-00030: a rule has changed (Invalid)\n"),
        "{errors}"
    );
    ensure!(
        errors.contains("1 object of ") && errors.contains("status.storedVersions is unchanged"),
        "{errors}"
    );
    ensure!(migration.gadgets.stored_in().await? == (1, 49));
    let versions = migration.gadgets.versions().await?;
    ensure!(versions.ends_with("[\"v1\",\"v2\"]"), "{versions}");

    migration.proxy.heal_one(&rejected);
    let (_, writes) = migration.complete().await?;
    ensure!(writes == 1, "{writes} writes");
    Ok(())
}

/// The first page can be read.
#[tokio::test]
async fn nothing_is_switched_while_one_object_cannot_be_converted() -> Result<()> {
    let gadgets = shared().await?.gadgets("one-unconverted").await?;
    gadgets.create("v1", "a", json!({"size": 1})).await?;
    gadgets.create("v1", UNCONVERTIBLE, json!({"size": 1})).await?;
    gadgets.enable().await?;
    let (_, error) = gadgets.fail(&["migrate", "--switch-delay=0s", "--page-size=1"]).await?;
    ensure!(
        error.contains("nothing was changed") && error.contains("this object cannot be converted"),
        "{error}"
    );
    ensure!(gadgets.versions().await? == "served v1 v2, storage v1, [\"v1\"]");
    Ok(())
}

/// Somebody may have stored objects in v1 meanwhile.
#[tokio::test]
async fn a_change_of_the_definition_makes_the_migration_begin_again() -> Result<()> {
    let migration = Migration::prepare(shared().await?, "changed").await?;
    let gadgets = &migration.gadgets;
    let (process, held) = migration.start_until_half().await?;
    for storage in ["v1", "v2"] {
        let mut definition = gadgets.definitions().get(&gadgets.name()).await?;
        for version in &mut definition.spec.versions {
            version.storage = version.name == storage;
        }
        gadgets
            .definitions()
            .replace(&gadgets.name(), &kube::api::PostParams::default(), &definition)
            .await?;
        if storage == "v1" {
            eventually(LIMIT, "new objects to be stored in v1", || async {
                gadgets.create("v1", "late", json!({"size": 1})).await.ok();
                let (old, _) = gadgets.stored_in().await?;
                if old == 23 {
                    gadgets.api("v1").delete("late", &DeleteParams::default()).await?;
                }
                ensure!(old > 23, "{old} in v1");
                anyhow::Ok(())
            })
            .await?;
        }
    }
    migration.proxy.heal_one(&held);
    let status = process.wait(LIMIT).await?;
    ensure!(!status.success());
    let log = process.log_tail();
    ensure!(log.contains("was changed during the migration"), "{log}");
    let versions = gadgets.versions().await?;
    ensure!(versions.ends_with("[\"v1\",\"v2\"]"), "{versions}");
    let (old, _) = gadgets.stored_in().await?;
    ensure!(old == 1, "{old} in v1: the object that was created meanwhile");
    migration.complete().await?;
    Ok(())
}
