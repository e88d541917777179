//! What the collector has to do.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
};

use portreeve_reconcile::{Activity, ActivityChecker};

use super::{ATTEMPTS, CollectorContext, ORPHANS, monitors, queued_object::QueuedObject};

impl CollectorContext {
    /// Returns the checker of what the collector has to do.
    pub(super) fn activity_checker(self: &Arc<Self>) -> ActivityChecker {
        let weak = Arc::downgrade(self);
        ActivityChecker::new(self.name, move || {
            weak.upgrade().map(|ctx| ctx.activity()).unwrap_or_default()
        })
    }

    fn activity(&self) -> Activity {
        let mut activity = Activity {
            is_running: self.active.load(Ordering::Relaxed),
            served: self.served.borrow().clone(),
            ..Activity::default()
        };
        let name = |object: &QueuedObject| self.graph.lock().name(object.uid);
        activity.add_queue(ATTEMPTS, &self.attempts, name);
        activity.add_queue(ORPHANS, &self.orphans, name);
        activity.left.extend(self.unwatched());
        activity
    }

    /// Returns the resources that are known to be served and are not watched yet.
    fn unwatched(&self) -> Vec<String> {
        let Some(served) = self.served.borrow().clone() else {
            return vec!["discovery has not answered".to_owned()];
        };
        let watched: HashSet<_> = self
            .watched
            .borrow()
            .iter()
            .map(|state| state.resource.clone())
            .collect();
        let wanted = monitors::collectable(&served, &self.settings.ignored);
        let unwatched = wanted.filter(|resource| !watched.contains(*resource));
        unwatched
            .map(|resource| format!("starting to watch {resource}"))
            .collect()
    }
}
