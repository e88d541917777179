//! Controllers that are stuck until a test lets them go on.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_reconcile::{Controller, ControllerFailure, Descriptor, Plan, QueueHealthChecker, Reconciler, Shutdown};
use portreeve_workqueue::{Lane, Outcome, Queue};
use tokio::sync::Notify;

use crate::controllers::{descriptor, idle, one_flag, watched};

/// The ConfigMap at which a worker hangs.
pub(super) const TRAP: &str = "trap";
/// Opens the trap of [`HANGING`].
pub(super) static TRAPPED: Barrier = Barrier::closed();
/// Opens the trap of [`BLOCKING`].
pub(super) static BLOCKED: Barrier = Barrier::closed();
/// Has the queue attended to that nobody takes from.
pub(super) static ATTENDED: Notify = Notify::const_new();

/// Both look at the same ConfigMaps; the first has two workers, and hangs at one of them.
pub(super) const HANGING: &[Descriptor] = &[
    descriptor("hanging-controller", one_flag, |setup| {
        let maps = watched(setup)?;
        let keyed = setup.keyed("Hanging", Hanging(&TRAPPED)).workers(2);
        Ok(keyed.watch(&maps, |delta| [delta.key()]).build())
    }),
    descriptor("moving-controller", Vec::new, |setup| idle(setup, "Moving")),
];

/// Hangs as well, in another test.
pub(super) const BLOCKING: &[Descriptor] = &[descriptor("blocking-controller", one_flag, |setup| {
    let maps = watched(setup)?;
    let keyed = setup.keyed("Blocking", Hanging(&BLOCKED));
    Ok(keyed.watch(&maps, |delta| [delta.key()]).build())
})];

/// Its only item is due from the start, and its worker looks away.
pub(super) const UNATTENDED: &[Descriptor] = &[descriptor("unattended-controller", Vec::new, |setup| {
    let queue = Queue::new("Unattended", &setup.shared.queues);
    let tell = |key: &&str| (*key).to_owned();
    setup
        .queue_health_checkers
        .push(QueueHealthChecker::of(setup.name, "Unattended", queue.clone(), tell));
    Ok(Box::new(Unattended(queue)))
})];

/// Holds threads up until it is opened.
pub(super) struct Barrier {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Barrier {
    const fn closed() -> Self {
        Self {
            is_open: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    pub(super) fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    /// Blocks the thread, though not for ever: a test that fails has to end.
    fn pass(&self) {
        let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self
            .opened
            .wait_timeout_while(is_open, Duration::from_mins(1), |is_open| !*is_open);
        drop(passed);
    }
}

struct Hanging(&'static Barrier);

impl Reconciler for Hanging {
    type Observed = ();

    fn observe(&self, key: &ObjectKey) -> Option<()> {
        if &*key.name == TRAP {
            self.0.pass();
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
                ATTENDED.notified().await;
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
