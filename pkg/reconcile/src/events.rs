//! Kubernetes Events on objects: queued, best-effort, and never delaying a plan.

mod manifest;
mod series;

use std::{
    collections::{HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use portreeve_client::{ApiErrorKind, error_chain};
use portreeve_metrics::Registry;
use prometheus::IntCounter;
use serde::de::IgnoredAny;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use self::{manifest::Manifest, series::SeriesMemory};
use crate::{EventContent, Shutdown, Target};

/// How many events may wait. Thousands of schedules may be due in the same minute. A waiting event
/// takes about half a kilobyte. A larger burst is not worth its memory: events are hints, and
/// conditions hold the state.
const QUEUE_CAPACITY: usize = 20_000;
/// An event waits while events arrive in a burst: at least [`BURST`] of them in this time. The work
/// that they describe takes precedence.
const BURST_INTERVAL: Duration = Duration::from_secs(1);
/// Fewer events than this in a second leave the apiserver time to write them.
const BURST: usize = 50;
/// The maximum time that an event waits for the end of a burst. Ten thousand Jobs are created in
/// less.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// With more waiting events than this, the writer starts at once to make room.
const HALF_FULL: usize = QUEUE_CAPACITY / 2;
/// How many `report_once` events are remembered. Beyond that, the oldest ones may be sent again.
const REMEMBERED: usize = 10_000;

/// The sending end of the event queue. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    client: Client,
    queue: mpsc::Sender<Queued>,
    dropped: IntCounter,
    reported: Arc<Mutex<ReportedEvents>>,
}

/// Hashes of the `report_once` events that have been sent.
#[derive(Default)]
struct ReportedEvents {
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl ReportedEvents {
    fn remember(&mut self, what: u64) {
        if self.known.insert(what) {
            self.order.push_back(what);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// The receiving end of the event queue, which writes the events.
pub struct EventWriter {
    queue: mpsc::Receiver<Queued>,
    instance: String,
    dropped: IntCounter,
    series: SeriesMemory,
}

/// A queued event in compact form. A finished `Event` takes several times the memory, and whole
/// bursts wait in the queue.
struct Queued {
    client: Client,
    since: Instant,
    controller: Arc<str>,
    target: Target,
    note: EventContent,
}

impl Events {
    /// Creates both ends of an event queue. `instance` names the reporting replica.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already holds the counter of dropped events.
    pub fn channel(
        client: Client,
        instance: impl Into<String>,
        registry: &Registry,
    ) -> Result<(Self, EventWriter), prometheus::Error> {
        let dropped = IntCounter::new(
            "portreeve_events_dropped_total",
            "Number of Kubernetes events that were not written, because too many were waiting or the apiserver did not \
             accept them.",
        )?;
        registry.register(Box::new(dropped.clone()))?;
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let writer = EventWriter {
            queue: receiver,
            instance: instance.into(),
            dropped: dropped.clone(),
            series: SeriesMemory::default(),
        };
        let reported = Arc::default();
        Ok((
            Self {
                client,
                queue: sender,
                dropped,
                reported,
            },
            writer,
        ))
    }

    /// Returns a handle to the same queue whose events are written through `client`, like the
    /// controller's other writes.
    #[must_use]
    pub fn with_client(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// Queues one event, or drops it when too many are waiting. A `report_once` event is sent only
    /// once. Returns whether the event was queued.
    pub fn send(&self, controller: &str, target: &Target, note: &EventContent) -> bool {
        let subject = note.report_once.as_ref().map(|subject| {
            let mut hasher = DefaultHasher::new();
            (&target.uid, note.reason, subject).hash(&mut hasher);
            hasher.finish()
        });
        if subject.is_some_and(|subject| self.reported.lock().known.contains(&subject)) {
            return false;
        }
        let queued = Queued {
            client: self.client.clone(),
            since: Instant::now(),
            controller: controller.into(),
            target: target.clone(),
            note: note.clone(),
        };
        if self.queue.try_send(queued).is_err() {
            self.dropped.inc();
            return false;
        }
        if let Some(subject) = subject {
            self.reported.lock().remember(subject);
        }
        true
    }
}

impl EventWriter {
    /// Waits for the end of the burst to which an event belongs.
    async fn burst_is_over(&self, since: Instant) {
        let last = since + LONGEST_DELAY;
        let mut next = since + BURST_INTERVAL;
        loop {
            let before = self.queue.len();
            sleep_until(next.min(last)).await;
            let (now, waiting) = (Instant::now(), self.queue.len());
            if waiting - before < BURST || waiting > HALF_FULL || now >= last {
                return;
            }
            next = now + BURST_INTERVAL;
        }
    }

    /// Writes events until `stop` is requested. An event is written when fewer than 50 others
    /// others have been queued in a second, after 30 seconds, or when the queue is half full. On
    /// `stop`, writes all remaining events at once.
    pub async fn run(mut self, stop: Shutdown) {
        loop {
            let queued = tokio::select! {
                biased;
                queued = self.queue.recv() => queued,
                () = stop.requested() => {
                    // The queue accepts no more events, and the loop continues until it is empty.
                    self.queue.close();
                    self.queue.recv().await
                }
            };
            let Some(queued) = queued else {
                return;
            };
            tokio::select! {
                () = self.burst_is_over(queued.since) => {}
                () = stop.requested() => {}
            }
            if let Err(error) = self.write(&queued).await {
                self.dropped.inc();
                let (reason, object) = (queued.note.reason, &queued.target.key);
                let err = error_chain(&error);
                if ApiErrorKind::of(&error) == ApiErrorKind::Invalid {
                    tracing::warn!(reason, %object, err, "dropping an event that the apiserver rejects as invalid");
                } else {
                    tracing::debug!(reason, %object, err, "failed to write an event");
                }
            }
        }
    }

    /// Writes one event: a repetition into the series of the first, unless that was deleted or has
    /// expired.
    async fn write(&mut self, queued: &Queued) -> kube::Result<()> {
        let event = queued.identity();
        let manifest = Manifest {
            instance: &self.instance,
            controller: &queued.controller,
            target: &queued.target,
            note: &queued.note,
            now: Timestamp::now(),
        };
        if let Some((name, count)) = self.series.repetition(event) {
            let patch = manifest.repetition(&name, count).map_err(kube::Error::HttpError)?;
            match queued.client.request::<IgnoredAny>(patch).await {
                Ok(_) => {
                    self.series.written(event, name, count);
                    return Ok(());
                }
                Err(error) if ApiErrorKind::of(&error) == ApiErrorKind::NotFound => self.series.forget(event),
                Err(error) => return Err(error),
            }
        }
        let name = manifest.name();
        let creation = manifest.creation(&name).map_err(kube::Error::HttpError)?;
        queued.client.request::<IgnoredAny>(creation).await?;
        self.series.written(event, name.into(), 1);
        Ok(())
    }
}

impl Queued {
    /// Returns a hash of everything that repetitions have in common.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let EventContent {
            type_,
            reason,
            action,
            message,
            report_once: _,
        } = &self.note;
        let is_warning = *type_ == crate::EventSeverity::Warning;
        let Target { resource, key, uid, .. } = &self.target;
        (&self.controller, resource, key, uid).hash(&mut hasher);
        (is_warning, reason, action, message).hash(&mut hasher);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use portreeve_api::{ObjectKey, Resource};
    use tokio::{task::JoinSet, time::sleep};

    use super::*;

    /// Sends this many events, evenly spread over some seconds, and returns how many were written
    /// by then, and how many in the following minutes.
    async fn written(events: u32, seconds: u32) -> (usize, usize) {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let service = tower::service_fn(move |_: http::Request<Body>| {
            counter.fetch_add(1, Ordering::Relaxed);
            async {
                sleep(Duration::from_millis(2)).await;
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(b"{}".to_vec())))
            }
        });
        let client = Client::new(service, "default");
        let (sender, writer) = Events::channel(client, "replica", &Registry::new()).unwrap();
        let (stop, mut writing) = (Shutdown::new(), JoinSet::new());
        writing.spawn(writer.run(stop.clone()));
        for index in 0..events {
            let target = Target {
                resource: Resource::namespaced("batch", "v1", "CronJob", "cronjobs"),
                key: ObjectKey::namespaced("n", format!("a-{index}").as_str()),
                uid: "u".into(),
                version: "1".into(),
            };
            sender.send(
                "test-controller",
                &target,
                &EventContent::normal("Created", "Sync", "created"),
            );
            sleep(Duration::from_secs(u64::from(seconds)) / events).await;
        }
        let during = count.load(Ordering::Relaxed);
        sleep(Duration::from_mins(5)).await;
        let all = count.load(Ordering::Relaxed);
        stop.request();
        writing.join_all().await;
        (during, all)
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_thousands_of_runs_are_written_after_the_burst() {
        assert_eq!(written(9_000, 18).await, (0, 9_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_delays_events_for_half_a_minute_and_steady_events_by_a_second() {
        let (during, all) = written(9_000, 60).await;
        assert!((1_000..9_000).contains(&during), "{during}");
        assert_eq!(all, 9_000);
        let (during, all) = written(1_200, 60).await;
        assert!((1_150..1_200).contains(&during), "{during}");
        assert_eq!(all, 1_200);
    }

    fn target(name: &str) -> Target {
        Target {
            resource: Resource::namespaced("batch", "v1", "CronJob", "cronjobs"),
            key: ObjectKey::namespaced("n", name),
            uid: name.into(),
            version: "1".into(),
        }
    }

    /// Sends events in order to a client that answers from a script, and then with 200. Returns the
    /// requests and the number of dropped events.
    async fn requests(script: Vec<(u16, serde_json::Value)>, events: &[(Target, &str)]) -> (Vec<String>, u64) {
        let (client, requests) = crate::scripted::client(script);
        let (sender, writer) = Events::channel(client, "replica", &Registry::new()).unwrap();
        for (target, message) in events {
            assert!(sender.send("test-controller", target, &EventContent::normal("A", "B", *message)));
        }
        let stop = Shutdown::new();
        stop.request();
        writer.run(stop).await;
        let requests = std::mem::take(&mut *requests.lock());
        (requests, sender.dropped.get())
    }

    fn methods(requests: &[String]) -> String {
        let methods: Vec<_> = requests
            .iter()
            .filter_map(|request| request.split(' ').next())
            .collect();
        methods.join(" ")
    }

    #[tokio::test]
    async fn repetitions_of_4096_events_become_series() {
        let names: Vec<_> = (0..4_096).map(|number| number.to_string()).collect();
        let once: Vec<_> = names.iter().map(|name| (target(name), "blocked")).collect();
        let twice = [&once[..], &once[..]].concat();
        let (requests, dropped) = requests(Vec::new(), &twice).await;
        let posts = requests.iter().filter(|request| request.starts_with("POST ")).count();
        assert_eq!((posts, requests.len(), dropped), (4_096, 8_192, 0));
    }

    #[tokio::test]
    async fn a_deleted_series_starts_again_and_lost_events_are_counted() {
        let events = ["x", "x", "x", "y", "x"].map(|message| (target("a"), message));
        let gone = (404, serde_json::json!({"code": 404, "reason": "NotFound"}));
        let created = (200, serde_json::json!({}));
        let script = vec![created.clone(), gone, created.clone(), created.clone()];
        let (sent, dropped) = requests(script, &events).await;
        assert_eq!((&*methods(&sent), dropped), ("POST PATCH POST PATCH POST PATCH", 0));
        let refused = |code| crate::scripted::error_response(code, "");
        let script = vec![refused(422), refused(503), created, refused(403)];
        let (sent, dropped) = requests(script, &events).await;
        assert_eq!((&*methods(&sent), dropped), ("POST POST POST POST PATCH", 3));
    }
}
