//! `garbage-collector-controller`: collects what its owners have left behind, by ownerReferences, as Kubernetes does.
//!
//! The graph is the one store: metadata-only watches decode straight into its nodes. It is pure: [`Graph`] takes changes in, and says whom
//! to look at; [`Graph::step`] says of one object what has to be asked and what has to be done; [`verdict::decide`] is the rule. The shell
//! around it watches, asks, and carries out what was decided.
//!
//! Architecture Invariant: an object whose owner is alive is never deleted. A deletion carries the UID and version that it was decided on,
//! and every owner that it goes by is proven absent, or was just seen to wait for its dependents.

mod absent_owner_cache;
mod dump;
mod explain;
mod graph;
mod identity;
mod intern;
mod metadata;
mod shell;
mod uid;
pub mod verdict;

use std::collections::HashSet;

use portreeve_reconcile::{BuildError, Controller, Descriptor, Rule, Setup};

pub use absent_owner_cache::Lookups;
pub use graph::*;
pub use identity::Identity;
pub use metadata::{Finalizers, PartialMetadata, PartialObject, Reference};
pub use uid::Uid;

use crate::shell::{Collector, Settings};

const LIMIT: &str = "gc-max-deletions-per-minute";

/// The plug.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    aliases: &["garbagecollector"],
    // Most clusters have one already.
    on_by_default: false,
    crds: Vec::new,
    rules: &[Rule {
        groups: &["*"],
        resources: &["*"],
        verbs: &["delete", "get", "list", "patch", "watch"],
    }],
    flags,
    build,
};

fn flags() -> Vec<clap::Arg> {
    vec![
        clap::Arg::new("concurrent-gc-syncs")
            .long("concurrent-gc-syncs")
            .value_name("N")
            .help("The number of garbage collector workers that are allowed to sync concurrently")
            .default_value("20")
            .value_parser(clap::value_parser!(u16).range(1..)),
        clap::Arg::new("gc-mode")
            .long("gc-mode")
            .value_name("MODE")
            .help("'observe' deletes and changes no object: what would be done is logged, counted and shown under /debug/controllers/garbage-collector-controller/decisions")
            .default_value("active")
            .value_parser(["active", "observe"]),
        clap::Arg::new("gc-ignore-resources")
            .long("gc-ignore-resources")
            .value_name("LIST")
            .help("Resources, as RESOURCE.GROUP or, of the core group, RESOURCE, that are neither collected nor watched. An owner among them is asked for instead")
            .action(clap::ArgAction::Append)
            .value_delimiter(',')
            .value_parser(ignorable)
            .default_value("events,events.events.k8s.io"),
        clap::Arg::new(LIMIT)
            .long(LIMIT)
            .value_name("N")
            .help("Stop deleting once this many objects were deleted within a minute, until somebody removes the annotation garbage-collector.portreeve.dev/tripped from the Lease. 0 is no limit")
            .default_value("0")
            .value_parser(clap::value_parser!(u32)),
    ]
}

/// One of `--gc-ignore-resources`. Nothing, as behind the last comma, is none.
fn ignorable(name: &str) -> Result<String, String> {
    let name = name.trim();
    let is_part = |letter| matches!(letter, 'a'..='z' | '0'..='9' | '-' | '.');
    if name.chars().all(is_part) {
        Ok(name.to_owned())
    } else {
        Err("it is no RESOURCE.GROUP such as events.events.k8s.io".to_owned())
    }
}

fn build(setup: &mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError> {
    let observe = setup.flag::<String>("gc-mode")? == "observe" || setup.shared.dry_run;
    let ignored = setup.flag_values::<String>("gc-ignore-resources")?;
    let ignored: HashSet<_> = ignored.into_iter().filter(|name| !name.is_empty()).collect();
    let limit = setup.flag::<u32>(LIMIT)?;
    if limit > 0 && setup.lease_annotations.is_none() && !observe {
        return Err(BuildError::Refused {
            controller: setup.name,
            reason: format!(
                "--{LIMIT}={limit} needs leader election: that the limit was reached is noted on the Lease, so that it outlives a restart. \
                 Drop --leader-elect=false, or set --{LIMIT}=0"
            ),
        });
    }
    let settings = Settings {
        workers: setup.flag::<u16>("concurrent-gc-syncs")?.into(),
        observe,
        ignored,
        limit,
    };
    Collector::build(setup, settings)
}
