//! What a process remembers of schedules: what neither their status nor their Jobs may tell any more.
//!
//! A Job is the record of its run until the status has it. Should it go before that, as with a short ttlSecondsAfterFinished while
//! the status cannot be written, this is what keeps the run from being made again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use portreeve_informer::{Change, Delta, Informer, Projection};

use crate::{
    decide::Recalled,
    job::{Origin, SeenJob},
    kind::Kind,
};

impl Recalled {
    /// Notes a Job of this object.
    pub(crate) fn note<K: Kind>(&mut self, object: &K, job: &SeenJob, now: Timestamp) {
        match job.origin(&object.metadata().name) {
            Origin::Slot(slot) if slot <= now => self.served = self.served.max(Some(slot)),
            Origin::RunNow(value) if object.orders().run_now.as_deref() == Some(&*value) => self.answered = Some(value),
            _ => {}
        }
    }
}

/// What is remembered, by UID. Clones are one.
///
/// Bounded by the objects that exist: an entry goes with its object, and none is made without it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recall(Arc<Mutex<HashMap<Arc<str>, Recalled>>>);

impl Recall {
    /// Notes that a schedule became another one, or went.
    pub(crate) fn note<K: Kind>(&self, delta: &Delta<K>, is_rescheduled: fn(&Arc<K>, &Arc<K>) -> bool, now: Timestamp) {
        match &delta.change {
            Change::Added(_) => {}
            Change::Updated { old, new } => {
                if is_rescheduled(old, new) {
                    self.change(&new.metadata().uid, |recalled| recalled.rescheduled = Some(now));
                }
            }
            Change::Deleted { last, .. } => {
                let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                known.remove(&last.metadata().uid);
            }
        }
    }

    /// Notes which run a Job is the record of, also when it goes.
    pub(crate) fn note_job<K: Kind>(&self, delta: &Delta<SeenJob>, objects: &Informer<K>, now: Timestamp) {
        let job = delta.change.object();
        let owner = job.metadata().controller();
        let Some(owner) = owner.filter(|owner| *owner.kind == *K::RESOURCE.kind) else {
            return;
        };
        let Some(object) = objects.get(&delta.key().sibling(&*owner.name)) else {
            return;
        };
        let uid = &object.metadata().uid;
        if **uid != *owner.uid {
            return;
        }
        self.change(uid, |recalled| recalled.note(&*object, job, now));
    }

    pub(crate) fn get(&self, uid: &str) -> Recalled {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(uid).cloned().unwrap_or_default()
    }

    fn change(&self, uid: &Arc<str>, change: impl FnOnce(&mut Recalled)) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(known.entry(Arc::clone(uid)).or_default());
    }
}
