//! `kubectl portreeve migrate`: stores all objects of a CustomResourceDefinition in one version.
//!
//! The apiserver stores an object in the storage version when it is written. So each object is
//! written without a change, after every apiserver has learned the new storage version. Which
//! objects still need that follows from their resourceVersion: those that were written later are
//! stored in the new version already. So the command can be killed at any time and run again.

mod rewrite;
mod switch;

use std::{io::Write as _, time::Duration};

use portreeve_client::parse_duration;
use serde_json::json;

use self::{rewrite::Pass, switch::Switch};
use super::{
    Error,
    cluster::Cluster,
    definition::Definition,
    error::objects,
    objects::{Pages, find},
    progress::{Progress, report},
};

/// How many objects are named that were not written for no reason of their own.
const MAX_LINES: usize = 100;

/// The arguments of `kubectl portreeve migrate`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The version to store all objects in. Defaults to the newest version
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,
    /// Print what would happen, and how many objects there are, without writing anything
    #[arg(long)]
    dry_run: bool,
    /// The number of objects in a page of the list
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    page_size: u32,
    /// The number of objects that are written at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=100))]
    concurrency: u16,
    /// How long every apiserver may take to learn the storage version
    #[arg(long, hide = true, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    switch_delay: Duration,
    #[command(flatten)]
    cluster: super::ClusterArgs,
}

/// Runs `kubectl portreeve migrate`.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    super::block_on(async { migrate(args, &args.cluster.connect().await?).await })
}

async fn migrate(args: &Args, cluster: &Cluster) -> Result<(), Error> {
    let definition = cluster.first_read().await?;
    let target = args.to.as_deref().unwrap_or_else(|| definition.newest());
    check(cluster, &definition, target).await?;
    let list = |size| Pages::new(cluster, &definition, target, size);
    let newer = definition.annotations_of_newer(target);
    if args.dry_run || definition.stores_only(target) {
        let (inexpressible, count) = find(list(args.page_size), |object| object.has_any(&newer)).await?;
        if definition.stores_only(target) {
            print(&format!(
                "{} is stored in {target} only: {}",
                cluster.name,
                objects(count)
            ))?;
        } else {
            print(&preview(&definition, target, count, inexpressible.len() as u64))?;
        }
        return expressible(&definition, target, &inexpressible);
    }

    if !switch::is_recorded(&definition, target) {
        read_all(cluster, list(args.page_size), target).await?;
    }
    let written_since = Switch::new(cluster, target, args.switch_delay).complete().await?;
    let pass = Pass {
        cluster,
        definition: &definition,
        target,
        written_since,
        page_size: args.page_size,
        concurrency: args.concurrency.into(),
    };
    let outcome = pass.run().await?;
    for (key, reason) in &outcome.failures {
        report(&format!("{key}: {reason}"));
    }
    let missing = pass.missing(&outcome).await?;
    let others = || missing.iter().filter(|key| !outcome.failures.contains_key(*key));
    for key in others().take(MAX_LINES) {
        report(&format!("{key}: not stored in {target} yet"));
    }
    if let more @ 1.. = others().count().saturating_sub(MAX_LINES) {
        report(&format!("and {more} more objects"));
    }
    print(&outcome.summary(&cluster.name, target))?;
    if !missing.is_empty() {
        return Err(Error::Incomplete {
            name: cluster.name.clone(),
            version: target.to_owned(),
            count: missing.len() as u64,
        });
    }
    let inexpressible: Vec<_> = outcome.inexpressible.into_iter().collect();
    expressible(&definition, target, &inexpressible)?;
    finish(cluster, target).await
}

/// Checks that the migration can work, before it changes anything.
async fn check(cluster: &Cluster, definition: &Definition, target: &str) -> Result<(), Error> {
    let (name, version) = (|| cluster.name.clone(), || target.to_owned());
    let Some(state) = definition.version(target) else {
        return Err(Error::UnknownVersion {
            name: name(),
            version: version(),
            versions: definition.version_names(),
        });
    };
    if !state.is_served {
        return Err(Error::NotServed {
            name: name(),
            version: version(),
        });
    }
    if !definition.has_webhook() && !definition.stores_only(target) {
        return Err(Error::NoWebhook {
            name: name(),
            stored: definition.stored_versions.join(", "),
        });
    }
    readable(Pages::new(cluster, definition, target, 1).next().await).map(drop)
}

/// Reads every object in the target version: one that cannot be converted must be found before the
/// storage version is changed.
async fn read_all(cluster: &Cluster, mut pages: Pages<'_>, target: &str) -> Result<(), Error> {
    let progress = Progress::new(&format!("reading all objects of {} in {target}", cluster.name), 0);
    while let Some(page) = readable(pages.next().await)? {
        progress.set_total(page.seen + page.remaining);
        progress.set(page.seen);
    }
    Ok(())
}

/// Says of a failed list that nothing was changed.
fn readable<T>(listed: Result<T, Error>) -> Result<T, Error> {
    listed.map_err(|error| match error {
        Error::List { name, version, source } => Error::Unreadable { name, version, source },
        other => other,
    })
}

/// Returns what the command would do with all objects, some of which the version cannot express.
fn preview(definition: &Definition, target: &str, count: u64, inexpressible: u64) -> String {
    let Definition { name, .. } = definition;
    let stored = definition.stored_versions.join(", ");
    let last = if inexpressible == 0 {
        format!("would set status.storedVersions to [{target}]; it is [{stored}]")
    } else {
        format!("would not change status.storedVersions, which is [{stored}]")
    };
    format!(
        "would set the storage version of {name} to {target}; it is {}\n\
         would write up to {} without a change, for storage in {target}\n{last}",
        definition.storage(),
        objects(count - inexpressible)
    )
}

/// Lists the objects that the target version cannot express, and returns an error if there are any.
pub(super) fn expressible(definition: &Definition, target: &str, inexpressible: &[String]) -> Result<(), Error> {
    if inexpressible.is_empty() {
        return Ok(());
    }
    print(&format!("{target} cannot express:\n  {}", inexpressible.join("\n  ")))?;
    Err(Error::Inexpressible {
        name: definition.name.clone(),
        version: target.to_owned(),
        count: inexpressible.len() as u64,
        annotation: definition.annotations_of_newer(target).join(" or "),
    })
}

/// Removes the other versions from `status.storedVersions`, unless the spec has changed meanwhile.
async fn finish(cluster: &Cluster, target: &str) -> Result<(), Error> {
    let shortened = cluster.change_status(|definition| {
        if !switch::is_complete(definition, target) {
            return Err(Error::DefinitionChanged {
                name: definition.name.clone(),
                version: target.to_owned(),
            });
        }
        let shorten = json!({"op": "replace", "path": "/status/storedVersions", "value": [target]});
        Ok((!definition.stores_only(target))
            .then_some(shorten)
            .into_iter()
            .collect())
    });
    shortened.await?;
    print(&format!("status.storedVersions of {} is [{target}]", cluster.name))
}

pub(super) fn print(text: &str) -> Result<(), Error> {
    writeln!(std::io::stdout(), "{text}").map_err(Error::Print)
}
