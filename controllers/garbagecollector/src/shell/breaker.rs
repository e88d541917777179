//! The breaker: stops all deletions after a maximum number within one minute, until a person
//! resumes them.
//!
//! An annotation of the Lease records that the breaker has tripped, so that it stays tripped after
//! a restart and on other replicas. Removing the annotation resumes deletions.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use portreeve_garbagecollector_graph::{Identity, Uid};
use portreeve_reconcile::{EventContent, Shutdown};
use portreeve_workqueue::Lane;
use tokio::{sync::Notify, time::Instant};

use super::{CollectorContext, LeaseAnnotations};

/// The annotation that records that the breaker has tripped.
pub(crate) const TRIPPED: &str = "garbage-collector.portreeve.dev/tripped";
const MINUTE: Duration = Duration::from_mins(1);
/// The delay before a failed write of the annotation is retried.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Breaker {
    limit: u32,
    lease_annotations: Option<LeaseAnnotations>,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    window: Window,
    tripped: Option<Tripped>,
    parked: HashSet<Uid>,
}

struct Tripped {
    sentence: String,
    /// The UID of the Lease that has the annotation, and the version in which it first had it.
    written: Option<(Arc<str>, u64)>,
}

/// The number of deletions in each second of the last minute.
#[derive(Default)]
struct Window {
    seconds: std::collections::VecDeque<(Instant, u32)>,
    sum: u32,
}

impl Window {
    /// Counts a deletion and returns true, unless that would exceed the limit for the last minute.
    fn admit(&mut self, now: Instant, limit: u32) -> bool {
        while let Some((begun, count)) = self.seconds.front() {
            if now.duration_since(*begun) < MINUTE {
                break;
            }
            self.sum -= count;
            self.seconds.pop_front();
        }
        if self.sum >= limit {
            return false;
        }
        self.sum += 1;
        match self.seconds.back_mut() {
            Some((begun, count)) if now.duration_since(*begun) < Duration::from_secs(1) => *count += 1,
            _ => self.seconds.push_back((now, 1)),
        }
        true
    }
}

impl Window {
    /// Subtracts the last counted deletion.
    fn refund(&mut self) {
        if let Some((_, count)) = self.seconds.iter_mut().rev().find(|(_, count)| *count > 0) {
            *count -= 1;
            self.sum -= 1;
        }
    }
}

