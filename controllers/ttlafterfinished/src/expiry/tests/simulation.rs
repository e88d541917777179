//! A simulation of one object on an apiserver, its cache, and the process that decides on the
//! cache.

use super::*;

/// Milliseconds since the epoch.
type Millis = i64;

/// The delay before a retry after a 409.
const BACKOFF: Millis = 100;

#[derive(Default)]
pub(super) struct Simulation {
    now: Millis,
    /// The object after each change; the last entry is its current state.
    history: Vec<Option<Loaf>>,
    /// The number of entries of `history` that were delivered to the cache.
    delivered: usize,
    /// When the process reconciles again without a change.
    timer: Option<Millis>,
    crash_after: Option<usize>,
    /// The UIDs of objects that the controller deleted.
    deleted: Vec<Arc<str>>,
    /// When the controller last deleted an object.
    deleted_at: Millis,
    pub(super) violations: Vec<String>,
}

impl Simulation {
    pub(super) fn apply(&mut self, action: &Action) {
        match *action {
            Action::Write { baked, keeps } => self.write(baked, keeps),
            Action::Delete { has_finalizer } => match self.actual().cloned() {
                Some(loaf) if has_finalizer => self.push(Some(terminating(loaf))),
                Some(_) => self.push(None),
                None => {}
            },
            Action::Finalize => {
                if self.actual().is_some_and(|loaf| loaf.metadata.is_terminating()) {
                    self.push(None);
                }
            }
            Action::Deliver(changes) => {
                for _ in 0..changes {
                    // After a violation the process might repeat it for ever, so stop.
                    if self.delivered == self.history.len() || !self.violations.is_empty() {
                        break;
                    }
                    self.delivered += 1;
                    self.reconcile();
                }
            }
            Action::Pass(time) => self.pass_until(self.now + time),
            Action::Set(by) => {
                self.now += by;
                self.reconcile();
            }
            Action::Restart => self.restart(),
            Action::CrashAfter(effects) => self.crash_after = Some(effects),
        }
    }

    /// Delivers all changes and lets time pass until after the expiry.
    pub(super) fn converge(&mut self) {
        self.crash_after = None;
        self.apply(&Action::Deliver(usize::MAX));
        let began = self.now;
        let live = self.actual().filter(|loaf| !loaf.metadata.is_terminating());
        let expires_at = live.and_then(|loaf| loaf.lifetime()?.expires_at());
        let due = expires_at.map_or(began, Timestamp::as_millisecond).max(began);
        self.pass_until(due + 100_000);
        let gone = self.actual().is_none_or(|loaf| loaf.metadata.is_terminating());
        // The key may be in backoff when the object expires.
        let in_time = gone && (due..=due + BACKOFF).contains(&self.deleted_at);
        if expires_at.is_some() && !in_time {
            let (object, at) = (self.actual(), self.deleted_at);
            self.violations.push(format!(
                "{object:?} expired at {due}, but the last deletion was at {at}"
            ));
        }
        if self.timer.is_some() {
            self.violations
                .push("a timer is set, but nothing is left to do".to_owned());
        }
    }

    fn actual(&self) -> Option<&Loaf> {
        self.history.last()?.as_ref()
    }

    fn push(&mut self, object: Option<Loaf>) {
        let version = Arc::from((self.history.len() + 1).to_string());
        self.history.push(object.map(|mut loaf| {
            loaf.metadata.resource_version = version;
            loaf
        }));
    }

    fn write(&mut self, baked: Option<i64>, keeps: Option<i64>) {
        let mut loaf = self.actual().cloned().unwrap_or_else(|| {
            let mut new = loaf(0, 0);
            new.metadata.uid = Arc::from(format!("uid-{}", self.history.len()));
            new
        });
        (loaf.baked, loaf.keeps) = (baked, keeps);
        self.push(Some(loaf));
    }

    fn restart(&mut self) {
        (self.timer, self.crash_after) = (None, None);
        self.delivered = self.history.len();
        self.reconcile();
    }

    fn pass_until(&mut self, end: Millis) {
        while let Some(time) = self.timer.filter(|time| *time <= end && self.violations.is_empty()) {
            self.now = self.now.max(time);
            self.reconcile();
        }
        self.now = self.now.max(end);
    }

    /// Reconciles the key as a worker does. An earlier timer is replaced.
    fn reconcile(&mut self) {
        self.timer = None;
        let cached = self
            .delivered
            .checked_sub(1)
            .and_then(|last| self.history[last].clone());
        let Some(cached) = cached else { return };
        let plan = decide(&cached, Timestamp::from_millisecond(self.now).unwrap());
        let crash_after = self.crash_after.take();
        for (done, effect) in plan.effects.iter().enumerate() {
            if crash_after == Some(done) {
                return self.restart();
            }
            if !self.perform(effect) {
                // The apiserver answered 409. At the retry the cache may still be stale.
                self.timer = Some(self.now + BACKOFF);
                return;
            }
        }
        if let Next::At(time) = plan.next {
            self.timer = Some(time.as_millisecond());
        }
    }

    /// Performs an effect. Returns whether the plan continues.
    fn perform(&mut self, effect: &Effect) -> bool {
        let Effect::Delete { target, propagation } = effect else {
            return true;
        };
        let Some(actual) = self.actual().cloned() else {
            return true;
        };
        if actual.metadata.uid != target.uid || actual.metadata.resource_version != target.version {
            return false;
        }
        let now = Timestamp::from_millisecond(self.now).unwrap();
        let expires_at = actual.lifetime().and_then(Lifetime::expires_at);
        if expires_at.is_none_or(|expires_at| now < expires_at) {
            self.violations
                .push(format!("deleted at {now}, but it expires at {expires_at:?}"));
        }
        if *propagation != Propagation::Foreground || self.deleted.contains(&target.uid) {
            self.violations
                .push(format!("{target:?} with {propagation:?}, after {:?}", self.deleted));
        }
        self.deleted.push(Arc::clone(&target.uid));
        self.deleted_at = self.now;
        self.push(Some(terminating(actual)));
        true
    }
}

fn terminating(mut loaf: Loaf) -> Loaf {
    loaf.metadata.deletion_timestamp = loaf.metadata.deletion_timestamp.or(Some(Timestamp::UNIX_EPOCH));
    loaf
}
