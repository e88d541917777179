//! Detects that the apiserver's fence rejects the writes of a controller that leads.
//!
//! The fence follows the Lease with a delay of milliseconds, so a few rejections after a change of
//! leader are normal. When they continue and no write is admitted, the apiserver does not know who
//! holds the Lease. The controller can then change nothing until somebody repairs the fence.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_client::{ApiErrorKind, error_chain};
use prometheus::IntCounter;
use tokio::time::Instant;

use crate::{
    Context, EventContent, Events, GroupLease, Metrics, ReadinessCheck, ReadinessChecker, ReadinessStatus,
    SharedContext,
};

/// How long rejections must continue before they are reported. The fence follows the Lease within
/// far less.
const GRACE: Duration = Duration::from_secs(5);
/// How long a rejection counts. A rejected write is retried after 30 s at most, unless the retry
/// budget holds it, and then other retries are sent. So without a newer rejection nothing is left
/// to write.
const VALIDITY: Duration = Duration::from_mins(1);

/// Records the answers of the apiserver to the writes of one controller. Cheap to clone. Records
/// nothing without leader election, and as the default value.
#[derive(Clone, Default)]
pub struct FenceMonitor(Option<Arc<Monitored>>);

struct Monitored {
    controller: &'static str,
    lease: GroupLease,
    events: Events,
    /// The writes that this process did not send.
    fenced_locally: IntCounter,
    fenced_by_apiserver: IntCounter,
    fenced: Mutex<Option<FencedPeriod>>,
}

/// A period in which the fence rejected every write: the first and the latest rejection.
#[derive(Clone, Copy)]
struct FencedPeriod {
    first: Instant,
    last: Instant,
    is_reported: bool,
}

impl FencedPeriod {
    /// Adds a rejection to the current period, or begins one. Returns whether to report the period.
    fn add(current: &mut Option<Self>, now: Instant) -> bool {
        let new = Self {
            first: now,
            last: now,
            is_reported: false,
        };
        let period = current.get_or_insert(new);
        if !period.is_current(now) {
            *period = new;
        }
        period.last = now;
        let is_new = period.is_persistent() && !period.is_reported;
        period.is_reported |= is_new;
        is_new
    }

    fn is_persistent(&self) -> bool {
        self.last.duration_since(self.first) >= GRACE
    }

    /// Returns whether the latest rejection still counts.
    fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) <= VALIDITY
    }

    /// Returns for how long the fence has rejected every write, if that is longer than the grace
    /// period and still counts.
    fn age(&self, now: Instant) -> Option<Duration> {
        (self.is_persistent() && self.is_current(now)).then(|| now.saturating_duration_since(self.first))
    }
}

impl FenceMonitor {
    /// Creates the monitor of a controller.
    pub fn new(ctx: &Context<'_>) -> Self {
        let SharedContext { events, metrics, .. } = ctx.shared;
        let monitored = |lease| Arc::new(Monitored::new(ctx.name, lease, events.clone(), metrics));
        Self(ctx.lease.clone().map(monitored))
    }

    /// Records the answer to a write. Record no writes that the fence does not cover: Leases and
    /// Events.
    pub fn record<T>(&self, answer: &kube::Result<T>) {
        let Some(monitored) = &self.0 else { return };
        match answer {
            Ok(_) => monitored.admitted(),
            Err(error) if ApiErrorKind::of(error) == ApiErrorKind::Fenced => match error {
                kube::Error::Api(_) => monitored.rejected(error),
                _ => monitored.fenced_locally.inc(),
            },
            Err(_) => {}
        }
    }

    /// Returns the readiness check of the controller.
    pub fn readiness_checker(&self) -> ReadinessChecker {
        let monitor = self.clone();
        Arc::new(move || monitor.0.iter().map(|monitored| monitored.check()).collect())
    }
}

impl Monitored {
    fn new(controller: &'static str, lease: GroupLease, events: Events, metrics: &Metrics) -> Self {
        let counter = |fence| metrics.fenced_writes.with_label_values(&[controller, fence]);
        Self {
            controller,
            lease,
            events,
            fenced_locally: counter("local"),
            fenced_by_apiserver: counter("apiserver"),
            fenced: Mutex::default(),
        }
    }

