//! namespace-controller empties a namespace that is being deleted and then finalizes it, as
//! kube-controller-manager does. Without it, a deleted namespace stays in the phase Terminating
//! for ever.
//!
//! `content.rs` counts what is left in a namespace, `findings.rs` turns that into conditions, and
//! `shell.rs` does the rest: it reads, deletes, and waits for what other controllers must remove.
//!
//! A namespace is finalized only if a list of each of its resources was empty and no group version
//! may hide another one. The list is one of the namespace, sent in the same attempt and, for what
//! the attempt deleted, after the deletion; or one of all namespaces, sent after the grace of this
//! one (`shell/unused.rs`). This is the only controller that deletes without preconditions:
//! `shell/deletion.rs` says when.
//!
//! An attempt alternates between reads and deletions, so this crate has a shell like the garbage
//! collector's. The queue, retries, events, the fence monitor and the applier are the framework's.
//! An attempt keeps at most ten objects and fifty finalizers of each resource in memory.

mod content;
mod findings;
mod shell;

use std::time::Duration;

use portreeve_client::parse_duration;
use portreeve_reconcile::{BuildError, Context, Descriptor, Registrations, Rule};

use crate::shell::{Settings, build_controller};

const CONCURRENCY: &str = "concurrent-namespace-syncs";
const GRACE: &str = "namespace-deletion-grace";
const MODE: &str = "namespace-mode";
const REQUEST_TIMEOUT: &str = "namespace-request-timeout";
const STUCK_AFTER: &str = "namespace-stuck-after";

/// The descriptor of namespace-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "namespace-controller",
    log_target: module_path!(),
    aliases: &["namespace"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    crds: &[],
    policies: &[],
    // Those of kube-controller-manager's controller, which also gets every resource.
    rules: &[
        Rule {
            groups: &[""],
            resources: &["namespaces"],
            verbs: &["get"],
        },
        Rule {
            groups: &["coordination.k8s.io"],
            resources: &["leases"],
            verbs: &["get"],
        },
        Rule {
            groups: &[""],
            resources: &["namespaces/finalize", "namespaces/status"],
            verbs: &["update"],
        },
        Rule {
            groups: &["*"],
            resources: &["*"],
            verbs: &["delete", "deletecollection", "list", "watch"],
        },
    ],
    webhooks: Vec::new,
    flags,
    build,
};

fn flags() -> Vec<clap::Arg> {
    vec![
        clap::Arg::new(CONCURRENCY)
            .long(CONCURRENCY)
            .value_name("N")
            .help("The number of namespace-controller workers that are allowed to sync concurrently")
            .default_value("10")
            .value_parser(clap::value_parser!(u16).range(1..)),
        clap::Arg::new(GRACE)
            .long(GRACE)
            .value_name("DURATION")
            .help("How long to wait after the deletion of a namespace until its content is deleted, so that every apiserver rejects new objects in it. 0s is safe with a single apiserver")
            .default_value("5s")
            .value_parser(parse_duration),
        clap::Arg::new(MODE)
            .long(MODE)
            .value_name("MODE")
            .help("'active' deletes, except while a kube-controller-manager holds its Lease. 'always' deletes then too: use it if that one runs without its namespace-controller. 'observe' deletes and changes nothing: the controller logs what it would do, and shows it under /debug/controllers/namespace-controller/explain")
            .default_value("active")
            .value_parser(["active", "always", "observe"]),
        clap::Arg::new(REQUEST_TIMEOUT)
            .long(REQUEST_TIMEOUT)
            .value_name("DURATION")
            .help("The --request-timeout of the apiserver. After a deletion in a namespace that got no answer, the namespace is kept for this time and a margin, so that the deletion cannot reach another namespace of the same name")
            .default_value("60s")
            .value_parser(parse_duration),
        clap::Arg::new(STUCK_AFTER)
            .long(STUCK_AFTER)
            .value_name("DURATION")
            .help("Report a namespace that is still being deleted after this time: by an event, in /readyz and in metrics")
            .default_value("10m")
            .value_parser(parse_duration),
    ]
}

fn build(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let mode = ctx.flag::<String>(MODE)?;
    let settings = Settings {
        workers: ctx.flag::<u16>(CONCURRENCY)?.into(),
        grace: ctx.flag::<Duration>(GRACE)?,
        observe: mode == "observe" || ctx.shared.dry_run,
        yields: mode == "active",
        request_timeout: ctx.flag::<Duration>(REQUEST_TIMEOUT)?,
        stuck_after: ctx.flag::<Duration>(STUCK_AFTER)?,
    };
    build_controller(ctx, settings)
}
