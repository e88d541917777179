//! Kubernetes Events on objects: queued, best-effort, and never delaying a plan.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use portreeve_metrics::Registry;
use prometheus::IntCounter;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use crate::{EventContent, EventSeverity, Shutdown, Target};

/// How many events may wait. Thousands of schedules may be due in the same minute. A waiting event
/// takes about half a kilobyte. A larger burst is not worth its memory: events are hints, and
/// conditions hold the state.
const WAITING: usize = 20_000;
/// An event waits while events arrive in a burst: at least [`BURST`] of them in this time. The work
/// that they describe takes precedence.
const PATIENCE: Duration = Duration::from_secs(1);
/// Fewer events than this in a second leave the apiserver time to write them.
const BURST: usize = 50;
/// The maximum time that an event waits for the end of a burst. Ten thousand Jobs are created in
/// less.
const LONGEST_PATIENCE: Duration = Duration::from_secs(30);
/// With more waiting events than this, the writer starts at once to make room.
const CROWD: usize = WAITING / 2;
/// How many recorders are kept, one per distinct event. A repeated event is merged into a series by
/// its recorder.
const RECORDERS: usize = 64;
/// The maximum length of an event's message in bytes. The apiserver rejects longer ones.
const LONGEST: usize = 1_024;
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
            "Number of Kubernetes events that were not written because too many were waiting.",
        )?;
        registry.register(Box::new(dropped.clone()))?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let writer = EventWriter {
            queue: receiver,
            instance: instance.into(),
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

/// Truncates a message to the maximum length of an event.
fn shortened(sentence: &str) -> String {
    const MORE: &str = "…";
    if sentence.len() <= LONGEST {
        return sentence.to_owned();
    }
    let end = sentence.floor_char_boundary(LONGEST - MORE.len());
    sentence[..end].to_owned() + MORE
}

fn event(note: &EventContent) -> Event {
    Event {
        type_: match note.type_ {
            EventSeverity::Normal => EventType::Normal,
            EventSeverity::Warning => EventType::Warning,
        },
        reason: note.reason.to_owned(),
        note: Some(shortened(&note.message)),
        action: note.action.to_owned(),
        secondary: None,
    }
}

fn reference(target: &Target) -> ObjectReference {
    ObjectReference {
        api_version: Some(target.resource.api_version()),
        kind: Some(target.resource.kind.to_string()),
        name: Some(target.key.name.to_string()),
        namespace: target.key.namespace.as_deref().map(str::to_owned),
        uid: Some(target.uid.to_string()),
        ..ObjectReference::default()
    }
}

/// Recorders by event. A recorder merges an event into the previous one if everything but the
/// message is equal, so each message needs its own recorder.
#[derive(Default)]
struct Recorders(HashMap<u64, (Recorder, Instant)>);

impl Recorders {
    /// Returns the recorder of an event. When there are too many recorders, the least recently used
    /// one is dropped.
    fn of(&mut self, instance: &str, queued: &Queued) -> &Recorder {
        let now = Instant::now();
        if self.0.len() >= RECORDERS {
            let oldest = self.0.iter().min_by_key(|(_, (_, last))| *last).map(|(key, _)| *key);
            oldest.and_then(|oldest| self.0.remove(&oldest));
        }
        let mut hasher = DefaultHasher::new();
        let EventContent { reason, message, .. } = &queued.note;
        (&queued.controller, &queued.target.uid, reason, message).hash(&mut hasher);
        let known = self.0.entry(hasher.finish()).or_insert_with(|| {
            let reporter = Reporter {
                controller: queued.controller.to_string(),
                instance: Some(instance.to_owned()),
            };
            (Recorder::new(queued.client.clone(), reporter), now)
        });
        known.1 = now;
        &known.0
    }
}

impl EventWriter {
    /// Waits for the end of the burst to which an event belongs.
    async fn burst_is_over(&self, since: Instant) {
        let last = since + LONGEST_PATIENCE;
        let mut next = since + PATIENCE;
        loop {
            let before = self.queue.len();
            sleep_until(next.min(last)).await;
            let (now, waiting) = (Instant::now(), self.queue.len());
            if waiting - before < BURST || waiting > CROWD || now >= last {
                return;
            }
            next = now + PATIENCE;
        }
    }

    /// Writes events until `stop` is requested. An event is written when fewer than 50 others
    /// others have been queued in a second, after 30 seconds, or when the queue is half full. On
    /// `stop`, writes all remaining events at once.
    pub async fn run(mut self, stop: Shutdown) {
        let mut recorders = Recorders::default();
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
            let recorder = recorders.of(&self.instance, &queued);
            let (event, regarding) = (event(&queued.note), reference(&queued.target));
            if let Err(error) = recorder.publish(&event, &regarding).await {
                tracing::debug!(reason = event.reason, %error, "failed to write an event");
            }
        }
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

    #[test]
    fn long_messages_are_truncated_to_the_limit_of_an_event() {
        let long = "ä".repeat(LONGEST);
        for (sentence, bytes) in [("short", 5), (&*"x".repeat(LONGEST), LONGEST), (&*long, LONGEST - 1)] {
            let cut = shortened(sentence);
            assert_eq!(cut.len(), bytes, "{cut}");
            assert_eq!(cut.ends_with('…'), sentence.len() > LONGEST, "{cut}");
        }
    }
}
