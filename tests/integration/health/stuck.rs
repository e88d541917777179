//! Controllers that are stuck until a test releases them.

use futures::future::BoxFuture;
use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_reconcile::{
    Controller, ControllerFailure, Descriptor, KeyedController, Plan, QueueHealthChecker, Reconciler, Registrations,
    Shutdown,
};
use portreeve_workqueue::{Lane, Outcome, Queue};
use tokio::sync::Notify;

use crate::{
    controllers::{config_map_informer, descriptor, idle, one_flag},
    fixtures::barrier::Barrier,
};

/// The name of the ConfigMap on which a worker hangs.
pub(super) const HANGING_MAP: &str = "trap";
/// Blocks a worker of [`HANGING`].
pub(super) static HANGING_BARRIER: Barrier = Barrier::closed();
/// Starts the worker of [`UNATTENDED`].
pub(super) static START_WORKER: Notify = Notify::const_new();

/// Two controllers that watch the same ConfigMaps. The first has two workers, one of which hangs.
pub(super) const HANGING: &[Descriptor] = &[
    descriptor("hanging-controller", one_flag, |ctx| {
        let maps = config_map_informer(ctx)?;
        let keyed = KeyedController::new(ctx, "Hanging", Hanging).workers(2);
        Ok(keyed.watch(&maps, |delta| [delta.key()]).build())
    }),
    descriptor("moving-controller", Vec::new, |ctx| idle(ctx, "Moving")),
];

/// A controller with one item that is due from the start and that no worker takes.
pub(super) const UNATTENDED: &[Descriptor] = &[descriptor("unattended-controller", Vec::new, |ctx| {
    let queue = Queue::new("Unattended", &ctx.shared.queues);
    let name_of_key = |key: &&str| (*key).to_owned();
    let checker = QueueHealthChecker::of(ctx.name, "Unattended", queue.clone(), name_of_key);
    Ok(Registrations {
        queue_health_checkers: vec![checker],
        ..Registrations::new(Unattended(queue))
    })
})];

struct Hanging;

impl Reconciler for Hanging {
    type Observed = ();

    fn observe(&self, key: &ObjectKey) -> Option<()> {
        if &*key.name == HANGING_MAP {
            HANGING_BARRIER.pass();
        }
        Some(())
    }

    fn decide(&self, (): &(), _now: Timestamp) -> Plan {
        Plan::nothing()
    }
}

struct Unattended(Queue<&'static str>);

impl Controller for Unattended {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        Box::pin(async move {
            self.0.add("default/web", Lane::Urgent);
            let work = async {
                START_WORKER.notified().await;
                while let Some(work) = self.0.take().await {
                    work.finish(Outcome::Forget);
                }
            };
            tokio::select! {
                () = work => {}
                () = stop.requested() => {}
            }
            Ok(())
        })
    }
}