impl Breaker {
    pub(super) fn new(limit: u32, lease_annotations: Option<LeaseAnnotations>) -> Self {
        Self {
            limit,
            lease_annotations,
            state: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// Counts a deletion and returns true, unless deletions are stopped. Trips the breaker if the
    /// deletion would exceed the limit.
    pub(super) fn admit(&self, ctx: &CollectorContext) -> bool {
        if self.limit == 0 {
            return true;
        }
        let mut state = self.state.lock();
        if state.tripped.is_some() {
            return false;
        }
        if state.window.admit(Instant::now(), self.limit) {
            return true;
        }
        let sentence = sentence(ctx.clock.now(), self.limit);
        tracing::error!(
            reason = sentence,
            annotation = TRIPPED,
            "stopped deleting objects: deletion limit reached"
        );
        state.tripped = Some(Tripped {
            sentence,
            written: None,
        });
        drop(state);
        self.news.notify_one();
        false
    }

    /// Remembers the object, to process it again once deletions resume.
    pub(super) fn park(&self, ctx: &CollectorContext, item: &Identity) {
        let Some(uid) = ctx.graph.lock().uid(&item.uid) else {
            return;
        };
        let mut state = self.state.lock();
        if state.tripped.is_some() {
            state.parked.insert(uid);
        } else {
            // Deletions have been resumed meanwhile.
            drop(state);
            ctx.add(&ctx.attempts, uid, Lane::Routine);
        }
    }

    /// Subtracts an admitted deletion that was not carried out.
    pub(super) fn refund(&self) {
        if self.limit > 0 {
            self.state.lock().window.refund();
        }
    }

    /// Returns why deletions are stopped, and how to resume them; `None` if they are not.
    pub(super) fn tripped(&self) -> Option<String> {
        if self.limit == 0 {
            return None;
        }
        let noted = self
            .lease_annotations
            .as_ref()
            .and_then(|lease_annotations| lease_annotations.read(TRIPPED));
        let state = self.state.lock();
        let sentence = state
            .tripped
            .as_ref()
            .map(|tripped| tripped.sentence.clone())
            .or(noted)?;
        let lease = self.lease_annotations.as_ref().and_then(LeaseAnnotations::target);
        let lease = lease.map_or_else(|| "its Lease".to_owned(), |lease| format!("Lease {}", lease.key));
        Some(format!(
            "{sentence}; {} objects are waiting to be deleted; check the debug pages /decisions and /explain, then remove the annotation {TRIPPED} from {lease} to resume",
            state.parked.len()
        ))
    }
}

fn sentence(now: Timestamp, limit: u32) -> String {
    format!(
        "tripped at {now:.0}: {limit} objects were deleted within one minute, the limit of --gc-max-deletions-per-minute"
    )
}

/// Writes the annotation when the breaker has tripped, and resumes deletions when it is removed.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    let breaker = &ctx.breaker;
    let Some(lease_annotations) = breaker.lease_annotations.clone().filter(|_| breaker.limit > 0) else {
        return stop.requested().await;
    };
    let mut changes = lease_annotations.clone();
    loop {
        breaker.agree(&ctx, lease_annotations.read(TRIPPED));
        let unwritten = {
            let state = breaker.state.lock();
            let tripped = state.tripped.as_ref().filter(|tripped| tripped.written.is_none());
            tripped.map(|tripped| tripped.sentence.clone())
        };
        let pause = async {
            match &unwritten {
                None => std::future::pending().await,
                Some(sentence) => match lease_annotations.write(TRIPPED, Some(sentence)).await {
                    Ok(()) => breaker.written(&ctx, &lease_annotations),
                    Err(error) => {
                        tracing::warn!(reason = %error, "failed to record on the Lease that the breaker has tripped");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        };
        tokio::select! {
            () = stop.requested() => return,
            () = pause => {}
            () = breaker.news.notified(), if unwritten.is_none() => {}
            () = changes.changed(), if unwritten.is_none() => {}
        }
    }
}

impl Breaker {
    /// Takes over the state that a former leader has left on the Lease.
    pub(super) fn catch_up(&self, ctx: &CollectorContext) {
        if let Some(lease_annotations) = self.lease_annotations.as_ref().filter(|_| self.limit > 0) {
            self.agree(ctx, lease_annotations.read(TRIPPED));
        }
    }

    /// Adjusts the breaker to the annotation that was read.
    fn agree(&self, ctx: &CollectorContext, noted: Option<String>) {
        let lease = self.lease();
        let mut state = self.state.lock();
        match (&mut state.tripped, noted) {
            (None, Some(sentence)) => {
                tracing::error!(
                    reason = sentence,
                    annotation = TRIPPED,
                    "stopped deleting objects until the annotation is removed"
                );
                let written = lease;
                state.tripped = Some(Tripped { sentence, written });
            }
            (Some(tripped), None) => match (&tripped.written, lease) {
                (Some((then, since)), Some((now, version))) if *then == now && version >= *since => {
                    clear(ctx, state);
                }
                // The Lease has been recreated or restored, so nobody has removed the annotation.
                // Write it again.
                (Some(_), _) => tripped.written = None,
                (None, _) => {}
            },
            _ => {}
        }
    }

    /// Returns the UID and version of the Lease.
    fn lease(&self) -> Option<(Arc<str>, u64)> {
        let target = self.lease_annotations.as_ref()?.target()?;
        Some((target.uid, target.version.parse().ok()?))
    }

    fn written(&self, ctx: &CollectorContext, lease_annotations: &LeaseAnnotations) {
        let lease = self.lease();
        let sentence = {
            let mut state = self.state.lock();
            let Some(tripped) = &mut state.tripped else { return };
            tripped.written = lease;
            tripped.sentence.clone()
        };
        if let Some(target) = lease_annotations.target() {
            let sentence = format!(
                "The garbage collector has stopped deleting objects: {sentence}. Remove the annotation {TRIPPED} to resume."
            );
            let note = EventContent::warning("DeletionLimitReached", "Collect", sentence);
            ctx.events.send(ctx.name, &target, &note);
        }
    }
}

/// Resets the breaker after somebody has removed the annotation.
fn clear(ctx: &CollectorContext, mut state: MutexGuard<'_, State>) {
    state.tripped = None;
    state.window = Window::default();
    let parked = std::mem::take(&mut state.parked);
    drop(state);
    tracing::info!(objects = parked.len(), "resuming deletions, the annotation was removed");
    for uid in parked {
        ctx.add(&ctx.attempts, uid, Lane::Routine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_admits_up_to_the_limit_within_one_minute() {
        let mut window = Window::default();
        let begin = Instant::now();
        let admitted = |window: &mut Window, second: u64, times: u32| {
            let now = begin + Duration::from_secs(second);
            (0..times).filter(|_| window.admit(now, 10)).count()
        };
        assert_eq!(admitted(&mut window, 0, 4), 4);
        assert_eq!(admitted(&mut window, 30, 20), 6);
        assert_eq!(admitted(&mut window, 59, 1), 0);
        assert_eq!(admitted(&mut window, 60, 20), 4, "the first four were a minute ago");
        assert_eq!(admitted(&mut window, 89, 1), 0);
        assert_eq!(admitted(&mut window, 90, 20), 6);
        assert!(window.seconds.len() <= 3);
        window.refund();
        assert_eq!(admitted(&mut window, 90, 20), 1, "a refunded deletion does not count");
    }
}
