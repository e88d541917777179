//! ttl-after-finished-controller deletes objects whose time to live has expired, as
//! kube-controller-manager does. So far these are Jobs with `ttlSecondsAfterFinished`.
//!
//! `expiry.rs` decides when to delete an object, whatever its kind. `job.rs` computes the lifetime
//! of a Job. To add a kind, implement `Expiring` and build it in `build`. There is no heap of
//! expiry times here: each plan contains the time of the next decision, and the work queue stores
//! it.
//!
//! Architecture Invariant: this crate has no client, no async code and no clock.

mod expiry;
mod job;
mod reconciler;

use portreeve_informer::{Informer, Watch};
use portreeve_reconcile::{BuildError, Context, Descriptor, KeyedController, Registrations, Rule};

use crate::{expiry::Expiring, job::CachedJob, reconciler::TtlReconciler};

/// The flag for the number of workers.
const CONCURRENCY: &str = "concurrent-ttl-after-finished-syncs";

/// The descriptor of ttl-after-finished-controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-after-finished-controller",
    log_target: module_path!(),
    aliases: &["ttl-after-finished"],
    // Most clusters run kube-controller-manager, which already has this controller.
    on_by_default: false,
    in_testenv: true,
    // Jobs are built into Kubernetes.
    crds: &[],
    policies: &[],
    // No `get`: the deletion's preconditions replace a last read.
    rules: &[Rule {
        groups: &["batch"],
        resources: &["jobs"],
        verbs: &["delete", "list", "watch"],
    }],
    webhooks: Vec::new,
    flags: || {
        vec![
            clap::Arg::new(CONCURRENCY)
                .long(CONCURRENCY)
                .value_name("N")
                .help("The number of ttl-after-finished-controller workers that are allowed to sync concurrently")
                .default_value("5")
                .value_parser(clap::value_parser!(u16).range(1..)),
        ]
    },
    build: build::<CachedJob>,
};

fn build<K: Expiring>(ctx: &Context<'_>) -> Result<Registrations, BuildError> {
    let workers = ctx.flag::<u16>(CONCURRENCY)?;
    let objects: Informer<K> = ctx.informer(Watch::all(K::RESOURCE));
    let reconciler = TtlReconciler {
        objects: objects.clone(),
    };
    let controller = KeyedController::new(ctx, K::QUEUE, reconciler)
        .workers(workers.into())
        .latency(K::LATENCY_METRIC, K::LATENCY_HELP, K::LATENCY_BUCKETS)?
        // Every change enqueues the key, also of an object that does not expire. If a user removes
        // the TTL or the object, the next decision removes the key from the queue's heap of timers.
        .watch(&objects, |delta| [delta.key()]);
    Ok(controller.build())
}