    fn admitted(&self) {
        let ended = self.fenced.lock().take();
        if ended.is_some_and(|period| period.is_reported) {
            tracing::info!(
                controller = self.controller,
                "write admitted again by the apiserver's fence"
            );
        }
    }

    fn rejected(&self, error: &kube::Error) {
        self.fenced_by_apiserver.inc();
        if !FencedPeriod::add(&mut self.fenced.lock(), Instant::now()) {
            return;
        }
        let controller = self.controller;
        tracing::warn!(
            controller,
            lease = %self.lease.key,
            err = error_chain(error),
            "rejected by the apiserver's fence although this replica leads; docs/fence.md lists the causes"
        );
        let Some(lease) = self.lease.target() else { return };
        let note = EventContent::warning(
            "LeaderFenced",
            "Write",
            format!(
                "The apiserver's fence rejects the writes of {controller} although the replica holds this Lease; \
                 docs/fence.md lists the causes."
            ),
        );
        self.events.send(controller, &lease, &note);
    }

    fn check(&self) -> ReadinessCheck {
        let age = (*self.fenced.lock()).and_then(|period| period.age(Instant::now()));
        ReadinessCheck {
            name: format!("fence/{}", self.controller),
            state: age.map_or(ReadinessStatus::Ok, |age| {
                ReadinessStatus::Failed(format!(
                    "the apiserver's fence has rejected every write for {} s although this replica holds Lease {}; \
                     docs/fence.md lists the causes",
                    age.as_secs(),
                    self.lease.key
                ))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use portreeve_api::ObjectKey;
    use portreeve_client::{FENCED_BY_SERVER, Fenced};
    use portreeve_metrics::Registry;
    use tokio::sync::watch;

    use super::*;
    use crate::scripted;

    #[tokio::test]
    async fn rejected_writes_are_counted_by_the_fence_that_rejected_them() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let (events, _writer) = Events::channel(scripted::client(vec![]).0, "test", &registry).unwrap();
        let lease = GroupLease {
            key: ObjectKey::namespaced("n", "lease"),
            snapshots: watch::channel(k8s_openapi::api::coordination::v1::Lease::default()).1,
            version_decreases: watch::channel(0).1,
            record_write: Arc::new(|_| ()),
        };
        let monitor = FenceMonitor(Some(Arc::new(Monitored::new("a-controller", lease, events, &metrics))));
        let counts = || {
            let count = |fence| metrics.fenced_writes.with_label_values(&["a-controller", fence]).get();
            (count("local"), count("apiserver"))
        };
        let status = |message: &str| Status {
            code: 403,
            reason: "Forbidden".to_owned(),
            message: message.to_owned(),
            ..Status::default()
        };
        for (error, expected) in [
            (None, (0, 0)),
            (Some(kube::Error::Api(status("no right").boxed())), (0, 0)),
            (Some(kube::Error::Service(Fenced("not the leader").into())), (1, 0)),
            (Some(kube::Error::Api(status(FENCED_BY_SERVER).boxed())), (1, 1)),
        ] {
            monitor.record(&error.map_or(Ok(()), Err));
            assert_eq!(counts(), expected);
        }
    }

    #[test]
    fn rejections_are_reported_once_when_they_have_continued_for_the_grace_period() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut period = None;
        for (second, is_new) in [(0, false), (4, false), (5, true), (6, false), (30, false)] {
            assert_eq!(FencedPeriod::add(&mut period, at(second)), is_new, "{second}");
        }
        let age = |second| period.and_then(|period| period.age(at(second)));
        assert_eq!(age(31), Some(Duration::from_secs(31)));
        assert_eq!(age(90), Some(Duration::from_secs(90)));
        assert_eq!(age(91), None, "nothing has been written for a minute");
    }

    #[test]
    fn a_single_rejection_is_not_reported_however_old_it_is() {
        let began = Instant::now();
        let mut period = None;
        assert!(!FencedPeriod::add(&mut period, began));
        assert_eq!(period.unwrap().age(began + Duration::from_secs(30)), None);
    }

    #[test]
    fn a_rejection_after_an_old_one_begins_another_period() {
        let began = Instant::now();
        let later = began + Duration::from_hours(1);
        let mut period = None;
        FencedPeriod::add(&mut period, began);
        assert!(!FencedPeriod::add(&mut period, later));
        assert_eq!(period.unwrap().age(later), None);
        assert!(FencedPeriod::add(&mut period, later + GRACE));
    }
}
