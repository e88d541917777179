//! `garbage-collector-controller`: deletes dependents whose owners no longer exist, by
//! `metadata.ownerReferences`, as kube-controller-manager does.
//!
//! The graph is the collector's only store. Shared watches decode the metadata of objects for it.
//! It is pure and has its own crate, `portreeve-garbagecollector-graph`. This crate is the shell
//! (the part that does I/O): it watches resources, sends the requests that the graph asks for, and
//! carries out its decisions.
//!
//! The collector does not use plans. A plan is a fixed list of effects; an attempt alternates
//! between reads and steps of the graph, may wait for a resource without a worker, and passes the
//! deletion limit before it deletes. The queue, retries, events, the fence monitor and the classes
//! of errors are the framework's.
//!
//! # Decisions
//!
//! - A new leader scans the whole graph. It needs no relist, because a graph that lags delays
//!   deletions but never causes one.
//! - An owner that waits for its dependents is read again before they are deleted, because its
//!   deletion may have been changed to `propagationPolicy: Orphan`. The result is valid for 50 ms.
//! - References are edited by JSON patches that test them, so no version is needed and custom
//!   resources need no special case.
//! - Each deletion counts against the deletion limit before it is sent.
//! - A kind that is not served proves nothing, even if its CRD was deleted: the objects may stay in
//!   etcd.

mod shell;

use std::collections::HashSet;

use portreeve_reconcile::{BuildError, Context, Descriptor, Registrations, Rule};

pub use crate::shell::{AnnotateError, LeaseAnnotations};
use crate::shell::{Collector, Settings};

const LIMIT: &str = "gc-max-deletions-per-minute";

/// Describes the controller to the manager.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    log_target: module_path!(),
    aliases: &["garbagecollector"],
    // Most clusters already run a garbage collector.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    rules: &[Rule {
        groups: &["*"],
        resources: &["*"],
        verbs: &["delete", "get", "list", "patch", "watch"],
    }],
    webhooks: Vec::new,
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
            .help("'observe' deletes and changes no object: the collector logs and counts what it would do, and shows it under /debug/controllers/garbage-collector-controller/decisions")
            .default_value("active")
            .value_parser(["active", "observe"]),
        clap::Arg::new("gc-ignore-resources")
            .long("gc-ignore-resources")
            .value_name("LIST")
            .help("Resources that are neither collected nor watched, as RESOURCE.GROUP, or RESOURCE for the core group. The collector reads an owner of these resources with a GET")
            .action(clap::ArgAction::Append)
            .value_delimiter(',')
            .value_parser(ignorable)
            .default_value("events,events.events.k8s.io"),
        clap::Arg::new(LIMIT)
            .long(LIMIT)
            .value_name("N")
            .help("Stop deleting once this many objects were deleted within a minute, until someone removes the annotation garbage-collector.portreeve.dev/tripped from the Lease. 0 sets no limit")
            .default_value("0")
            .value_parser(clap::value_parser!(u32)),
    ]
}

/// An entry of `--gc-ignore-resources` that is no resource.
#[derive(Debug, thiserror::Error)]
#[error("expected RESOURCE.GROUP, such as events.events.k8s.io")]
struct InvalidResource;

/// Parses one entry of `--gc-ignore-resources`. An empty entry, as after a trailing comma, is
/// ignored.
fn ignorable(name: &str) -> Result<String, InvalidResource> {
    let name = name.trim();
    let is_part = |letter| matches!(letter, 'a'..='z' | '0'..='9' | '-' | '.');
    if name.chars().all(is_part) {
        Ok(name.to_owned())
    } else {
        Err(InvalidResource)
    }
}

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let observe = ctx.flag::<String>("gc-mode")? == "observe" || ctx.shared.dry_run;
    let ignored = ctx.flag_values::<String>("gc-ignore-resources")?;
    let ignored: HashSet<_> = ignored.into_iter().filter(|name| !name.is_empty()).collect();
    let limit = ctx.flag::<u32>(LIMIT)?;
    if limit > 0 && ctx.lease.is_none() && !observe {
        return Err(BuildError::Refused {
            controller: ctx.name,
            reason: format!(
                "--{LIMIT}={limit} needs leader election: the collector records on the Lease that the limit was reached, so that a restart does not resume deletions. \
                 Remove --leader-elect=false, or set --{LIMIT}=0"
            ),
        });
    }
    let settings = Settings {
        workers: ctx.flag::<u16>("concurrent-gc-syncs")?.into(),
        observe,
        ignored,
        limit,
    };
    Collector::build(ctx, settings)
}
