//! ttl-after-finished-controller: deletes what has outlived its time, as kube-controller-manager does. So far that is Jobs with
//! `ttlSecondsAfterFinished`.
//!
//! `expiry.rs` decides when an object is deleted and knows no Job; `job.rs` says how long a Job lives. Another kind is another
//! `Expiring`, and a line in `build`. There is no heap of times here: each plan says when to look again, and the work queue keeps that.
//!
//! Architecture Invariant: no client, no async, no clock.

mod expiry;
mod job;

use portreeve_informer::{Informer, Watch};
use portreeve_reconcile::{BuildError, Controller, Descriptor, Rule, Setup};

use crate::{
    expiry::{Expiring, TtlReconciler},
    job::CachedJob,
};

/// How many objects are worked on at once.
const CONCURRENCY: &str = "concurrent-ttl-after-finished-syncs";

/// The plug.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-after-finished-controller",
    aliases: &["ttl-after-finished"],
    // Most clusters have a kube-controller-manager that does this.
    on_by_default: false,
    // Jobs are Kubernetes' own.
    crds: Vec::new,
    // No `get`: the deletion's preconditions are in place of a last look.
    rules: &[Rule {
        groups: &["batch"],
        resources: &["jobs"],
        verbs: &["delete", "list", "watch"],
    }],
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

fn build<K: Expiring>(setup: &mut Setup<'_>) -> Result<Box<dyn Controller>, BuildError> {
    let workers = setup.flag::<u16>(CONCURRENCY)?;
    let objects: Informer<K> = setup.informer(Watch::all(K::RESOURCE));
    let reconciler = TtlReconciler {
        objects: objects.clone(),
    };
    let controller = setup
        .keyed(K::QUEUE, reconciler)
        .workers(workers.into())
        .latency(K::LATENCY_METRIC, K::LATENCY_HELP)?
        // Every change, also of what does not expire: whoever takes a time back, or the object away, takes the key out of the heap.
        .watch(&objects, |delta| [delta.key()]);
    Ok(controller.build())
}
